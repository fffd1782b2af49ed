"""Tests a changed context config on past turns, without a model.

Each past turn is assembled twice, with the config of that time and with the changed one, from the breadcrumbs in the
versions of that time. Nothing is written.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import anyio.to_thread
import orjson

from breadcrumbs.context_builder.assembly import Assembled, ContextItem, TriggerWithheld, render_item
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.context_builder.past import (
    PastTurn,
    PastView,
    TriggerGone,
    assemble_past,
    reassemble_turn,
)
from breadcrumbs.context_builder.prefix_reuse import shared_prefix
from breadcrumbs.context_builder.references import ContextRecord, NotAContext, read_record
from breadcrumbs.context_builder.timeline import ContextVersions, SessionTimeline, SharedPools
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import USER, users_of
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.retrieval.histories import HistoryReader
from breadcrumbs.runtime.retrieval.past import Keep, keep_all
from breadcrumbs.runtime.store.store import Store

MAX_LISTED: Final = 100
"""Maximum number of changed turns and of crossed boundaries that a report lists. All are counted."""
MAX_LISTED_ITEMS: Final = 10_000
"""Maximum number of changed items in the listed turns. Further turns are counted, but not listed."""

_T = TypeVar("_T")

OldConfig = Callable[[str], Awaitable[ContextConfig | None]]
"""Returns the config with a digest, or None if it is not known."""


class Position(NamedTuple):
    """Position in a run: the last version of a context that was finished.

    Its text form is a cursor. It contains nothing that must be kept secret.
    """

    created: int
    """Time of creation of the context."""
    id: str
    version: int

    def __str__(self) -> str:
        return f"{self.created}.{self.id}.{self.version}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position in a cursor. Raise `ValueError` if it is not valid."""
        created, id, version = text.split(".")
        if not all(part.isascii() and part.isdigit() and len(part) <= 17 for part in (created, version)):
            raise ValueError(text)
        return cls(int(created), str(UUID(id)), int(version))


@dataclass(frozen=True, slots=True)
class ContextTestRequest:
    """The config to test and the turns to test it on."""

    owner_id: UUID
    config: ContextConfig
    session_id: str | None = None
    """None: all sessions."""
    since: int = 0
    """Skip turns before this time, in microseconds."""
    sample: int | None = None
    """Number of turns to test, chosen evenly. None: all."""
    sees: Keep = keep_all
    """Whether the reader may see a breadcrumb. Others are treated as missing."""
    sees_session: Callable[[Breadcrumb], Awaitable[bool]] | None = None
    """Whether the reader may see the session of a context. None: all sessions."""
    after: Position | None = None
    """Continue after this position."""
    in_thread: bool = False
    """Assemble in a thread, so that other requests of the process continue. It costs 0.1 ms per turn."""


