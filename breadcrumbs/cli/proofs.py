"""The command `crumb verify`: rebuilds the requests of past answers and compares them with their receipts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.client import open_client, path_of
from breadcrumbs.cli.completion import session_names
from breadcrumbs.cli.contexts import (
    ContextUrlOption,
    Place,
    RequiredOwnerOption,
    choose_owner,
    choose_place,
    on_store,
)
from breadcrumbs.cli.id_prefixes import (
    MAX_CANDIDATES,
    choose_id,
    find_breadcrumb,
    find_session,
    is_id_prefix,
)
from breadcrumbs.cli.options import ConfigOption, DataOption, JsonOption, RedisOption, TokenOption, read_owner
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    USAGE,
    UsageError,
    console,
    for_people,
    visible,
)
from breadcrumbs.runtime.errors import BreadcrumbsError, NotFound
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, RECEIPT

if TYPE_CHECKING:
    from uuid import UUID

    from breadcrumbs.client.sync import Client
    from breadcrumbs.runtime.settings.settings import Settings
    from breadcrumbs.runtime.store.store import Store

commands = typer.Typer()

_PROGRESS_EVERY = 100


@commands.command()
def verify(
    answers: Annotated[
        list[str] | None, typer.Argument(metavar="ANSWER", help="Ids of answers, or their beginnings.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", "-s", help="Verify all answers of a session.", autocompletion=session_names
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify all answers.")] = False,
    owner: RequiredOwnerOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    url: ContextUrlOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Prove that answers were made with the stored prompts.

    \b
    crumb verify 0197a3c4
    crumb verify --session demo
    crumb verify --all --json | jq .summary

    Rebuilds each request to the model from the stored versions, without calling
    the model, and compares its bytes with the receipt of the answer.

    \b
    Exit codes: 0 equal
                1 different: prints the first difference and its cause
                2 not rebuildable: prints what was deleted
    """
    wanted = (bool(answers), session is not None, everything)
    if sum(wanted) != 1:
        raise UsageError("choose what to verify: ids of answers, --session or --all")
    report = _Report(for_people(as_json), lists_equal=bool(answers))
    try:
        place = choose_place(Place(config, data, redis, owner, url))
        with report.running():
            if isinstance(place, str):
                with open_client(place, token) as client:
                    _verify_on_server(client, answers or [], session, report)
            else:
                _verify_stored(place, read_owner(owner), answers or [], session, report)
    except BreadcrumbsError as error:
        raise UsageError(str(error)) from None  # exit code 2, because 1 means that a request differs
    return report.exit_code


