"""A turn of an agent on an ADK server.

The breadcrumbs of the session are the conversation. The server's own session is a copy of it, which may be lost at any
time. A turn continues the server's session only if that session holds exactly the conversation. Two records tell:

- Before a run, `adk.session.v1` records which message is given to which session of the server.
- The answer records, in the same write, what the server's session held then.

If the two do not match (a run without an answer, a deleted message, another agent's answer, a changed state, a 404),
the server gets a new session with the state and the history of the breadcrumbs. So nothing is lost, and no message is
sent twice.
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
"""Name in the server's state: what a context holds besides the conversation."""
HISTORY = "breadcrumbs_history"
"""Name in the server's state: what was said before, where a server does not take events."""

_USERS, _APPS = "user:", "app:"
_SHARED = (_USERS, _APPS, TEMPORARY)
"""State that is not the session's alone."""

_DELETE_SECONDS = 5.0
_MAX_HISTORY_EVENTS = 2_000
_MAX_HISTORY_BYTES = 4 << 20
_PLAIN = re.compile(r"[A-Za-z0-9_.@-]{1,100}")

_log = structlog.get_logger("breadcrumbs.adk")


class AdkTurns:
    """Lets agents of the kind `adk` answer."""

    def __init__(self, store: Store, servers: AdkServers) -> None:
        self._store = store
        self._servers = servers

    async def answer(
        self, request: AnswerRequest, parts: Sequence[dict[str, Any]], on_delta: OnDelta
    ) -> Answer:
        """Let the server answer a request."""
        agent_id, origin = request.definition.agent_id, request.origin
        try:
            remote = self._servers.resolve(request.agent)
        except InvalidInput as error:
            raise TurnFailed(f"{agent_id}: {error}") from error
        said = next((item for part in parts for item in part["items"] if item.get("id") == origin.id), None)
        if said is None:
            raise TurnFailed("the message to answer is not in its context")
        (message,) = build_prompt("", [{"place": "conversation", "items": [said]}], agent_id)
        remote_turn = _RemoteTurn(self._store, request, remote)
        await remote_turn.read(background=_background(parts))
        try:
            reply = await remote_turn.run(message.content, on_delta)
        except ModelError as error:
            raise remote.server.explain(error) from None
        fields = remote_turn.runtime_fields(reply, is_message=said.get("schema_name") == USER_MESSAGE)
        return Answer(reply.text, runtime_fields=fields)


@dataclass(frozen=True, slots=True)
class _SyncedHistory:
    """The part of a conversation that the remote session holds, as counts and a digest."""

    messages: int = 0
    answers: int = 0
    state: str = ""

    def as_json(self) -> list[Any]:
        return [self.messages, self.answers, self.state]