class Crossing(NamedTuple):
    """An item that the changed config would take from another session or user."""

    trigger_id: str
    session_id: str | None
    item_id: str
    source: str
    boundary: str
    """`session` or `user`."""
    origin: str
    """The other session or user."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The comparison of one turn."""

    context_id: str
    context_version: int
    position: Position
    session_id: str | None
    trigger_id: str
    at: int
    tokens: tuple[int, int] = (0, 0)
    """Tokens with the old and with the changed config."""
    bytes: tuple[int, int] = (0, 0)
    repeated: tuple[int, int] | None = None
    """Bytes that repeat the beginning of the previous prompt. None: the previous turn was not tested."""
    added: tuple[tuple[str, str], ...] = ()
    """Source and id of the items that only the changed config includes."""
    removed: tuple[tuple[str, str], ...] = ()
    crossings: tuple[Crossing, ...] = ()
    changed: bool = False
    gone: tuple[str, ...] = ()
    """Items of the stored context that no longer exist. Both sides were assembled without them."""
    skipped: str | None = None
    """Reason why the turn could not be tested."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "trigger_id": self.trigger_id,
            "context_id": self.context_id,
            "context_version": self.context_version,
            "tokens": list(self.tokens),
            "added": _listed_items(self.added),
            "removed": _listed_items(self.removed),
        }


@dataclass(slots=True)
class ContextTestReport:
    """Totals of a run. They can be stored and continued."""

    turns: int = 0
    changed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Turns that could not be tested, by reason."""
    with_gone: int = 0
    """Tested turns with items that no longer exist."""
    added: Counter[str] = field(default_factory=Counter)
    """Items that only the changed config includes, by source."""
    removed: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    """Bytes of the prompts that have a previous one."""
    repeated: list[int] = field(default_factory=lambda: [0, 0])
    crossings: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)
    """The first changed turns."""
    listed_crossings: list[dict[str, Any]] = field(default_factory=list)
    position: Position | None = None

    def add(self, result: TurnResult) -> None:
        self.position = result.position
        if result.skipped is not None:
            self.skipped[result.skipped] += 1
            return
        self.turns += 1
        self.with_gone += bool(result.gone)
        for side in (0, 1):
            self.tokens[side] += result.tokens[side]
            if result.repeated is not None:
                self.bytes[side] += result.bytes[side]
                self.repeated[side] += result.repeated[side]
        self.crossings += len(result.crossings)
        room = MAX_LISTED - len(self.listed_crossings)
        self.listed_crossings += [crossing._asdict() for crossing in result.crossings[:room]]
        if result.changed:
            self.changed += 1
            self.added.update(source for source, _ in result.added)
            self.removed.update(source for source, _ in result.removed)
            if len(self.listed) < MAX_LISTED and self._count_listed_items() < MAX_LISTED_ITEMS:
                self.listed.append(result.as_dict())

    def _count_listed_items(self) -> int:
        return sum(len(turn["added"]) + len(turn["removed"]) for turn in self.listed)

    @property
    def reuse(self) -> tuple[float, float] | None:
        """Share of the prompt bytes that repeat the previous prompt, old and new. None: no pair of turns was tested."""
        if not self.bytes[0] or not self.bytes[1]:
            return None
        return self.repeated[0] / self.bytes[0], self.repeated[1] / self.bytes[1]

    def as_dict(self) -> dict[str, Any]:
        """Return the totals as JSON. `from_dict` reads them again."""
        reuse = self.reuse
        sources = sorted(self.added.keys() | self.removed.keys())
        return {
            "turns": self.turns,
            "changed": self.changed,
            "skipped": dict(sorted(self.skipped.items())),
            "turns_with_gone_items": self.with_gone,
            "sources": [
                {"key": key, "added": self.added[key], "removed": self.removed[key]} for key in sources
            ],
            "tokens": _pair(self.tokens),
            "prompt_bytes": _pair(self.bytes),
            "repeated_bytes": _pair(self.repeated),
            "prefix_reuse": None if reuse is None else _pair([round(share, 4) for share in reuse]),
            "boundary_crossings": self.crossings,
            "crossings": self.listed_crossings,
            "changed_turns": self.listed,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ContextTestReport:
        """Return totals that `as_dict` returned. Raise `ValueError` if they are not valid."""
        try:
            return cls(
                document["turns"],
                document["changed"],
                Counter(document["skipped"]),
                document["turns_with_gone_items"],
                Counter({entry["key"]: entry["added"] for entry in document["sources"]}),
                Counter({entry["key"]: entry["removed"] for entry in document["sources"]}),
                _unpair(document["tokens"]),
                _unpair(document["prompt_bytes"]),
                _unpair(document["repeated_bytes"]),
                document["boundary_crossings"],
                list(document["changed_turns"]),
                list(document["crossings"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the report of a context test: {error}") from None

    def merge(self, other: ContextTestReport) -> None:
        """Add the totals of another part of the same run."""
        self.turns += other.turns
        self.changed += other.changed
        self.with_gone += other.with_gone
        self.crossings += other.crossings
        for mine, others in (
            (self.skipped, other.skipped),
            (self.added, other.added),
            (self.removed, other.removed),
        ):
            mine.update(others)
        for side in (0, 1):
            self.tokens[side] += other.tokens[side]
            self.bytes[side] += other.bytes[side]
            self.repeated[side] += other.repeated[side]
        self.listed += other.listed[: MAX_LISTED - len(self.listed)]
        self.listed_crossings += other.listed_crossings[: MAX_LISTED - len(self.listed_crossings)]
        self.position = other.position or self.position


def _listed_items(items: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"source": source, "id": id} for source, id in items[:MAX_LISTED_ITEMS]]


def _pair(values: Sequence[float]) -> dict[str, Any]:
    return {"old": values[0], "new": values[1]}


def _unpair(values: Mapping[str, int]) -> list[int]:
    return [values["old"], values["new"]]


# Running


class ContextTester:
    """Compares past turns with two configs. It reads each session once."""

    def __init__(self, store: Store, request: ContextTestRequest, old_config: OldConfig) -> None:
        self._request = request
        self._reader = HistoryReader(store, request.owner_id)
        self._shared = SharedPools(self._reader)
        self._view = PastView(self._reader, request.sees)
        self._old_config = old_config
        self._configs: dict[str, ContextConfig | None] = {request.config.digest: request.config}
        self._share: float | None = None

    async def count_turns(self, *, seconds: float = math.inf) -> int:
        """Return the number of stored versions of contexts. It is at least the number of turns.

        A run that continues counts the versions before its position too, so all its parts choose the same sample. After
        `seconds`, the remaining ones are not counted.
        """
        count, end = 0, time.monotonic() + seconds
        async for context in self._contexts(None):
            count += context.version
            if time.monotonic() > end:
                break
        return count

    async def run(self) -> AsyncIterator[TurnResult]:
        """Yield the comparison of each turn, session by session."""
        request = self._request
        if request.sample is not None:
            total = max(1, await self.count_turns())
            self._share = min(1.0, request.sample / total)
        async for context in self._contexts(request.after):
            first = 1
            if request.after is not None and (context.created, str(context.id)) == request.after[:2]:
                first = request.after.version + 1
            if first <= context.version:
                async for result in self._run_context(context, first):
                    yield result

    async def _contexts(self, after: Position | None) -> AsyncIterator[Breadcrumb]:
        """Yield the contexts of the consumer from a position on, the oldest first."""
        request, store = self._request, self._reader.store
        query = Query(
            schema_name=request.config.output.schema_name,
            session_id=request.session_id,
            sort="created_at",
            created_since=None if after is None else after.created,
            updated_since=request.since or None,
            without_contexts=True,
            limit=100,
            max_bytes=8 << 20,
        )
        async for crumb in store.walk(request.owner_id, query):
            if after is not None and (crumb.created, str(crumb.id)) < after[:2]:
                continue
            # A paused context has no consumer tag. An imported one can have an id of another lane.
            is_own = request.config.consumer_tag in crumb.tags or (
                crumb.id == context_id(store, request.config, crumb)
            )
            if crumb.session_id is None or not is_own:
                continue
            if request.sees_session is None or await request.sees_session(crumb):
                yield crumb

    async def _run_context(self, newest: Breadcrumb, first: int) -> AsyncIterator[TurnResult]:
        pending: tuple[Breadcrumb, ContextRecord] | None = None
        session = _SessionRun(self, newest)
        async for version in ContextVersions(self._reader, newest).since(first):
            try:
                record = read_record(version)
            except NotAContext:
                continue
            if record.as_of < self._request.since:
                continue
            # A context that was built again for the same message replaces the earlier one.
            if pending is not None and _trigger(pending[1]) != _trigger(record):
                if self._is_chosen(pending[0]):
                    yield await session.compare(*pending)
                else:
                    session.pass_over()
            pending = version, record
        if pending is not None and self._is_chosen(pending[0]):
            yield await session.compare(*pending)

    def _is_chosen(self, context: Breadcrumb) -> bool:
        """Return whether a turn belongs to the sample. The same turns are chosen each time."""
        if self._share is None:
            return True
        number = sha256(b"%s %d" % (context.id.bytes, context.version)).digest()[:8]
        return int.from_bytes(number) < self._share * 2**64

    async def config_of(self, digest: str) -> ContextConfig | None:
        if digest not in self._configs:
            self._configs[digest] = await self._old_config(digest)
        return self._configs[digest]

    async def assemble(self, timeline: SessionTimeline, config: ContextConfig, turn: PastTurn) -> Assembled:
        """Assemble a turn from the timeline, or from the store if the timeline does not go back far enough."""
        pools = await timeline.pools(config)
        for entry in pools:
            entry.own.ran_out = False
            if entry.shared is not None:
                entry.shared.ran_out = False
        definitions = await self._shared.definitions()
        assembled = await self.compute(assemble_past, config, turn, pools, definitions, self._view)
        if any(entry.ran_out for entry in pools):
            built = await reassemble_turn(self._reader, config, turn, sees=self._request.sees)
            return built.assembled
        return assembled

    async def compute(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function that takes computing time, in a thread if the request asks for it."""
        if self._request.in_thread:
            return await anyio.to_thread.run_sync(partial(function, *arguments))
        return function(*arguments)

    @property
    def request(self) -> ContextTestRequest:
        return self._request

    @property
    def shared(self) -> SharedPools:
        return self._shared


def _trigger(record: ContextRecord) -> tuple[UUID, int]:
    return record.trigger_id, record.trigger_version


_MAX_RENDERED: Final = 2_000

_RenderedKey = tuple[str, int, str, str, int, str, bool]


class _SessionRun:
    """Compares the turns of one context, in order."""

    def __init__(self, tester: ContextTester, context: Breadcrumb) -> None:
        self._tester = tester
        self._context = context
        self._timelines: dict[frozenset[str], SessionTimeline] = {}
        self._timeline: SessionTimeline | None = None
        self._previous: tuple[list[bytes], list[bytes]] | None = None
        """The prompts of the turn before, with the old and the changed config. None: it was not tested."""
        self._rendered: OrderedDict[_RenderedKey, bytes] = OrderedDict()

    def pass_over(self) -> None:
        """Note that a turn is not tested. The next one has no previous prompt to be compared with."""
        self._previous = None

    async def compare(self, version: Breadcrumb, record: ContextRecord) -> TurnResult:
        """Compare a version of the context, assembled with its own config and with the changed one."""
        result = await self._compare_turn(version, record)
        if result.skipped is not None:
            self.pass_over()
        return result

    async def _compare_turn(self, version: Breadcrumb, record: ContextRecord) -> TurnResult:
        tester = self._tester
        position = Position(self._context.created, str(self._context.id), version.version)
        result = TurnResult(
            str(version.id),
            version.version,
            position,
            version.session_id,
            str(record.trigger_id),
            record.as_of,
        )
        old = await tester.config_of(record.config)
        if old is None:
            return _skip(result, "its config is not known")
        timeline = await self._timeline_for(old)
        try:
            turn = await timeline.turn(version, record)
            if not tester.request.sees(turn.trigger):
                return _skip(result, "not visible")
            before = await tester.assemble(timeline, old, turn)
            after = (
                before
                if old.digest == tester.request.config.digest
                else await tester.assemble(timeline, tester.request.config, turn)
            )
        except TriggerGone:
            return _skip(result, "its message was deleted")
        except (NotFound, TriggerWithheld):
            return _skip(result, "its context cannot be read")
        return await tester.compute(self._compare, result, turn, before, after)

    async def _timeline_for(self, old: ContextConfig) -> SessionTimeline:
        """Return a timeline with the sources of both configs. A new one starts again when the old config changes."""
        key = frozenset((old.digest, self._tester.request.config.digest))
        if key not in self._timelines:
            self._timelines.clear()
            self._timelines[key] = SessionTimeline(
                self._tester.shared, self._context.session_id or "", (old, self._tester.request.config)
            )
        return self._timelines[key]

    def _compare(self, result: TurnResult, turn: PastTurn, before: Assembled, after: Assembled) -> TurnResult:
        old = self._render(before)
        new = old if after is before else self._render(after)
        number = result.context_version
        repeated = None
        if self._previous is not None:
            repeated = shared_prefix(self._previous[0], old), shared_prefix(self._previous[1], new)
        self._previous = old, new
        old_items = {item.crumb.id_text: item for item in before.items}
        new_items = {item.crumb.id_text: item for item in after.items}
        added = [item for id, item in new_items.items() if id not in old_items]
        removed = [item for id, item in old_items.items() if id not in new_items]
        return TurnResult(
            result.context_id,
            number,
            result.position,
            result.session_id,
            result.trigger_id,
            result.at,
            (before.tokens, after.tokens),
            (sum(map(len, old)), sum(map(len, new))),
            repeated,
            tuple((item.source, item.crumb.id_text) for item in added),
            tuple((item.source, item.crumb.id_text) for item in removed),
            tuple(_crossings(turn.trigger, added)),
            old != new,
            tuple(str(entry.id) for entry in turn.gone_items),
        )

    def _render(self, assembled: Assembled) -> list[bytes]:
        """Return the prompt in pieces, one per item, with its part."""
        return [self._render_item(item, assembled) for item in assembled.items]

    def _render_item(self, item: ContextItem, assembled: Assembled) -> bytes:
        crumb = item.crumb
        definition = assembled.definitions.get(crumb.schema_name or "")
        version = "" if definition is None else f"{definition.id_text} {definition.version}"
        part = "conversation" if item.place == "conversation" else item.source
        is_own = users_of(crumb.tags) == assembled.users
        cut = -1 if item.cut is None else item.cut.kept
        key = (crumb.id_text, crumb.version, item.place, part, cut, version, is_own)
        if (piece := self._rendered.get(key)) is None:
            shown = render_item(crumb, item.place, item.content, assembled.users)
            piece = orjson.dumps([item.place, part, shown])
            self._rendered[key] = piece
            if len(self._rendered) > _MAX_RENDERED:
                self._rendered.popitem(last=False)
        return piece


def _skip(result: TurnResult, reason: str) -> TurnResult:
    return replace(result, skipped=reason)


def _crossings(trigger: Breadcrumb, added: Sequence[ContextItem]) -> list[Crossing]:
    """Return the added items that come from another session, or belong to a user that the trigger does not."""
    own_users = set(users_of(trigger.tags))
    found = []
    for item in added:
        crumb = item.crumb
        entry = (trigger.id_text, trigger.session_id, crumb.id_text, item.source)
        if crumb.session_id is not None and crumb.session_id != trigger.session_id:
            found.append(Crossing(*entry, "session", crumb.session_id))
        if others := sorted(set(users_of(crumb.tags)) - own_users):
            found.append(Crossing(*entry, "user", others[0].removeprefix(USER)))
    return found
