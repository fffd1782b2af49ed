"""Turns, as somebody who waits for them sees them: a message, what is said meanwhile, and the outcome.

A turn runs in a worker, perhaps in another process. Who waits only listens: it cannot be stopped by going away.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound, SessionGone
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.sessions.messages import ANSWER, ERROR, agent_of
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.hub import EventHub, Subscription

DELTA: Final = "agent.response.delta"
CONTEXT: Final = "agent.context.v1"

_RETRIED_BYTES: Final = 32
"""An id and 16 digits: see announce.lua."""

_LOOK_BEHIND: Final = 200
"""Among so many breadcrumbs after a message its outcome is nearly always found: they are looked at in one go."""


def is_outcome(crumb: Breadcrumb, message: UUID, agent: str | None = None) -> bool:
    """Whether this is what came of a message: its answer, one to it and others, or an error.

    `agent`: with this agent; an error that names none concerns everybody.
    """
    context = crumb.context
    merged = context.get("answers")
    if context.get("trigger_id") != str(message) and not (
        isinstance(merged, list) and str(message) in merged
    ):
        return False
    creator = context.get("creator")
    # An agent may give its answers another schema; requests to tools do not carry a creator.
    by_agent = isinstance(creator, dict) and creator.get("type") == "agent"
    if crumb.schema_name == ERROR:
        return agent in (None, context.get("agent_id", agent))
    return (crumb.schema_name == ANSWER or by_agent) and agent in (None, agent_of(context))


async def outcome_of(
    store: Store, principal: Principal, message: Breadcrumb, *, agent: str | None = None
) -> Breadcrumb | None:
    """What is there already of the outcome of a message (with an agent): an answer, else the last error.

    An error is none any more once the turn was asked for again.
    """
    owner, errors = principal.owner_id, list[Breadcrumb]()

    def is_answer(crumb: Breadcrumb) -> bool:
        found = is_outcome(crumb, message.id, agent)
        if found and crumb.schema_name == ERROR:
            errors.append(crumb)
            return False
        return found

    async def first_answer(query: Query) -> Breadcrumb | None:
        async for crumb in store.walk(owner, query):
            if is_answer(crumb):
                return crumb
        return None

    query = policy.restrict_query(
        principal, Query(session_id=message.session_id, created_since=message.created, sort="created_at")
    )
    near = await store.list(owner, replace(query, limit=_LOOK_BEHIND, max_bytes=WALK_BYTES))
    answer = next(filter(is_answer, near.items), None)
    if answer is None and near.next_cursor is not None:
        # By schema, which passes over all that is in between. An agent may give its answers another one: only
        # where there is not even an error, everything is looked at.
        answer = await first_answer(replace(query, schema_names=(ANSWER, ERROR)))
        if answer is None and not errors:
            answer = await first_answer(query)
    if answer is not None or not errors:
        return answer
    return errors[-1] if errors[-1].created > await _asked_again(store, message) else None


async def _asked_again(store: Store, message: Breadcrumb) -> int:
    """When the turn of a message was last asked for again; 0: never, or before many others of its session."""
    owner, session = message.owner_id, message.session_id or ""
    lane = lane_for(owner, "session", session, store.lanes)
    key = store.keys.session(lane, owner, session)
    retried: bytes = await store.connection.call(lane, b"HGET", key, b"retried") or b""
    for at in range(0, len(retried), _RETRIED_BYTES):
        if retried[at : at + 16] == message.id.bytes:
            return int(retried[at + 16 : at + _RETRIED_BYTES])
    return 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer while it is made."""

    agent_id: str
    offset: int
    text: str


class _InSession:
    """What a watcher may see of one session. Bodies are not needed: what could be an outcome is loaded."""

    def __init__(self, principal: Principal, session: str) -> None:
        self.owner_id = principal.owner_id
        self._principal = principal
        self._tag = SESSION + session
        self.ended = False

    def wants(self, event: Event) -> bool:
        return (
            self._tag in event.tags
            and event.schema_name != CONTEXT
            and (
                event.operation == "session_deleted"
                or policy.may_see_event(self._principal, event.tags, event.private_to)
            )
        )

    @property
    def token(self) -> Principal:
        return self._principal

    @property
    def conditional(self) -> bool:
        return False

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        return True

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return False

    def as_seen(self, crumb: Breadcrumb) -> Breadcrumb:
        return crumb


class Watch:
    """Follows a session from a moment on; begin it before the message is posted, and nothing is missed."""

    def __init__(self, store: Store, hub: EventHub, principal: Principal, session: str) -> None:
        self._store = store
        self._hub = hub
        self._principal = principal
        self._session = session
        self._subscription = Subscription(_InSession(principal, session))

    async def begin(self) -> None:
        await self._hub.subscribe(self._subscription)

    def end(self) -> None:
        self._hub.leave(self._subscription)

    async def until_answered(
        self, message: Breadcrumb, seconds: float, *, look_first: bool, patience: float
    ) -> AsyncGenerator[Delta | Breadcrumb | None, None]:
        """The pieces of the answer, and last the answer or an error. Nothing more when the time is up.

        None: nothing has happened for `patience` seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            if (
                look_first
                and (outcome := await outcome_of(self._store, self._principal, message)) is not None
            ):
                yield outcome
                return
            look_first = False
            left = deadline - time.monotonic()
            if left <= 0:
                return
            frames = await self._subscription.take(min(left, patience))
            if self._subscription.dropped:
                # Too much at once: look at what is there, and go on. Or the server ends, and so does this.
                self.end()
                self._subscription = Subscription(self._subscription.filter)
                await self.begin()
                if self._subscription.dropped:
                    return
                look_first = True
                continue
            if not frames:
                yield None
            for frame in frames.split(b"\n\n"):
                if not frame:
                    continue
                heard = await self._hear(orjson.loads(frame.partition(b"data: ")[2]), message)
                if heard is not None:
                    yield heard
                if isinstance(heard, Breadcrumb):
                    return

    async def _hear(self, event: dict[str, Any], message: Breadcrumb) -> Delta | Breadcrumb | None:
        if event["type"] == "session.deleted":
            raise SessionGone(f"session {self._session!r} was deleted while its answer was waited for")
        if event["type"] == DELTA:
            if event["trigger_id"] != str(message.id):
                return None
            return Delta(event["agent_id"], event["offset"], event["text"])
        if event.get("operation") != "created" or event["breadcrumb_id"] == str(message.id):
            return None
        try:
            crumb = await self._store.get_version(
                self._principal.owner_id, UUID(event["breadcrumb_id"]), event["version"]
            )
        except NotFound:
            return None  # deleted already
        return crumb if is_outcome(crumb, message.id) else None
