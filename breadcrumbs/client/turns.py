"""Following events, and turns: a message goes out, its answer comes back. No sockets here (see effects.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import orjson

from breadcrumbs.client.core import MESSAGE, Core, backoff, filter_params, is_passing, retry_after, segment
from breadcrumbs.client.effects import (
    Channel,
    Item,
    Lost,
    Open,
    Operation,
    Pause,
    Read,
    Reply,
    Request,
    Series,
    Shut,
)
from breadcrumbs.client.errors import AgentFailed, NoAnswer, ServerUnreachable
from breadcrumbs.client.options import Message, OnConnection, Saying, Subscription, Waiting
from breadcrumbs.client.values import (
    Answer,
    Breadcrumb,
    ChatMessage,
    Delta,
    Event,
    Gap,
    Written,
    breadcrumb_of,
    creator_in,
    event_of,
)
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.sessions.outcome_matching import ANSWER, ERROR, is_outcome
from breadcrumbs.runtime.sse import Parser

CANCEL = "agent.cancel.v1"

DEFAULT_TIMEOUT = 120.0

# The server says something at least every `ping_interval` (10 s); silence for longer is a dead connection.
_SILENCE = 60.0


class _TimeIsUp(Exception):
    """The deadline of a `Following` has passed."""


class Following:
    """An event stream that comes back by itself, where it was."""

    def __init__(
        self,
        core: Core,
        params: Iterable[tuple[str, str]],
        *,
        last_event_id: str | None = None,
        timeout: float | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self._core = core
        self._params = tuple(params)
        self._last_id = last_event_id
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self._slack = 0.0 if timeout is None else max(0.25, timeout / 10)
        self._on_connection = on_connection
        self._channel: Channel | None = None
        self._parser = Parser()
        self._read_timeout = _SILENCE
        self._failures = 0
        self._was_connected = False
        self._greeted = False
        """The first that a stream says is a ping; a server that always breaks off then does not work."""
        self._waiting: deque[Event] = deque()

    def begin(self) -> Operation[None]:
        """Connect. What happens after this is not missed."""
        while self._last_id is None or not self._was_connected:
            yield from self._advance()

    def next(self) -> Operation[Event]:
        """The next event, however long it takes and however often the connection breaks."""
        while not self._waiting:
            yield from self._advance()
        return self._waiting.popleft()

    def _advance(self) -> Operation[None]:
        """One step: connect, or read a piece."""
        if self._channel is None:
            yield from self._connect()
            return
        if self.deadline is not None:
            left = self._left()
            if self._read_timeout > left + self._slack:
                # How long a read may take was set when the stream was opened, and would now be too long.
                yield Shut(self._channel)
                self._channel = None
                return
        try:
            piece: bytes = yield Read(self._channel)
        except Lost as lost:
            self._left()
            yield from self._reconnect_after(str(lost))
            return
        if not piece:
            yield from self._reconnect_after("the server ended the stream")
            return
        for message in self._parser.feed(piece):
            self._last_id = message.id or self._last_id
            if message.data and message.event != "ping":
                self._waiting.append(event_of(orjson.loads(message.text), self._last_id))
            if message.data and (self._greeted or message.event != "ping"):
                self._failures = 0  # it works, and did more than accept us
            self._greeted = True

    def _connect(self) -> Operation[None]:
        left = self._left()
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        if self._last_id is not None:
            headers["last-event-id"] = self._last_id
        request = Request("GET", "/events/stream", self._params, headers=headers, repeatable=True)
        self._read_timeout = min(_SILENCE, left)
        try:
            opened: Channel | Reply = yield Open(request, self._read_timeout)
        except Lost as lost:
            self._left()
            # Somebody who has never been connected may have the wrong address, and waits to be told.
            if not self._was_connected and self._failures >= self._core.retries:
                raise self._core.unreachable(lost) from lost
            yield from self._reconnect_after(str(lost))
            return
        if isinstance(opened, Reply):
            error = self._core.refusal(opened, request)
            if error is None or not is_passing(error):
                raise error or self._core.unreachable(Lost("the server did not begin to stream"))
            if not self._was_connected and self._failures >= self._core.retries:
                raise error
            yield from self._reconnect_after(error.detail, retry_after(opened))
            return
        self._channel, self._parser, self._greeted = opened, Parser(), False
        if self._was_connected and self._failures and self._on_connection is not None:
            self._on_connection("back", "")
        self._was_connected = True

    def _reconnect_after(self, reason: str, wait: float | None = None) -> Operation[None]:
        if self._channel is not None:
            yield Shut(self._channel)
            self._channel = None
        if wait is None:
            wait = backoff(self._failures)
        if self._was_connected and self._on_connection is not None:
            self._on_connection("lost", reason)
        self._failures += 1
        yield Pause(min(wait, self._left()))

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _left(self) -> float:
        """Seconds until the deadline."""
        if self.deadline is None:
            return float("inf")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _TimeIsUp
        return left


def events(core: Core, wanted: Subscription) -> Series[Event]:
    """What happens, without end."""
    params = filter_params(
        session=wanted.get("session"),
        schema_name=wanted.get("schema_name"),
        tags=wanted.get("tags", ()),
        any_tags=wanted.get("any_tags", ()),
    )
    if selector := wanted.get("selector"):
        params.append(("filters", orjson.dumps(dict(selector)).decode()))
    stream = Following(
        core,
        params,
        last_event_id=wanted.get("last_event_id"),
        on_connection=wanted.get("on_connection"),
    )
    while True:
        event = yield from stream.next()
        yield Item(event)


Show: TypeAlias = Literal["everything", "pieces", "answer"]
"""What the caller of a turn wants to see of it: each event of the session, the pieces of the answer, or that only."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    timeout: float | None
    agent: str | None
    on_connection: OnConnection | None

    @classmethod
    def of(cls, options: Waiting) -> _Waiting:
        return cls(
            options.get("timeout", DEFAULT_TIMEOUT), options.get("agent"), options.get("on_connection")
        )

    def in_vain(self, message_id: str) -> NoAnswer:
        return NoAnswer(f"no answer within {self.timeout:g} s", trigger_id=message_id)


