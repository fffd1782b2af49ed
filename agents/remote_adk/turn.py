"""A turn of an agent on an ADK server.

The breadcrumbs of the session are the conversation. The server's own session, the remote session, is a copy of it that
can be lost at any time. A turn continues the remote session only if it contains exactly the conversation. Two records
are compared:

- Before a run, `adk.session.v1` records which message is sent to which remote session.
- The answer records, in the same write, what the remote session contained then.

They do not match after a run without an answer, a message that this agent did not answer, another agent's answer, a
deleted message, or a changed state. In these cases, and after a 404, the server gets a new session with the state and
the history of the breadcrumbs. So no message is lost, and none is sent twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

import anyio
import structlog

from breadcrumbs.agents.answer import Answer
from breadcrumbs.agents.conversation import find_creator
from breadcrumbs.agents.models.base import ModelError, OnDelta
from breadcrumbs.agents.prompt import build_prompt
from breadcrumbs.agents.remote_adk.answer import TEMPORARY, AdkReply
from breadcrumbs.agents.remote_adk.client import UnknownSession
from breadcrumbs.agents.remote_adk.servers import AdkServers, RemoteApp
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.hints.hints import apply_hints
from breadcrumbs.runtime.schema_names import ADK_SESSION, AGENT_RESPONSE, USER_MESSAGE
from breadcrumbs.runtime.store.batched_reads import count_of, newest_of, state_of
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.turn import INTERNAL

BACKGROUND = "breadcrumbs_context"
"""Key in the remote state for the parts of a context other than the conversation."""
HISTORY = "breadcrumbs_history"
"""Key in the remote state for the history, if the server accepts no events."""

_USERS, _APPS = "user:", "app:"
_SHARED = (_USERS, _APPS, TEMPORARY)
"""Prefixes of state that does not belong to a single session."""

_DELETE_SECONDS = 5.0
_MAX_HISTORY_EVENTS = 2_000
_MAX_HISTORY_CHARACTERS = 4 << 20
_PLAIN_USER = re.compile(r"[A-Za-z0-9_.@-]{1,100}")
"""User ids that are sent unchanged. Others are replaced by a digest."""

_log = structlog.get_logger("breadcrumbs.adk")


class AdkTurns:
    """Runs the turns of agents of the kind `adk`."""

    def __init__(self, store: Store, servers: AdkServers) -> None:
        self._store = store
        self._servers = servers

    async def answer(
        self, request: AnswerRequest, parts: Sequence[dict[str, Any]], on_delta: OnDelta
    ) -> Answer:
        """Return the answer of the ADK server to a request."""
        agent_id, origin = request.definition.agent_id, request.origin
        try:
            remote = self._servers.resolve(request.agent)
        except InvalidInput as error:
            raise TurnFailed(f"{agent_id}: {error}") from error
        item = next((item for part in parts for item in part["items"] if item.get("id") == origin.id), None)
        if item is None:
            raise TurnFailed("the message to answer is not in its context")
        (message,) = build_prompt("", [{"place": "conversation", "items": [item]}], agent_id)
        remote_turn = _RemoteTurn(self._store, request, remote)
        await remote_turn.read(background=_background(parts))
        try:
            reply = await remote_turn.run(message.content, on_delta)
        except ModelError as error:
            raise remote.server.explain(error) from None
        fields = remote_turn.runtime_fields(reply, is_message=item.get("schema_name") == USER_MESSAGE)
        return Answer(reply.text, runtime_fields=fields)


@dataclass(frozen=True, slots=True)
class _SyncedHistory:
    """The content of a remote session, as counts and a digest of the state.

    The session is current if this value equals the value that was stored with the last answer.
    """

    messages: int = 0
    answers: int = 0
    state: str = ""

    def as_json(self) -> list[Any]:
        return [self.messages, self.answers, self.state]


class _RemoteTurn:
    """One turn of one agent on its server."""

    def __init__(self, store: Store, request: AnswerRequest, remote: RemoteApp) -> None:
        self._store = store
        self._turn = request.turn
        self._agent_id = request.definition.agent_id
        self._server, self._app = remote.server, remote.app
        self._owner, self._session_id = request.owner, request.trigger.session_id
        self._trigger, self._origin = request.trigger, request.origin
        self._user = ""
        self._state: dict[str, Any] = {}
        self._user_state: dict[str, Any] = {}
        self._synced = _SyncedHistory()
        self._record: Breadcrumb | None = None
        self._remote_session = ""

    @property
    def _record_id(self) -> UUID:
        return self._turn.derived_id("adk", self._agent_id, str(self._owner), self._session_id or "")

    # Before the run

    async def read(self, *, background: dict[str, Any]) -> None:
        """Read the state, the counts and the record of the session in one round trip."""
        store, owner, session = self._store, self._owner, self._session_id
        user: str | None = next(
            (tag[len(_USERS) :] for tag in inherited_tags(self._trigger.tags, ("user",))), None
        )
        if session is not None:
            messages, answers, (state, about), self._record = await store.read_batch(
                count_of(store, owner, session, USER_MESSAGE, before=self._origin.created),
                count_of(store, owner, session, AGENT_RESPONSE),
                state_of(store, owner, session),
                newest_of(store, owner, self._record_id),
            )
            user = user or about.user_id
            self._state = {name: value for name, value in state.items() if not name.startswith(_SHARED)}
            # Leave out the state of the app: all users share it, and a client can have written it here.
            self._user_state = {name: value for name, value in state.items() if name.startswith(_USERS)}
            self._synced = _SyncedHistory(messages, answers)
        if background:
            self._state[BACKGROUND] = background
        self._synced = _SyncedHistory(self._synced.messages, self._synced.answers, _digest(self._state))
        self._user = _user_id(owner, user, session or self._origin.id)

    async def run(self, text: str, on_delta: OnDelta) -> AdkReply:
        """Run the app in the current remote session, or in a new one. If the server lost the session, retry once."""
        last = self._last_session()
        if last is not None and await self._is_current(last):
            try:
                return await self._run(last, text, on_delta)
            except UnknownSession as error:
                _log.info(
                    "adk session lost, creating a new one", server=self._server.name, reason=error.reason
                )
                last = None
        try:
            return await self._run(await self._new_session(instead_of=last), text, on_delta)
        except UnknownSession:
            # If the app was removed, this raises a clearer error.
            await self._server.require_app(self._app, again=True)
            raise

    async def _run(self, remote_session: str, text: str, on_delta: OnDelta) -> AdkReply:
        await self._record_run(remote_session)
        self._remote_session = remote_session
        try:
            return await self._server.run(self._app, self._user, remote_session, text, on_delta)
        finally:
            if self._session_id is None:
                # This remote session is never continued. Delete it, also if the turn was cancelled.
                with anyio.move_on_after(_DELETE_SECONDS, shield=True):
                    await self._server.delete_session(self._app, self._user, remote_session)

    def _last_session(self) -> str | None:
        """Return the remote session of the last turn, or None."""
        record = {} if self._record is None else self._record.context
        session = record.get("adk_session")
        is_target = (record.get("server"), record.get("app"), record.get("user")) == self._target
        return session if is_target and isinstance(session, str) and session else None

    async def _is_current(self, session: str) -> bool:
        """Return whether the remote session contains exactly our conversation."""
        last_message = self._record.context.get("trigger_id") if self._record is not None else None
        last = await self._get(self._turn.derived_id("answer", self._agent_id, str(last_message)))
        synced = last.context.get("adk") if last is not None else None
        if not isinstance(synced, dict):
            return False  # the last run has no answer, so the content of the remote session is unknown
        return synced.get("session") == session and synced.get("knows") == self._synced.as_json()

    async def _new_session(self, *, instead_of: str | None) -> str:
        """Create a remote session with our state and history. Raises `ModelError` if the server refuses."""
        server, app, user = self._server, self._app, self._user
        await server.require_app(app)
        events = await self._history()
        created = await server.create_session(app, user, state=self._state, events=events)
        if created.events < len(events):
            _log.info("adk server accepts no events, sending the history in the state", server=server.name)
            await server.delete_session(app, user, created.id)
            lines = [
                {"author": event["author"], "text": event["content"]["parts"][0]["text"]} for event in events
            ]
            created = await server.create_session(app, user, state={**self._state, HISTORY: lines}, events=[])
        lost = {name: value for name, value in self._user_state.items() if name not in created.state}
        if lost:
            try:
                await server.add_state(app, user, created.id, lost)
            except ModelError as error:
                _log.warning("user state not restored", server=server.name, reason=error.reason)
        if instead_of is not None:
            await server.delete_session(app, user, instead_of)
        return created.id

    async def _record_run(self, remote_session: str) -> None:
        """Record which message is about to be sent to which remote session."""
        if self._session_id is None:
            return  # a message without a session has no next turn
        server, app, user = self._target
        new = BreadcrumbCreate.parse(
            {
                "schema_name": ADK_SESSION,
                "title": f"Session of {self._agent_id} on {server}"[:200],
                "tags": ["adk:session", INTERNAL, SESSION + self._session_id],
                "context": {
                    "agent_id": self._agent_id,
                    "server": server,
                    "app": app,
                    "user": user,
                    "adk_session": remote_session,
                    "trigger_id": self._origin.id,
                },
            }
        )
        self._record = await self._store.put(
            self._owner,
            self._record_id,
            new,
            after=self._record,
            slim=lambda crumb: crumb.json,
            fence=self._turn.fence(acknowledge=False),
        )

    async def _history(self) -> list[dict[str, Any]]:
        """Return the earlier messages and answers as events, with their original times."""
        if self._session_id is None:
            return []
        crumbs = [*await self._newest(USER_MESSAGE), *await self._newest(AGENT_RESPONSE)]
        crumbs = [
            crumb for crumb in crumbs if crumb.sensitivity != "secret" and crumb.visibility != "private"
        ]
        crumbs = [
            crumb
            for crumb in crumbs
            if crumb.schema_name == AGENT_RESPONSE or crumb.created < self._origin.created
        ]
        message_times = {
            str(crumb.id): crumb.created for crumb in crumbs if crumb.schema_name == USER_MESSAGE
        }

        def sort_key(crumb: Breadcrumb) -> tuple[int, int]:
            """Sort an answer behind its message, also if other messages arrived before the answer."""
            if crumb.schema_name != AGENT_RESPONSE:
                return crumb.created, crumb.created
            return message_times.get(str(crumb.context.get("trigger_id")), crumb.created), crumb.created

        events: list[dict[str, Any]] = []
        size = 0
        for crumb in sorted(crumbs, key=sort_key, reverse=True):
            if (event := self._history_event(crumb)) is None:
                continue
            size += len(event["content"]["parts"][0]["text"])
            if len(events) == _MAX_HISTORY_EVENTS or size > _MAX_HISTORY_CHARACTERS:
                _log.warning("adk history too long, oldest messages left out", events=len(events))
                break
            events.append(event)
        return events[::-1]

    async def _newest(self, schema: str) -> list[Breadcrumb]:
        found: list[Breadcrumb] = []
        query = Query(session_id=self._session_id, schema_name=schema, limit=200)
        async for crumb in self._store.walk(self._owner, query):
            found.append(crumb)
            if len(found) > _MAX_HISTORY_EVENTS:
                break
        return found

    def _history_event(self, crumb: Breadcrumb) -> dict[str, Any] | None:
        text = plain_text(apply_hints(crumb.context, crumb.document.get("llm_hints")))
        if not text.strip():
            return None
        author, role, invocation = "user", "user", crumb.id
        if crumb.schema_name == AGENT_RESPONSE:
            author, role, invocation = (
                self._author(crumb),
                "model",
                crumb.context.get("trigger_id") or crumb.id,
            )
        return {
            "id": str(crumb.id),
            "invocationId": f"crumb-{invocation}",
            "author": author,
            "timestamp": crumb.created / 1_000_000,
            "content": {"role": role, "parts": [{"text": text}]},
        }

    def _author(self, answer: Breadcrumb) -> str:
        """Return the author of an answer. Answers of this app keep the author that the app gave them."""
        speaker, synced = find_creator(answer), answer.context.get("adk")
        own = speaker == self._agent_id and isinstance(synced, dict)
        author = synced.get("author") if own and isinstance(synced, dict) else speaker
        return author if isinstance(author, str) and author not in ("", "user") else "another_agent"

    # After the run

    def runtime_fields(self, reply: AdkReply, *, is_message: bool) -> dict[str, Any]:
        """Return the fields that record the remote session in the answer. One write stores both, so they match."""
        state = {name: value for name, value in reply.state_delta.items() if not name.startswith(_SHARED)}
        synced = _SyncedHistory(
            self._synced.messages + int(is_message),
            self._synced.answers + 1,
            _digest({**self._state, **state}),
        )
        server, app, user = self._target
        fields: dict[str, Any] = {
            "adk": {
                "server": server,
                "app": app,
                "user": user,
                "session": self._remote_session,
                "author": reply.author or app,
                "knows": synced.as_json(),
            }
        }
        kept = {name: value for name, value in reply.state_delta.items() if not name.startswith(_APPS)}
        return fields | ({"state_delta": kept} if kept else {})

    @property
    def _target(self) -> tuple[str, str, str]:
        """Server, app and user of the remote session."""
        return self._server.name, self._app, self._user

    async def _get(self, id: UUID) -> Breadcrumb | None:
        try:
            return await self._store.get(self._owner, id, count_read=False)
        except NotFound:
            return None


def _background(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a context other than the conversation, by their keys."""
    found: dict[str, Any] = {}
    for part in parts:
        if part["place"] != "conversation":
            texts = [plain_text(item["content"]) for item in part["items"]]
            found[part["key"]] = [*found.get(part["key"], ()), *texts]
    return found


def _user_id(owner: UUID, user: str | None, session: str) -> str:
    """Return the user id for the server. It is unique per owner, and per session if there is no user."""
    if user is None:
        return f"{owner}.~{_digest(session)}"
    return f"{owner}.{user}" if _PLAIN_USER.fullmatch(user) else f"{owner}.~{_digest(['user', user])}"


def _digest(value: Any) -> str:
    return blake2b(canonical(value), digest_size=12).hexdigest()