class _Report:
    """Prints results as they arrive, and counts them."""

    def __init__(self, is_text: bool, *, lists_equal: bool) -> None:
        self._is_text = is_text
        self._lists_equal = lists_equal
        self.counts = {"equal": 0, "different": 0, "not rebuildable": 0}
        self.without_receipt = 0
        self._on_progress: Callable[[int], None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the progress on a terminal, and print the summary at the end."""
        if sys.stderr.isatty():
            with console(stderr=True).status("verifying …") as status:
                self._on_progress = lambda count: status.update(f"verifying … {count:,} answers")
                yield
        else:
            yield
        self._print_summary()

    def add(self, result: dict[str, Any]) -> None:
        """Print one result. Only the counts are kept."""
        import orjson

        if not self._is_text:
            sys.stdout.write(self._separator() + orjson.dumps(result).decode())
        self.counts[result["outcome"]] += 1
        if self._on_progress is not None and self.verified % _PROGRESS_EVERY == 0:
            self._on_progress(self.verified)
        if self._is_text and (self._lists_equal or result["outcome"] != "equal" or "edited" in result):
            _print_result(result)

    def _separator(self) -> str:
        # Printed with the first result: an error before it leaves standard output empty.
        return ",\n  " if self.verified else '{"answers": [\n  '

    @property
    def verified(self) -> int:
        return sum(self.counts.values())

    @property
    def exit_code(self) -> int:
        if self.counts["different"]:
            return PROBLEM
        return USAGE if self.counts["not rebuildable"] else OK

    def _print_summary(self) -> None:
        import orjson

        if not self._is_text:
            names = {name.replace(" ", "_"): count for name, count in self.counts.items()}
            summary = {"verified": self.verified, **names, "without_receipt": self.without_receipt}
            opening = "" if self.verified else '{"answers": ['
            sys.stdout.write(f'{opening}\n], "summary": {orjson.dumps(summary).decode()}}}\n')
            return
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if count)
        text = f"{self.verified:,} answer{'' if self.verified == 1 else 's'} verified"
        if counts:
            text += f": {counts}"
        if self.without_receipt:
            text += (
                f". {self.without_receipt:,} without a receipt, made before receipts existed or by a client"
            )
        console().print(text, style="green" if self.exit_code == OK else "yellow", markup=False)


def _print_result(result: dict[str, Any]) -> None:
    out = console()
    requests = result["requests"]
    compared = (
        f" ({requests} request{'' if requests == 1 else 's'})"
        if requests
        else " (context only: the ADK server makes its own requests)"
        if result["outcome"] == "equal"
        else ""
    )
    style = {"equal": "green", "different": "bold red"}.get(result["outcome"], "yellow")
    out.print(f"{visible(result['answer_id'])}  {result['outcome']}{compared}", style=style, markup=False)
    if result.get("edited"):
        out.print("  the text was edited since: the proof is about the first version", style="yellow")
    if difference := result.get("difference"):
        out.print(f"  first difference: {visible(difference['where'])}", markup=False)
        out.print(f"  cause: {visible(difference['cause'])}", markup=False)
    for missing in result.get("missing", []):
        out.print(f"  {visible(missing['reason'])}", markup=False)


# The store


def _verify_stored(
    settings: Settings, named: UUID | None, answers: list[str], session: str | None, report: _Report
) -> None:
    async def work(store: Store) -> None:
        owner = choose_owner(settings, named)
        if answers:
            await _verify_ids(store, owner, answers, report)
        else:
            await _verify_many(store, owner, session, report)

    on_store(settings, work)


async def _verify_ids(store: Store, owner: UUID, answers: list[str], report: _Report) -> None:
    from breadcrumbs.proofs.verification import verify_answer
    from breadcrumbs.runtime.breadcrumb.ids import parse_id

    results = []
    for text in [await find_answer(store, owner, text) for text in answers]:
        try:
            results.append(await verify_answer(store, owner, parse_id(text, what="the id of an answer")))
        except NotFound:
            raise UsageError(f"answer {text!r} not found") from None
    for result in results:  # after the last id, because an unknown one is an error before anything is printed
        report.add(result.as_dict())


async def find_answer(store: Store, owner: UUID, text: str) -> str:
    """Return the id of an answer from its beginning."""
    from breadcrumbs.proofs.verification import is_answer
    from breadcrumbs.runtime.breadcrumb.query import Query

    if not is_id_prefix(text):
        return text
    candidates: list[tuple[str, str]] = []
    async for crumb in store.walk(owner, Query(keep=is_answer)):
        candidates.append((str(crumb.id), crumb.title))
        if len(candidates) == MAX_CANDIDATES:
            break
    return choose_id(text, candidates, "answer")


async def _verify_many(store: Store, owner: UUID, session: str | None, report: _Report) -> None:
    from breadcrumbs.proofs.verification import Summary, verify_all
    from breadcrumbs.runtime.sessions.sessions import Sessions

    if session is not None and await Sessions(store).belonging(owner, session) is None:
        raise UsageError(f"session {session!r} not found")
    summary = Summary()
    async for result in verify_all(store, owner, session, summary):
        report.add(result.as_dict())
    report.without_receipt = summary.without_receipt


# The server


def _verify_on_server(client: Client, answers: list[str], session: str | None, report: _Report) -> None:
    if answers:
        results = [_ask_for_one(client, find_breadcrumb(client, text)) for text in answers]
        for (
            result
        ) in results:  # after the last id, because an unknown one is an error before anything is printed
            report.add(result)
        return
    found = client.list() if session is None else client.list(session=find_session(client, session))
    for crumb in found:
        _verify_listed(client, crumb.document, report)


def _ask_for_one(client: Client, id: str) -> dict[str, Any]:
    try:
        return _ask_server(client, id)
    except NotFound as error:
        try:
            client.request("GET", path_of("breadcrumbs", id))
        except NotFound:
            raise UsageError(f"answer {id!r} not found") from None
        return _without_proof(id, "receipt", error)


def _verify_listed(client: Client, document: Mapping[str, Any], report: _Report) -> None:
    """Verify a listed breadcrumb if it is an answer, or was one before it was edited."""
    context = document.get("context", {})
    receipt, creator = context.get(RECEIPT), context.get("creator")
    is_answer = isinstance(creator, dict) and creator.get("type") == "agent" and "trigger_id" in context
    is_edited = document["version"] > 1 and document.get("schema_name") != AGENT_CONTEXT
    if not isinstance(receipt, dict) or receipt.keys().isdisjoint(("setup", "copy_of")):
        receipt = {}
    if not receipt and not is_edited:
        report.without_receipt += is_answer
        return
    try:
        report.add(_ask_server(client, document["id"]))
    except NotFound as error:
        if "copy_of" in receipt:
            report.add(_without_proof(document["id"], "answer", error))
        else:
            report.without_receipt += is_answer  # written by a client


def _without_proof(id: str, kind: str, error: NotFound) -> dict[str, Any]:
    missing = [{"kind": kind, "id": id, "reason": str(error)}]
    return {"answer_id": id, "outcome": "not rebuildable", "requests": 0, "missing": missing}


def _ask_server(client: Client, id: str) -> dict[str, Any]:
    path = path_of("breadcrumbs", id, "receipt")
    document: dict[str, Any] = client.request("GET", path, params={"verify": "true"}).json()
    known = {name: document[name] for name in ("answer_id", "session_id", "agent_id") if name in document}
    return {**known, **document["verification"]}
