"""The command `crumb replay`: calls a model again with the prompt of a past answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.client import open_client, path_of
from breadcrumbs.cli.contexts import (
    ContextUrlOption,
    Place,
    RequiredOwnerOption,
    choose_owner,
    choose_place,
    on_store,
    read_configs,
)
from breadcrumbs.cli.id_prefixes import find_breadcrumb
from breadcrumbs.cli.options import DataOption, JsonOption, RedisOption, TokenOption, read_owner
from breadcrumbs.cli.output import OK, PROBLEM, CommandError, UsageError, console, for_people, print_json
from breadcrumbs.cli.proofs import find_answer
from breadcrumbs.cli.replay_display import add_costs, print_replays
from breadcrumbs.runtime.errors import Forbidden, InvalidInput, NotFound, StartupError

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.agents.definition import AgentDefinition
    from breadcrumbs.agents.models.prices import Price
    from breadcrumbs.client.sync import Client
    from breadcrumbs.context_builder.config import ContextConfig
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

commands = typer.Typer()

MAX_TIMES = 10
"""The same limit as `breadcrumbs.proofs.replay.MAX_TIMES`, without loading that module for the help."""
_SERVER_SECONDS = 330.0  # the server ends a replay after 300 s


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The arguments of a replay."""

    answer: str
    model: str | None
    configs: tuple[ContextConfig, ...]
    config_text: bytes
    agent: AgentDefinition | None
    agent_text: bytes
    times: int


@dataclass(slots=True)
class _Collected:
    """The replays so far, as one document."""

    times: int
    document: dict[str, Any] = field(default_factory=dict)
    on_progress: Callable[[str], None] = lambda text: None

    def add(self, document: dict[str, Any]) -> bool:
        """Add the document of one replay. Return whether to go on."""
        if self.document:
            self.document["replays"] += document["replays"]
        else:
            self.document = document
        replays = self.document["replays"]
        return len(replays) < self.times and "error" not in replays[-1]

    def announce(self, characters: int = 0) -> None:
        number = len(self.document.get("replays", ())) + 1
        of = f" {number} of {self.times}" if self.times > 1 else ""
        text = f", {characters:,} characters" if characters else ""
        self.on_progress(f"replay{of} … {text}".replace(" … ,", " …"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the progress on standard error, if it is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        with console(stderr=True).status("replay …") as status:
            self.on_progress = status.update
            yield


@commands.command()
def replay(
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="Id of an answer, or its beginning.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model to call. [default: that of the answer]")
    ] = None,
    context_config: Annotated[
        Path | None, typer.Option("--config", help="Context config to build the prompt with (JSON).")
    ] = None,
    agent: Annotated[
        Path | None, typer.Option("--agent", help="Agent definition to use instead (JSON).")
    ] = None,
    times: Annotated[
        int, typer.Option("--times", min=1, max=MAX_TIMES, help="How often to replay the answer.")
    ] = 1,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            metavar="IN,OUT",
            help="Price of a million tokens, such as 0.4,1.6. [default: models.prices]",
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--save-test", help="Write the conversation with the new answer as a pytest test (.py)."
        ),
    ] = None,
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
    """Ask the model of an answer again, and compare.

    \b
    crumb replay 0197a3c4
    crumb replay 0197a3c4 --model openai:gpt-4.1-mini --times 3
    crumb replay 0197a3c4 --config context.json --agent assistant.json
    crumb replay 0197a3c4 --save-test tests/test_refund.py

    Rebuilds the prompt from the stored versions and calls the model. Tool calls
    get the stored responses: no tool runs. Nothing is written to the store.

    \b
    Exit codes: 0 done
                1 the model failed
                2 not rebuildable, unknown id, not an answer, invalid file
    """
    rate = None if price is None else _read_price(price)
    collected = _Collected(times)
    try:
        place = choose_place(Place(settings, data, redis, owner, url))
        wanted = _read_wanted(answer, model, context_config, agent, times)
        with collected.running():
            if isinstance(place, str):
                with open_client(place, token, timeout=_SERVER_SECONDS) as client:
                    _replay_on_server(client, wanted, collected)
            else:
                _replay_stored(place, read_owner(owner), wanted, collected)
        if test is not None:
            _save_test(place, token, read_owner(owner), wanted, collected, test)
    except KeyboardInterrupt:
        _print(collected, rate, as_json=as_json)
        raise
    _print(collected, rate, as_json=as_json)
    failed = any("error" in one for one in collected.document["replays"])
    return PROBLEM if failed else OK


def _save_test(
    place: Settings | str,
    token: str | None,
    owner: UUID | None,
    wanted: _Wanted,
    collected: _Collected,
    path: Path,
) -> None:
    """Write the session up to the answer as a test, with the last replay as the answer."""
    import orjson

    from breadcrumbs.cli.recorded_tests import save_test, update_prompts, with_replay

    document = collected.document
    if "error" in document["replays"][-1]:
        raise UsageError("the replay failed, so there is no answer to save as a test")
    if "session_id" not in document:
        raise UsageError("the answer has no session, so it cannot become a test")
    recording = with_replay(_read_recording(place, token, owner, document), document)
    if wanted.agent is not None:
        from breadcrumbs.agents.setups import definition_document

        recording["agents"][wanted.agent.agent_id] = definition_document(wanted.agent)
    for config in wanted.configs:
        recording["configs"][config.consumer_id] = config.archived_document()
    files = save_test(orjson.loads(orjson.dumps(recording)), path, force=False)
    update_prompts(files[0])
    console(stderr=True).print(f"wrote {files[0]} and {files[1]}", highlight=False)