class _RemoteTurn:
    """One turn of one agent with its server."""

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
        """Read all that a run needs, in one round trip."""
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
            # The state of the app is left out: all users share it, and a client may have written it here.
            self._user_state = {name: value for name, value in state.items() if name.startswith(_USERS)}
            self._synced = _SyncedHistory(messages, answers)
        if background:
            self._state[BACKGROUND] = background
        self._synced = _SyncedHistory(self._synced.messages, self._synced.answers, _digest(self._state))
        self._user = _user_id(owner, user, session or self._origin.id)

    async def run(self, text: str, on_delta: OnDelta) -> AdkReply:
        """Continue the server's session, or a new one. If the server has forgotten it: exactly one more try."""
        known = self._known_session()
        if known is not None and await self._is_current(known):
            try:
                return await self._run(known, text, on_delta)
            except UnknownSession as error:
                _log.info(
                    "an ADK server has forgotten a session", server=self._server.name, reason=error.reason
                )
                known = None
        try:
            return await self._run(await self._new_session(instead_of=known), text, on_delta)
        except UnknownSession:
            # If the app is gone, this error says so.
            await self._server.require_app(self._app, again=True)
            raise

    async def _run(self, remote_session: str, text: str, on_delta: OnDelta) -> AdkReply:
        await self._record_run(remote_session)
        self._remote_session = remote_session
        try:
            return await self._server.run(self._app, self._user, remote_session, text, on_delta)
        finally:
            if self._session_id is None:
                # The session is never continued. It is deleted also when the turn was stopped.
                with anyio.move_on_after(_DELETE_SECONDS, shield=True):
                    await self._server.delete_session(self._app, self._user, remote_session)

    def _known_session(self) -> str | None:
        """Return the server's session of the last turn, or None."""
        noted = {} if self._record is None else self._record.context
        session = noted.get("adk_session")
        here = (noted.get("server"), noted.get("app"), noted.get("user")) == self._target
        return session if here and isinstance(session, str) and session else None

    async def _is_current(self, session: str) -> bool:
        """Return whether the server's session holds the same conversation as ours."""
        last_message = self._record.context.get("trigger_id") if self._record is not None else None
        last = await self._get(self._turn.derived_id("answer", self._agent_id, str(last_message)))
        told = last.context.get("adk") if last is not None else None
        if not isinstance(told, dict):
            return False  # the last run left no answer: it is not known how far it got
        return told.get("session") == session and told.get("knows") == self._synced.as_json()

    async def _new_session(self, *, instead_of: str | None) -> str:
        """Create a session on the server with the state and the history of ours. Raises if the server refuses."""
        server, app, user = self._server, self._app, self._user
        await server.require_app(app)
        events = await self._history()
        made = await server.create_session(app, user, state=self._state, events=events)
        if made.events < len(events):
            _log.info("this ADK server takes no history but in the state", server=server.name)
            await server.delete_session(app, user, made.id)
            lines = [
                {"author": event["author"], "text": event["content"]["parts"][0]["text"]} for event in events
            ]
            made = await server.create_session(app, user, state={**self._state, HISTORY: lines}, events=[])
        lost = {name: value for name, value in self._user_state.items() if name not in made.state}
        if lost:
            try:
                await server.add_state(app, user, made.id, lost)
            except ModelError as error:
                _log.warning("an ADK server lost a user's state", server=server.name, reason=error.reason)
        if instead_of is not None:
            await server.delete_session(app, user, instead_of)
        return made.id

    async def _record_run(self, remote_session: str) -> None:
        """Store which message is about to be sent to which session of the server."""
        if self._session_id is None:
            return  # a message of no session is a conversation of its own
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
        """Return the earlier messages and answers as events, each with its own time."""
        if self._session_id is None:
            return []
        said = [*await self._newest(USER_MESSAGE), *await self._newest(AGENT_RESPONSE)]
        said = [crumb for crumb in said if crumb.sensitivity != "secret" and crumb.visibility != "private"]
        said = [
            crumb
            for crumb in said
            if crumb.schema_name == AGENT_RESPONSE or crumb.created < self._origin.created
        ]
        asked = {str(crumb.id): crumb.created for crumb in said if crumb.schema_name == USER_MESSAGE}

        def sort_key(crumb: Breadcrumb) -> tuple[int, int]:
            """Sort an answer behind its message, also if other messages came before the answer."""
            answers = crumb.schema_name == AGENT_RESPONSE
            return (
                asked.get(str(crumb.context.get("trigger_id")), crumb.created) if answers else crumb.created
            ), crumb.created

        events: list[dict[str, Any]] = []
        size = 0
        for crumb in sorted(said, key=sort_key, reverse=True):
            if (event := self._history_event(crumb)) is None:
                continue
            size += len(event["content"]["parts"][0]["text"])
            if len(events) == _MAX_HISTORY_EVENTS or size > _MAX_HISTORY_BYTES:
                _log.warning("an ADK session begins without its oldest messages", events=len(events))
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
        """Return the author of an answer. The app must find its own answers under the names that it gave them."""
        speaker, told = find_creator(answer), answer.context.get("adk")
        own = speaker == self._agent_id and isinstance(told, dict)
        author = told.get("author") if own and isinstance(told, dict) else speaker
        return author if isinstance(author, str) and author not in ("", "user") else "another_agent"

    # After the run

    def runtime_fields(self, reply: AdkReply, *, is_message: bool) -> dict[str, Any]:
        """Return what the answer records of the server's session. One write stores both, so they always match."""
        state = {name: value for name, value in reply.state_delta.items() if not name.startswith(_SHARED)}
        knows = _SyncedHistory(
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
                "knows": knows.as_json(),
            }
        }
        kept = {name: value for name, value in reply.state_delta.items() if not name.startswith(_APPS)}
        return fields | ({"state_delta": kept} if kept else {})

    @property
    def _target(self) -> tuple[str, str, str]:
        return self._server.name, self._app, self._user

    async def _get(self, id: UUID) -> Breadcrumb | None:
        try:
            return await self._store.get(self._owner, id, count_read=False)
        except NotFound:
            return None


def _background(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a context besides the conversation, by their keys."""
    return {
        part["key"]: [plain_text(item["content"]) for item in part["items"]]
        for part in parts
        if part["place"] != "conversation"
    }


def _user_id(owner: UUID, user: str | None, session: str) -> str:
    """Return the user id for the server. Two owners never share one, nor two sessions without a user."""
    if user is None:
        return f"{owner}.~{_digest(session)}"
    return f"{owner}.{user}" if _PLAIN.fullmatch(user) else f"{owner}.~{_digest(['user', user])}"


def _digest(value: Any) -> str:
    return blake2b(canonical(value), digest_size=12).hexdigest()
