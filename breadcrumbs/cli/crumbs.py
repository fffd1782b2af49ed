"""Commands on breadcrumbs of a server: `post`, `get`, `list`, `tail`, `history`, `delete`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import uuid4

import typer

from breadcrumbs.cli.agent_choice import ToOption
from breadcrumbs.cli.client import check_encodable, command_errors, next_page, open_client, path_of, send_json
from breadcrumbs.cli.completion import breadcrumb_ids, session_names
from breadcrumbs.cli.id_prefixes import find_breadcrumb, unique_length
from breadcrumbs.cli.options import (
    DEFAULT_URL,
    AnyTagsOption,
    JsonOption,
    SchemaOption,
    SessionOption,
    SinceOption,
    TagsOption,
    TokenOption,
    UrlOption,
    read_since,
)
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    UsageError,
    confirm,
    console,
    escaped,
    fail,
    for_people,
    one_line,
    print_array,
    print_columns,
    print_json,
    print_line,
    say,
    shown_time,
    visible,
)
from breadcrumbs.runtime.schema_names import ADDRESSEE, USER_MESSAGE

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client


_POST_RETRIES = 3
_TITLE_WIDTH = 24
"""Columns for titles. A list with less space for them shortens the ids."""
_METADATA = frozenset(
    (
        "id",
        "owner_id",
        "version",
        "created_at",
        "updated_at",
        "created_by",
        "updated_by",
        "checksum",
        "size_bytes",
    )
)
"""Fields that the server sets. A history does not show them as changes."""
_EVENT_MARKS = {"created": ("+", "green"), "updated": ("~", "yellow"), "deleted": ("-", "red")}

commands = typer.Typer()


# post


@commands.command()
def post(
    text: Annotated[
        str | None,
        typer.Argument(help="Text of the message, stored in context.message. - reads standard input."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="Session of the breadcrumb.", autocompletion=session_names),
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="Schema name. [default for a text: user.message.v1]")
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Title. [default: the beginning of the text]")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", help="Tag. Repeat it for several.")] = None,
    context: Annotated[
        str | None, typer.Option("--context", "-c", help="JSON object, @FILE, or - for standard input.")
    ] = None,
    to: ToOption = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Lifetime (90s, 1h, 7d), time of expiry, or never.")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="A second post with the same key writes nothing. [default: a new key]"
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Post a breadcrumb. A text without --schema is a user's message.

    \b
    crumb post "What is a blackboard?" --session demo
    echo "long text" | crumb post - --session demo --ttl 1h
    crumb post --schema tool.catalog.v1 --tag tools --context @catalog.json
    """
    draft = Draft(text, session=session, schema=schema, title=title, tags=tag or (), context=context, ttl=ttl)
    document = draft.document()
    if to is not None:
        _address(document, to)
    check_encodable(document)
    with open_client(url, token) as first:  # without retries, to report a stopped server immediately
        first.request("GET", "/health")
    with open_client(url, token, retries=_POST_RETRIES) as client:
        reply = send_json(
            client, "POST", "/breadcrumbs", document, idempotency_key=idempotency_key or str(uuid4())
        )
    if for_people(as_json):
        replayed = reply.headers.get("idempotency-replayed") == "true"
        _print_posted(reply.json(), session, replayed)
    else:
        print_json(reply.json())
    return OK


def _address(document: dict[str, Any], agent: str) -> None:
    """Address a message to an agent."""
    if document.get("schema_name") != USER_MESSAGE:
        raise UsageError(f"--to is for messages: use it without --schema, or with --schema {USER_MESSAGE}")
    document["context"][ADDRESSEE] = agent