def _read_recording(
    place: Settings | str, token: str | None, owner: UUID | None, document: dict[str, Any]
) -> dict[str, Any]:
    session, answer = document["session_id"], document["answer_id"]
    if isinstance(place, str):
        with open_client(place, token) as client:
            path = path_of("sessions", session, "recording")
            recording: dict[str, Any] = client.request("GET", path, params={"until": answer}).json()
            return recording

    from uuid import UUID

    from breadcrumbs.proofs.recording import NotRecordable, record_session

    async def work(store: Store) -> dict[str, Any]:
        return await record_session(store, choose_owner(place, owner), session, until=UUID(answer))

    try:
        return on_store(place, work)
    except NotRecordable as error:
        raise UsageError(str(error)) from None


def _print(collected: _Collected, price: Price | None, *, as_json: bool) -> None:
    document = collected.document
    if not document:
        return
    texts = [one["text"] for one in document["replays"] if "text" in one]
    document["same"] = sum(one.get("same", False) for one in document["replays"])
    document["distinct"] = len(set(texts))
    if price is not None:
        add_costs(document, price)
    if for_people(as_json):
        print_replays(document)
    else:
        print_json(document)


def _read_price(text: str) -> Price:
    from breadcrumbs.agents.models.prices import Price

    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        prompt = completion = -1.0
    if not (0 <= prompt < 1e9 and 0 <= completion < 1e9):
        raise UsageError("--price needs two prices per million tokens, for input and output, such as 0.4,1.6")
    return Price(prompt, completion)


def _read_wanted(
    answer: str, model: str | None, config: Path | None, agent: Path | None, times: int
) -> _Wanted:
    from breadcrumbs.agents.agents_in_force import parse_definition
    from breadcrumbs.context_builder.config_checks import ConfigError

    try:
        configs = () if config is None else read_configs(config)
        config_text = b"" if config is None else config.read_bytes()
        agent_text = b"" if agent is None else agent.read_bytes()
        definition = None if agent is None else parse_definition(str(agent), agent_text)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    except (CommandError, ConfigError, StartupError) as error:
        raise UsageError(str(error)) from None
    return _Wanted(answer, model, configs, config_text, definition, agent_text, times)


# The store


def _replay_stored(settings: Settings, named: UUID | None, wanted: _Wanted, collected: _Collected) -> None:
    from breadcrumbs.proofs.replay import NotReplayable

    async def work(store: Store) -> None:
        await _replay_with(store, settings, choose_owner(settings, named), wanted, collected)

    try:
        on_store(settings, work)
    except NotReplayable as error:
        raise UsageError(_with_missing(str(error), [one.reason for one in error.missing])) from None
    except (CommandError, NotFound, InvalidInput, StartupError) as error:
        raise UsageError(str(error)) from None


async def _replay_with(
    store: Store, settings: Settings, owner: UUID, wanted: _Wanted, collected: _Collected
) -> None:
    from breadcrumbs.composition.replays import replay_models
    from breadcrumbs.proofs.replay import Changes, prepare, replay_document, replay_once
    from breadcrumbs.runtime.breadcrumb.ids import parse_id

    id = parse_id(await find_answer(store, owner, wanted.answer), what="the id of an answer")
    answer = await store.get(owner, id, count_read=False)
    changes = Changes(wanted.configs, wanted.agent)
    async with replay_models(settings) as models:
        prompt = await prepare(store, answer, changes, models.tool_specs)
        model = models.choose(prompt, wanted.model, changes, trusted=True)
        while True:
            counter = _Characters(collected)
            collected.announce()
            seconds = prompt.definition.timeout_seconds
            result = await replay_once(prompt, model, seconds=seconds, on_text=counter.count)
            if not collected.add(replay_document(prompt, [result], models.prices)):
                return


class _Characters:
    """Counts the characters of a reply while it arrives."""

    def __init__(self, collected: _Collected) -> None:
        self._collected = collected
        self._count = 0

    async def count(self, text: str) -> None:
        self._count += len(text)
        self._collected.announce(self._count)


def _with_missing(reason: str, missing: list[str]) -> str:
    return "\n".join([reason, *(f"  {one}" for one in missing if one != reason)])


# The server


def _replay_on_server(client: Client, wanted: _Wanted, collected: _Collected) -> None:
    import orjson

    from breadcrumbs.client.errors import ProblemError

    body: dict[str, Any] = {}
    if wanted.model is not None:
        body["model"] = wanted.model
    if wanted.configs:
        body["config"] = orjson.loads(wanted.config_text)
    if wanted.agent is not None:
        body["agent"] = orjson.loads(wanted.agent_text)
    try:
        path = path_of("breadcrumbs", find_breadcrumb(client, wanted.answer), "replay")
        while True:
            # One request per replay: the progress is shown, and Ctrl-C stops after the current one.
            collected.announce()
            if not collected.add(client.request("POST", path, json=body).json()):
                return
    except (CommandError, NotFound, InvalidInput, Forbidden) as error:
        raise UsageError(str(error)) from None
    except ProblemError as error:
        if not error.type.endswith("not-replayable"):
            raise
        missing = [str(one.get("reason", "")) for one in error.document.get("missing", ())]
        raise UsageError(_with_missing(error.detail, missing)) from None
