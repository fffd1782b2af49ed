"""Commands that explain and preview contexts.

They ask a running server, or read the store without one, and write nothing.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.completion import session_names
from breadcrumbs.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    RedisOption,
    TokenOption,
    read_owner,
)
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    UsageError,
    command,
    console,
    for_people,
    print_json,
    say,
    visible,
)
from breadcrumbs.cli.server_url import local_url
from breadcrumbs.runtime.errors import BreadcrumbsError

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.cli.context_reader import ServerContexts, ShownContext
    from breadcrumbs.client.sync import Client
    from breadcrumbs.context_builder.config import ContextConfig
    from breadcrumbs.context_builder.config_checks import ConfigComplaint, ConfigError
    from breadcrumbs.context_builder.config_warnings import KnownNames
    from breadcrumbs.context_builder.diff import Difference
    from breadcrumbs.context_builder.explanation import Explanation
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

T = TypeVar("T")

contexts = typer.Typer(
    name="context",
    short_help="Show what a model sees of a session, and why.",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show what a model sees of a session, and why.

    \b
    crumb context check context.json     check a config for errors
    crumb context explain demo           explain the context of the last message
    crumb context diff demo@3 demo@4     compare the contexts of two turns
    crumb context preview --session demo --config context.json
                                         preview a context with another config
    crumb context test --config context.json
                                         test a changed config on past turns

    These commands ask the running server. If there is none, or with --data or --redis, they read the store. They
    write nothing.
    """,
)

ConsumerOption = Annotated[
    str | None, typer.Option("--consumer", help="Consumer of the context, if a session has several.")
]
ContextUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the server. [env: CRUMB_URL, CRUMB_PORT; default: the running server, else the store]",
    ),
]
RequiredOwnerOption = Annotated[
    str | None,
    typer.Option("--owner", help="Owner of the session (a UUID). [default: the only owner in the settings]"),
]


# context check