@dataclass(frozen=True, slots=True)
class Draft:
    """Arguments of `crumb post`. A text without a schema is a user's message."""

    text: str | None
    session: str | None = None
    schema: str | None = None
    title: str | None = None
    tags: Sequence[str] = ()
    context: str | None = None
    ttl: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the breadcrumb to send. Reads standard input and files if the arguments require it."""
        self._check()
        content = {} if self.context is None else read_context(self.context)
        text = sys.stdin.read().rstrip("\n") if self.text == "-" else self.text
        if text is not None:
            if "message" in content:
                raise UsageError(
                    "the text is stored in context.message, but --context also has a message: use one of them"
                )
            content = {"message": text, **content}
        schema = USER_MESSAGE if self._is_message else self.schema
        title = self.title if self.title is not None else _title_from(text)
        document: dict[str, Any] = {"title": title, "tags": self._all_tags(), "context": content}
        if schema is not None:
            document["schema_name"] = schema
        return document | ({} if self.ttl is None else read_ttl(self.ttl))

    @property
    def _is_message(self) -> bool:
        return self.schema is None and self.text is not None

    def _check(self) -> None:
        if self.text is None and self.context is None:
            raise UsageError(
                'nothing to post: add a text ("Hello"), - to read it from standard input, or --context'
            )
        if self.text == "-" and self.context == "-":
            raise UsageError("text and context cannot both come from standard input: use - only once")

    def _all_tags(self) -> list[str]:
        tags = list(self.tags)
        if self._is_message and "user:message" not in tags:
            tags.append("user:message")
        if self.session is not None:
            tags.append(f"session:{self.session}")
        return tags


def read_context(given: str) -> dict[str, Any]:
    """Parse `--context`. It is a JSON object, a file (`@name`) or standard input (`-`)."""
    import orjson

    if given == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    elif given.startswith("@"):
        where = given[1:]
        try:
            raw = Path(where).read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {where}: {error.strerror}") from None
    else:
        raw, where = given.encode("utf-8", "surrogateescape"), "--context"
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the context from {where} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"the context from {where} must be a JSON object: {{…}}")
    return document


def read_ttl(text: str) -> dict[str, Any]:
    """Parse `--ttl`. It is a duration, a time or `never`."""
    if text == "never":
        return {"ttl_type": "never"}
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return {"ttl_type": "duration", "ttl_config": {"duration": text}}
    return {"ttl_type": "datetime", "ttl": text}


def _title_from(text: str | None) -> str:
    return one_line(text, 80) if text else ""


def _print_posted(written: dict[str, Any], session: str | None, replayed: bool) -> None:
    where = f" in session [bold]{escaped(session)}[/]" if session else ""
    done = "[yellow]already posted[/]" if replayed else "[green]posted[/]"
    console().print(f"{done} {written['id']} (version {written['version']}){where}")


# get


@commands.command()
def get(
    id: Annotated[
        str, typer.Argument(help="Id of the breadcrumb, or its beginning.", autocompletion=breadcrumb_ids)
    ],
    full: Annotated[
        bool, typer.Option("--full", help="Show all fields, not only those that a model sees.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one breadcrumb.

    \b
    crumb get 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    crumb get 0197a3c4-5e6f --full | jq .context
    """
    with open_client(url, token) as client:
        path = path_of("breadcrumbs", find_breadcrumb(client, id), *(("full",) if full else ()))
        document = client.request("GET", path).json()
    if for_people(as_json):
        _print_breadcrumb(document)
    else:
        print_json(document)
    return OK


def _print_breadcrumb(document: dict[str, Any]) -> None:
    import orjson
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    out = console()
    out.print(f"[bold]{escaped(document.get('title') or '(no title)')}[/]")
    for name, value in document.items():
        if name in ("title", "context"):
            continue
        if isinstance(value, dict):
            value = orjson.dumps(value).decode()
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        out.print(f"  [dim]{escaped(name):17}[/] {escaped(str(shown))}")
    context = orjson.dumps(document.get("context", {}), option=orjson.OPT_INDENT_2).decode()
    out.print(JSONHighlighter()(Text(visible(context))))


# list