class Conversation:
    """One session: what is said in it, and who answers."""

    def __init__(self, core: Core, session_id: str) -> None:
        self.core = core
        self.session_id = session_id

    def turn(
        self, text: str, show: Show, options: Saying, *, last_event_id: str | None = None
    ) -> Series[Any]:
        """Post a message; what happens from there on, and last the answer."""
        waiting = _Waiting.of(options)
        stream = self._stream(waiting, last_event_id)
        try:
            yield from stream.begin()
        except _TimeIsUp:
            reason = f"{self.core.url} did not answer within {waiting.timeout:g} s"
            raise NoAnswer(reason, trigger_id="") from None
        try:
            written = yield from self.post(text, options, deadline=stream.deadline)
        except ServerUnreachable as error:
            if not stream.is_over:
                raise
            reason = (
                f"{self.core.url} did not answer within {waiting.timeout:g} s: it may have the message or not"
            )
            raise NoAnswer(reason, trigger_id="") from error
        if show == "everything":
            yield Item(written)
        # Posted before: then the answer may be there already, and no event will tell.
        yield from self._until_answered(stream, written.id, show, waiting, look_first=written.replayed)

    def post(self, text: str, options: Message, *, deadline: float | None = None) -> Operation[Written]:
        return self.core.post(
            text,
            self.session_id,
            deadline=deadline,
            tags=options.get("tags", ()),
            context=options.get("context"),
            idempotency_key=options.get("idempotency_key"),
        )

    def wait(self, message_id: str, show: Show, options: Waiting) -> Series[Any]:
        """The same for a message that was posted before."""
        waiting = _Waiting.of(options)
        stream = self._stream(waiting, None)
        try:
            yield from stream.begin()
        except _TimeIsUp:
            raise waiting.in_vain(message_id) from None
        yield from self._until_answered(stream, message_id, show, waiting, look_first=True)

    def messages(self, last: int | None = None) -> Operation[tuple[ChatMessage, ...]]:
        """What was said, in its order."""
        found: list[Breadcrumb] = []
        for schema in (MESSAGE, ANSWER):
            found += yield from self.core.collect(
                session=self.session_id, schema_name=schema, sort="-created_at", limit=last
            )
        found.sort(key=lambda crumb: crumb.created_at)
        return tuple(_chat_message(crumb) for crumb in (found if last is None else found[-last:]))

    def cancel(self, reason: str | None = None) -> Operation[Written]:
        """Stop what is being answered in this session."""
        fields = {
            "schema_name": CANCEL,
            "title": "Cancel",
            "tags": ["agent:cancel"],
            "context": {} if reason is None else {"reason": reason},
        }
        return self.core.create(fields, session=self.session_id)

    def _stream(self, waiting: _Waiting, last_event_id: str | None) -> Following:
        return Following(
            self.core,
            filter_params(session=self.session_id),
            last_event_id=last_event_id,
            timeout=waiting.timeout,
            on_connection=waiting.on_connection,
        )

    def _until_answered(
        self,
        stream: Following,
        message_id: str,
        show: Show,
        waiting: _Waiting,
        *,
        look_first: bool,
    ) -> Series[Any]:
        agent = waiting.agent
        answer: Answer | None = None
        shown = ""
        last: Delta | None = None
        while answer is None:
            try:
                if look_first:
                    look_first = False
                    answer = yield from self._found(message_id, agent, stream)
                    continue
                event = yield from stream.next()
            except _TimeIsUp:
                raise waiting.in_vain(message_id) from None
            if show == "everything" or (show == "pieces" and _is_piece(event, message_id, agent)):
                yield Item(event)
                if isinstance(event, Delta):
                    same = last is not None and last.breadcrumb_id == event.breadcrumb_id
                    shown, last = (shown[: event.offset] if same else "") + event.piece, event
            if isinstance(event, Gap):
                look_first = True
            elif event.operation == "created":
                answer = _outcome(event.breadcrumb_id, event, message_id, agent)
        if show == "pieces" and last is not None and last.breadcrumb_id == answer.id:
            # Pieces go another way than the answer, which may overtake the last of them.
            rest = answer.text.removeprefix(shown)
            if rest and len(rest) < len(answer.text):
                yield Item(replace(last, offset=len(shown), piece=rest))
        yield Item(answer)

    def _found(self, message_id: str, agent: str | None, stream: Following) -> Operation[Answer | None]:
        """The answer that is there already, if it is. What failed before a retry does not count."""
        request = Request(
            "GET",
            f"/sessions/{segment(self.session_id)}/messages/{segment(message_id)}",
            () if agent is None else (("agent_id", agent),),
            repeatable=True,
        )
        try:
            reply = yield from self.core.perform(request, deadline=stream.deadline)
        except ServerUnreachable:
            if stream.is_over:
                raise _TimeIsUp from None
            raise
        outcome = self.core.read(reply, _outcome_in)
        return None if outcome is None else _outcome(outcome.id, outcome, message_id, agent)