@contexts.command("check")
def context_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Context configs (JSON).")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Also end with the exit code 1 if there are warnings.")
    ] = False,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check context configs: errors, settings without effect.

    \b
    crumb context check context.json
    crumb context check configs/*.json --json | jq .complaints

    Prints each error and each warning with its line and column. The exit code is 1 if there is an error, and with
    --strict also if there is a warning. Schemas and agents are compared with those of the running server, or else of
    the store, if there is one.
    """
    from breadcrumbs.context_builder.config_checks import ConfigError

    good: list[CheckedFile] = []
    errors: list[ConfigError] = []
    find_warnings = None
    for file in files:
        try:
            configs = read_configs(file)
        except ConfigError as error:
            errors.append(error)
            say(visible(str(error)).replace("\\x0a", "\n"))
            continue
        find_warnings = find_warnings or _warning_finder(Place(config, data, redis, owner, url), token)
        good.append(_report_warnings(file, configs, find_warnings))
    if for_people(as_json):
        _print_good_configs(good, with_names=len(files) > 1)
    else:
        _print_checked_configs(good, errors)
    warned = any(checked.warnings for checked in good)
    return PROBLEM if errors or (strict and warned) else OK


class CheckedFile(NamedTuple):
    """A valid config file and its warnings."""

    file: Path
    configs: tuple[ContextConfig, ...]
    warnings: list[ConfigComplaint]


_FindWarnings = Callable[[bytes, tuple["ContextConfig", ...]], list["ConfigComplaint"]]


def _report_warnings(
    file: Path, configs: tuple[ContextConfig, ...], find_warnings: _FindWarnings
) -> CheckedFile:
    warnings = find_warnings(file.read_bytes(), configs)
    for warning in warnings:
        where = f"{warning.where}: " if warning.where else ""
        say(visible(f"{file}:{warning.line}:{warning.column}: warning: {where}{warning.message}"))
    return CheckedFile(file, configs, warnings)


def _warning_finder(given: Place, token: str | None) -> _FindWarnings:
    """Return a function that compares configs with the names of the server or of the store.

    A server that was not named, but refuses the request, counts as no server.
    """
    from breadcrumbs.context_builder.config_warnings import NOTHING_KNOWN, locate_warnings

    place = choose_place(given, needs_data=False)
    is_named = bool(given.url or os.environ.get("CRUMB_URL"))
    known = NOTHING_KNOWN if isinstance(place, str) else _known_names(place, read_owner(given.owner))

    def find_warnings(raw: bytes, configs: tuple[ContextConfig, ...]) -> list[ConfigComplaint]:
        if isinstance(place, str):
            try:
                with open_client(place, token) as client:
                    return _server_contexts(client).warnings(raw.decode("utf-8"))
            except BreadcrumbsError:
                if is_named:
                    raise
        return locate_warnings(raw, configs, known)

    return find_warnings


def _known_names(settings: Settings, owner: UUID | None) -> KnownNames:
    """Return the names in the store. Without a store, nothing is known."""
    from breadcrumbs.composition.consumers import read_consumers
    from breadcrumbs.context_builder.config_warnings import NOTHING_KNOWN
    from breadcrumbs.context_builder.known_names import load_known_names
    from breadcrumbs.runtime.errors import BreadcrumbsError

    async def read_names(store: Store) -> KnownNames:
        whose = choose_owner(settings, owner)
        return await load_known_names(store, whose, read_consumers(store, settings))

    try:
        return on_store(settings, read_names)
    except BreadcrumbsError:
        return NOTHING_KNOWN


def _print_good_configs(good: list[CheckedFile], *, with_names: bool) -> None:
    for file, configs, warnings in good:
        names = ", ".join(config.consumer_id for config in configs)
        several = len(configs) != 1
        count = f"{len(configs)} config{'s' if several else ''}, consumer{'s' if several else ''} {names}"
        if warnings:
            count += f", {len(warnings)} warning{'s' if len(warnings) != 1 else ''}"
        console().print(f"{file}: valid, {count}" if with_names else f"valid, {count}", markup=False)


def _print_checked_configs(good: list[CheckedFile], errors: list[ConfigError]) -> None:
    print_json(
        {
            "ok": not errors,
            "configs": [
                {"file": str(checked.file), "consumer_id": config.consumer_id, "digest": config.digest}
                for checked in good
                for config in checked.configs
            ],
            "complaints": [_complaint_json(e.name, c) for e in errors for c in e.complaints],
            "warnings": [
                _complaint_json(str(checked.file), warning)
                for checked in good
                for warning in checked.warnings
            ],
        }
    )


def _complaint_json(file: str, found: ConfigComplaint) -> dict[str, object]:
    return {
        "file": file,
        "line": found.line,
        "column": found.column,
        "where": found.where,
        "message": found.message,
    }


def read_configs(file: Path) -> tuple[ContextConfig, ...]:
    from breadcrumbs.context_builder.config_checks import parse_configs

    try:
        raw = file.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    return parse_configs(raw, name=str(file))


# context explain


@contexts.command("explain")
def context_explain(
    of: Annotated[
        str,
        typer.Argument(
            metavar="SESSION_OR_ID",
            help="Session, or the id of a context or of an answer.",
            autocompletion=session_names,
        ),
    ],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Version of the context. [default: the newest]")
    ] = None,
    consumer: ConsumerOption = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also print the content that the model was shown.")
    ] = False,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Explain what is in a context, and what was left out.

    \b
    crumb context explain demo
    crumb context explain demo --version 3 --parts
    crumb context explain 0197a3c4        the context of this answer
    crumb context explain demo --json | jq '.left_out[].reason'

    Lists the items with their sources and tokens, the left-out breadcrumbs with the reason, the token budget, and the
    tokens of the complete prompt.
    """
    from breadcrumbs.cli.receipts import server_receipt

    place = choose_place(Place(config, data, redis, owner, url))
    if isinstance(place, str):
        with open_client(place, token) as client:
            shown = _server_contexts(client).explain(of, version, consumer, parts=parts)
            shown = replace(shown, receipt=server_receipt(client, shown.explanation))
    else:
        shown = _explain_stored(place, read_owner(owner), (of, version, consumer), parts=parts)
    if for_people(as_json):
        _print_shown(shown)
        return OK
    document = shown.explanation.as_dict()
    if shown.receipt is not None:
        document["receipt"] = shown.receipt
    if shown.parts is not None:
        document |= {"parts": shown.parts, "parts_are_as_shown_then": shown.same, "parts_gone": shown.gone}
    print_json(document)
    return OK


def _explain_stored(
    settings: Settings, named: UUID | None, wanted: tuple[str, int | None, str | None], *, parts: bool
) -> ShownContext:
    from breadcrumbs.cli.context_reader import ShownContext
    from breadcrumbs.cli.receipts import stored_receipt
    from breadcrumbs.context_builder.explain import explain
    from breadcrumbs.context_builder.rebuild import rebuild

    of, version, consumer = wanted

    async def read_context(store: Store) -> ShownContext:
        whose = choose_owner(settings, named)
        id, of_answer = await _find_context(store, whose, of, consumer)
        chosen = version or of_answer
        explained = await explain(store, whose, id, chosen)
        receipt = await stored_receipt(store, whose, explained, settings)
        if not parts:
            return ShownContext(explained, receipt=receipt)
        rebuilt = await rebuild(store, whose, id, chosen)
        gone = [str(reference.id) for reference in rebuilt.gone]
        return ShownContext(explained, rebuilt.parts, bool(rebuilt.same), gone, receipt)

    return on_store(settings, read_context)


def _print_shown(shown: ShownContext) -> None:
    from breadcrumbs.cli.explanations import print_explanation, print_parts
    from breadcrumbs.cli.receipts import print_prompt

    print_explanation(shown.explanation)
    if shown.receipt is not None:
        print_prompt(shown.receipt, with_text=shown.parts is not None)
    if shown.parts is not None:
        print_parts(shown)


async def _find_context(store: Store, owner: UUID, of: str, consumer: str | None) -> tuple[UUID, int | None]:
    """Find a context by its id, its answer, or its session and consumer. Returns its id and its version.

    The version is None unless an answer names it.
    """
    from breadcrumbs.cli.context_reader import choose_context
    from breadcrumbs.context_builder.explain import contexts_of

    if (found := await _context_with_id(store, owner, of)) is not None:
        return found
    contexts = await contexts_of(store, owner, of)
    by_consumer: dict[str, UUID] = {}
    for context in contexts:
        by_consumer.setdefault(str(context.context["consumer_id"]), context.id)
    return choose_context(of, by_consumer, consumer), None


async def _context_with_id(store: Store, owner: UUID, text: str) -> tuple[UUID, int | None] | None:
    from uuid import UUID

    from breadcrumbs.cli.context_reader import context_of_answer
    from breadcrumbs.runtime.errors import NotFound

    try:
        id = UUID(text)
        found = await store.get(owner, id, count_read=False)
    except (ValueError, NotFound):
        return None
    if (named := context_of_answer(found.schema_name, found.context)) is not None:
        return UUID(named[0]), named[1]
    return (id, None) if "explain" in found.context else None


# context preview


@contexts.command("preview")
def context_preview(
    session: Annotated[
        str, typer.Option("--session", "-s", help="Id of the session.", autocompletion=session_names)
    ],
    context_config: Annotated[Path, typer.Option("--config", help="The context config to try (JSON).")],
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Consumer of the config, if the file has several.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option("--trigger", help="Id of the message. [default: the newest that the config reacts to]"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--diff", help="Also print the difference to the context that was used.")
    ] = False,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", help="Settings file. [env: CRUMB_CONFIG]")
    ] = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Preview a context with another config. Nothing is written.

    \b
    crumb context preview --session demo --config context.json
    crumb context preview --session demo --config context.json --diff
    """
    from breadcrumbs.context_builder.diff import diff

    place = choose_place(Place(settings, data, redis, owner, url))
    chosen = choose_config(read_configs(context_config), context_config, consumer)
    wanted = _WantedPreview(session, chosen, trigger, compare)
    if isinstance(place, str):
        with open_client(place, token) as client:
            explained, parts, before = _preview_on_server(client, wanted, context_config)
    else:
        explained, parts, before = _preview_stored(place, read_owner(owner), wanted)
    difference = None if before is None else diff(before, explained)
    if for_people(as_json):
        _print_preview(explained, difference)
        return OK
    document = explained.as_dict() | {"parts": parts}
    print_json(document if difference is None else document | {"diff": difference.as_dict()})
    return OK


@dataclass(frozen=True, slots=True)
class _WantedPreview:
    session: str
    config: ContextConfig
    trigger: str | None
    compare: bool


_Previewed = tuple["Explanation", list[dict[str, Any]], "Explanation | None"]
"""The preview, its parts, and the context to compare it with."""


def _preview_on_server(client: Client, wanted: _WantedPreview, file: Path) -> _Previewed:
    import orjson

    contexts, consumer = _server_contexts(client), wanted.config.consumer_id
    document = orjson.loads(file.read_bytes())
    previewed = contexts.preview(wanted.session, document, consumer, wanted.trigger)
    before = None
    if wanted.compare:
        before = contexts.explain_trigger(wanted.session, consumer, previewed.explanation.trigger_id)
    return previewed.explanation, previewed.parts or [], before


def _preview_stored(settings: Settings, named: UUID | None, wanted: _WantedPreview) -> _Previewed:
    from breadcrumbs.context_builder.preview import PreviewInput, preview
    from breadcrumbs.runtime.breadcrumb.ids import parse_id

    session, config = wanted.session, wanted.config
    trigger_id = None if wanted.trigger is None else parse_id(wanted.trigger, what="--trigger")

    async def make_preview(store: Store) -> _Previewed:
        whose = choose_owner(settings, named)
        previewed = await preview(store, PreviewInput(whose, session, config, trigger_id))
        explained, before = previewed.explanation, None
        if wanted.compare:
            before = await _shown_context(store, whose, session, config.consumer_id, explained.trigger_id)
        return explained, previewed.parts, before

    return on_store(settings, make_preview)


def _print_preview(explained: Explanation, difference: Difference | None) -> None:
    from breadcrumbs.cli.explanations import print_difference, print_explanation

    print_explanation(explained)
    if difference is not None:
        print_difference(difference)


async def _shown_context(
    store: Store, owner: UUID, session: str, consumer: str, trigger_id: str
) -> Explanation:
    """Explain the context that was built for a message. Without one, explain the newest of the session."""
    from breadcrumbs.context_builder.explain import contexts_of, explain

    for context in await contexts_of(store, owner, session):
        if context.context["consumer_id"] != consumer:
            continue
        async for version in store.versions(owner, context.id):
            if version.context.get("trigger_id") == trigger_id:
                return await explain(store, owner, context.id, version.version)
        return await explain(store, owner, context.id)
    raise CommandError(f"session {session!r} has no context of {consumer} to compare with: leave --diff out")


def choose_config(configs: tuple[ContextConfig, ...], file: Path, consumer: str | None) -> ContextConfig:
    by_consumer = {config.consumer_id: config for config in configs}
    if consumer is None and len(configs) == 1:
        return configs[0]
    if consumer in by_consumer:
        return by_consumer[consumer]
    names = ", ".join(by_consumer)
    if consumer is None:
        raise UsageError(f"{file} has configs of several consumers: choose one with --consumer ({names})")
    raise CommandError(f"{file} has no config of {consumer}, but it has configs of {names}")


# context diff


@contexts.command("diff")
def context_diff(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="Id of a session or a context, optionally with @VERSION.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same form.")],
    consumer: ConsumerOption = None,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare two contexts: + added, - removed, ~ moved or changed.

    \b
    crumb context diff demo@3 demo@4
    crumb context diff demo other-session
    """
    from breadcrumbs.context_builder.diff import diff

    place = choose_place(Place(config, data, redis, owner, url))
    references = (_split_reference(old), _split_reference(new))
    if isinstance(place, str):
        with open_client(place, token) as client:
            contexts = _server_contexts(client)
            before, after = (
                contexts.explain(of, version, consumer).explanation for of, version in references
            )
    else:
        named = read_owner(owner)
        before, after = (
            _explain_stored(place, named, (of, version, consumer), parts=False).explanation
            for of, version in references
        )
    difference = diff(before, after)
    if for_people(as_json):
        from breadcrumbs.cli.explanations import print_difference

        print_difference(difference)
    else:
        print_json(difference.as_dict())
    return OK


def _split_reference(text: str) -> tuple[str, int | None]:
    """Split `NAME@VERSION`. Without a version, the second value is None."""
    of, at, version = text.rpartition("@")
    if at and of and version.isascii() and version.isdigit():
        return of, int(version)
    return text, None


# The server or the store


@dataclass(frozen=True, slots=True)
class Place:
    """The options that decide where contexts are read."""

    config: Path | None
    data: Path | None
    redis: str | None
    owner: str | None
    url: str | None


def choose_place(given: Place, *, needs_data: bool = True) -> Settings | str:
    """Return the URL of the server to ask, or the settings of the store to read.

    Settings that name a store or API keys are those of the server itself, so its store is within reach. With
    `needs_data`, raise `CommandError` if there is neither a server nor data.
    """
    of_store = given.data is not None or given.redis is not None or given.owner is not None
    if of_store and given.url is not None:
        raise UsageError("--url asks a server, but --data, --redis and --owner read a store: use one of them")
    if not of_store and (named := given.url or os.environ.get("CRUMB_URL")):
        return named
    settings = _load_settings(given.config, given.data, given.redis)
    if of_store or settings.data or settings.redis or settings.api_keys:
        return settings
    url = local_url(settings.host, settings.port)
    if _is_server(url):
        return url
    if needs_data:
        _check_data(settings, url)
    return settings


def _check_data(settings: Settings, url: str) -> None:
    """Raise `CommandError` if there is neither a server nor data without one."""
    from breadcrumbs.composition.storage import data_directory, has_data

    if not has_data(directory := data_directory(settings)):
        raise CommandError(
            f"no server at {url}, and no data in {directory}. Start one with: {command()} up. For another server use "
            "--url or CRUMB_PORT, for other data --data or --redis"
        )


def _is_server(url: str) -> bool:
    """Return whether a Breadcrumbs server answers. This takes no time if nothing listens there."""
    try:
        with open_client(url, token="") as client:
            client.request("GET", "/health")
    except BreadcrumbsError:
        return False
    return True


def _server_contexts(client: Client) -> ServerContexts:
    from breadcrumbs.cli.context_reader import ServerContexts

    return ServerContexts(client)


def _load_settings(config: Path | None, data: Path | None, redis: str | None) -> Settings:
    from breadcrumbs.runtime.settings.settings import load_settings

    return load_settings(config=config, data=data, redis=redis)


def on_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run `work` on the store of the settings. Raise `CommandError` if the server has no store."""
    from breadcrumbs.composition.storage import server_address

    with server_address(settings, create=False) as url:
        return on_store_at(url, settings, work)


def on_store_at(url: str, settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Like `on_store`, on a running server."""
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.storage import has_store, open_store, shown_address

    async def main() -> T:
        if not await has_store(settings, url):
            raise CommandError(
                f"no data: {shown_address(url)} has no store named {settings.namespace!r}. Check --redis and --data"
            )
        store = await open_store(settings, url)
        try:
            return await work(store)
        finally:
            await store.close()

    return run_async(main())


def choose_owner(settings: Settings, named: UUID | None) -> UUID:
    """Return the named owner, or the only owner in the settings."""
    from breadcrumbs.runtime.settings.settings import DEVELOPER

    if named is not None:
        return named
    if settings.development_mode:
        return DEVELOPER
    owners = {key.owner_id for key in settings.api_keys}
    if len(owners) > 1:
        names = ", ".join(sorted(str(owner) for owner in owners))
        raise UsageError(f"the settings have API keys of several owners: choose one with --owner ({names})")
    return owners.pop()