@commands.command("list")
def list_(
    session: SessionOption = None,
    schema: SchemaOption = None,
    tag: TagsOption = None,
    any_tag: AnyTagsOption = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="List all, without a limit.")] = False,
    sort: Annotated[
        str | None, typer.Option("--sort", help="created_at or updated_at. A - before it: newest first.")
    ] = None,
    context: Annotated[bool, typer.Option("--context", help="Include the contexts.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """List breadcrumbs, newest first.

    \b
    crumb list --session demo
    crumb list --schema agent.response.v1 --since 1h
    crumb list --tag extension:chat --any-tag red --any-tag blue
    crumb list --session demo --all | jq -r '.[].id'

    A breadcrumb must match all filters. Of several --any-tag, one match is enough.
    """
    last = None if everything else limit
    with open_client(url, token) as client:
        found = client.list(
            session=session,
            schema_name=schema,
            tags=tag or (),
            any_tags=any_tag or (),
            updated_since=None if since is None else read_since(since),
            sort=cast("Any", sort),  # the server checks it
            include_context=context,
            limit=None if last is None else last + 1,  # one more, to find out whether there are more
        )
        _show_list((crumb.document for crumb in islice(found, last)), context, as_json)
        if next(found, None) is not None:
            say(f"only the first {limit} are listed: use --limit or --all for more")
    return OK


def _show_list(documents: Iterator[Mapping[str, Any]], with_context: bool, as_json: bool) -> None:
    if not for_people(as_json):
        print_array(documents)
    elif rows := [_row_cells(document, with_context) for document in documents]:
        _print_rows(rows)
    else:
        say("nothing found")


def _print_rows(rows: list[list[str]]) -> None:
    """Print a table. If it is wider than the terminal, the ids are shortened to unique beginnings."""
    headers = ("created", "id", "v", "schema", "session", "title")
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(5)]
    if sum(widths) + 2 * 5 + _TITLE_WIDTH > console().width:
        length = unique_length([row[1] for row in rows])
        rows = [[row[0], row[1][:length], *row[2:]] for row in rows]
    print_columns(rows, ("dim", "cyan", "dim", "magenta", "green"), headers)


def _row_cells(item: Mapping[str, Any], with_context: bool) -> list[str]:
    import orjson

    gist = item["title"]
    if with_context:
        gist = f"{gist}  {orjson.dumps(item['context']).decode()}"
    cells = (
        shown_time(item["created_at"]),
        item["id"],
        str(item["version"]),
        item.get("schema_name", "-"),
        _session_in(item["tags"]) or "-",
        gist,
    )
    return [one_line(cell) for cell in cells]


def _session_in(tags: list[str]) -> str | None:
    return next((tag.removeprefix("session:") for tag in tags if tag.startswith("session:")), None)


# tail


@commands.command()
def tail(
    session: SessionOption = None,
    schema: SchemaOption = None,
    tag: TagsOption = None,
    any_tag: AnyTagsOption = None,
    since_id: Annotated[
        str | None, typer.Option("--since-id", help="Start after this event (event_id in the JSON).")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Follow events live: + created, ~ updated, - deleted.

    \b
    crumb tail --session demo
    crumb tail --schema agent.response.v1 | jq -r .context.message

    A lost connection is restored automatically, and the events in between are shown. Ctrl-C stops.
    """
    from breadcrumbs.client.values import Delta, Gap

    show = _print_event if for_people(as_json) else _print_event_line
    with open_client(url, token) as client:
        events = client.events(
            session=session,
            schema_name=schema,
            tags=tag or (),
            any_tags=any_tag or (),
            last_event_id=since_id,
            on_connection=_ConnectionNotices().on_change,
        )
        for event in events:
            if isinstance(event, Gap):
                say("some events are no longer stored: use crumb list to read the current breadcrumbs")
            elif not isinstance(event, Delta):
                show(event.document, event.event_id)
    raise AssertionError("the event stream ended")


class _ConnectionNotices:
    """Reports a lost connection once, even if several reconnects fail."""

    def __init__(self) -> None:
        self._is_lost = False

    def on_change(self, state: str, reason: str) -> None:
        if state == "lost" and not self._is_lost:
            say(f"connection lost ({reason}), reconnecting …")
        elif state == "back":
            say("connected again, no event was missed")
        self._is_lost = state == "lost"


def _print_event_line(event: Mapping[str, Any], event_id: str | None) -> None:
    print_line({**event, "event_id": event_id} if event_id is not None else event)


def _print_event(event: Mapping[str, Any], _: str | None) -> None:
    from rich.text import Text

    operation = event.get("operation") or str(event.get("type", "")).rpartition(".")[2]
    mark, colour = _EVENT_MARKS.get(operation, ("?", "white"))
    line = Text()
    line.append(f"{shown_time(event['updated_at'])} ", style="dim")
    line.append(f"{mark} ", style=f"bold {colour}")
    line.append(f"{one_line(event.get('schema_name') or '(no schema)', 60)} ", style="magenta")
    line.append(f"{one_line(_session_in(event.get('tags', [])) or '-', 40)} ", style="cyan")
    line.append(_event_gist(event))
    line.append(f"  {event['breadcrumb_id']}", style="dim")
    console().print(line)


def _event_gist(event: Mapping[str, Any]) -> str:
    """Return the message of an event, its title, or its context as JSON, in one line."""
    import orjson

    from breadcrumbs.runtime.breadcrumb.text import find_text

    context = event.get("context") or {}
    for text in (find_text(context), event.get("title")):
        if isinstance(text, str) and text.strip():
            return one_line(text, 160)
    return one_line(orjson.dumps(context).decode(), 160) if context else ""


# history


@commands.command()
def history(
    id: Annotated[
        str, typer.Argument(help="Id of the breadcrumb, or its beginning.", autocompletion=breadcrumb_ids)
    ],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the versions of a breadcrumb and their changes.

    \b
    crumb history 0197a3c4-5e6f
    """
    with open_client(url, token) as client:
        versions = _read_versions(client, find_breadcrumb(client, id))
    if for_people(as_json):
        _print_versions(versions)
    else:
        print_json(versions)
    return OK


def _read_versions(client: Client, id: str) -> list[dict[str, Any]]:
    path: str | None = path_of("breadcrumbs", id, "history")
    versions: list[dict[str, Any]] = []
    while path is not None:
        reply = client.request("GET", path)
        versions += reply.json()
        path = next_page(reply)
    return versions


def _print_versions(versions: list[dict[str, Any]]) -> None:
    out = console()
    ordered = sorted(versions, key=lambda version: int(version["version"]), reverse=True)
    for version, before in zip(ordered, [*ordered[1:], None], strict=True):
        by = f" by {version['updated_by']}" if version.get("updated_by") else ""
        out.print(f"[bold]version {version['version']}[/]  {shown_time(version['updated_at'])}{escaped(by)}")
        for line in changed_lines(before, version):
            out.print(f"  {escaped(line)}", style={"+": "green", "-": "red"}.get(line[0], "dim"))


def changed_lines(before: dict[str, Any] | None, after: dict[str, Any]) -> list[str]:
    """Compare two versions. Return lines that begin with + or -."""
    from difflib import unified_diff

    if before is None:
        return []
    changed = list(unified_diff(_content_lines(before), _content_lines(after), n=0, lineterm=""))
    return [line for line in changed[2:] if not line.startswith("@@")]


def _content_lines(version: dict[str, Any]) -> list[str]:
    import orjson

    lines = []
    for name, value in version.items():
        if name in _METADATA:
            continue
        if isinstance(value, dict):
            lines += [f"{name}.{key}: {orjson.dumps(part).decode()}" for key, part in value.items()]
        else:
            lines.append(f"{name}: {orjson.dumps(value).decode()}")
    return lines


# delete


@commands.command()
def delete(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Ids of the breadcrumbs, or their beginnings.",
            autocompletion=breadcrumb_ids,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Delete breadcrumbs with all their versions.

    \b
    crumb delete 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    crumb list --session old --all | jq -r '.[].id' | xargs crumb delete --yes
    """
    with open_client(url, token) as client:
        whole_ids = [find_breadcrumb(client, id) for id in ids]
        what = whole_ids[0] if len(ids) == 1 else f"these {len(ids)} breadcrumbs"
        if not yes and not confirm(f"Delete {what} with all versions?"):
            return PROBLEM
        results = [_delete_one(client, id) for id in whole_ids]
    if for_people(as_json):
        for result in results:
            if result["deleted"]:
                console().print(f"[green]deleted[/] {result['id']}")
    else:
        print_json(results)
    return OK if all(result["deleted"] for result in results) else PROBLEM


def _delete_one(client: Client, id: str) -> dict[str, Any]:
    from breadcrumbs.client.errors import BreadcrumbsError

    try:
        with command_errors(client.url):
            client.request("DELETE", path_of("breadcrumbs", id))
    except BreadcrumbsError as error:
        fail(f"{id}: {error}")
        return {"id": id, "deleted": False, "error": str(error)}
    return {"id": id, "deleted": True}