def _outcome_in(document: Any) -> Breadcrumb | None:
    outcome = document.get("answer") or document.get("error")
    return None if outcome is None else breadcrumb_of({"title": "", **outcome})


def _is_piece(event: Event, message_id: str, agent: str | None) -> bool:
    return isinstance(event, Delta) and event.trigger_id == message_id and agent in (None, event.agent_id)


def _outcome(id: str, what: Event | Breadcrumb, message_id: str, agent: str | None) -> Answer | None:
    """The answer to a message, where this is it; an error for it is raised."""
    context = what.context
    if not is_outcome(what.schema_name, context, message_id, agent):
        return None
    if what.schema_name == ERROR:
        raise AgentFailed(
            str(context.get("error") or "the agent failed and did not say why"),
            trigger_id=message_id,
            breadcrumb_id=id,
            cancelled=context.get("cancelled") is True,
        )
    return Answer(
        text=plain_text(context),
        id=id,
        trigger_id=message_id,
        session_id=what.session_id,
        agent_id=creator_in(context),
        tags=what.tags,
        context=context,
    )


def _chat_message(crumb: Breadcrumb) -> ChatMessage:
    trigger = crumb.context.get("trigger_id")
    return ChatMessage(
        role="user" if crumb.schema_name == MESSAGE else "agent",
        text=crumb.text,
        id=crumb.id,
        created_at=crumb.created_at,
        agent_id=None if crumb.schema_name == MESSAGE else creator_in(crumb.context),
        trigger_id=trigger if isinstance(trigger, str) else None,
    )
