"""The state that the sessions of an app or of a user share.

Each shared state is stored in its own session. So a change of it is a second write, after the write of the event. The
id of the second write is derived from the event. If a writer dies between the two writes and sends the event again, the
event is found, and the second write is made or also found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio

from breadcrumbs.adk.naming import SessionNames, UserNames
from breadcrumbs.adk.records import json_digest, state_record
from breadcrumbs.adk.wire import APP, USER, Json, StateChanges
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import AlreadyExists, SessionGone
from breadcrumbs.runtime.schema_names import ADK_EVENT
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.placement import derive_id_in_session
from breadcrumbs.runtime.store.store import Store

_MAX_ATTEMPTS: Final = 50
_RETRY_SECONDS: Final = 0.1


class SharedState:
    """Reads and writes the state that sessions of an app or a user share."""

    def __init__(self, store: Store, sessions: Sessions) -> None:
        self._store = store
        self._sessions = sessions

    def check_access(self, who: Principal, of: UserNames, deltas: StateChanges) -> None:
        """Raise `Forbidden` if the principal may not make these changes."""
        policy.check_shared_delta(who, of.user, app_changes=bool(deltas.app), user_changes=bool(deltas.user))

    async def check_room(self, who: Principal, of: UserNames, deltas: StateChanges) -> None:
        """Raise `StateTooLarge` if the changes do not fit. Called before the event is written."""
        for holder, delta in ((of.app_state, deltas.app), (of.user_state, deltas.user)):
            if delta:
                await self._sessions.check_room(who.owner_id, holder, ADK_EVENT, {"state_delta": delta})

    async def read(self, who: Principal, of: UserNames) -> Json:
        """Return the app and user state that the principal may read, with prefixes."""
        holders = []
        if policy.may_read_app_state(who):
            holders.append((APP, of.app_state))
        if policy.may_read_user_state(who, of.user):
            holders.append((USER, of.user_state))
        states = await gather(*(self._sessions.state_for(who, holder) for _, holder in holders))
        return {
            prefix + name: value
            for (prefix, _), state in zip(holders, states, strict=True)
            for name, value in state.items()
        }

    async def write(self, who: Principal, names: SessionNames, deltas: StateChanges, source: str) -> None:
        """Write the changes of an event or of a new session, once. `source` is its id."""
        of = names.of
        changes = ((of.app_state, deltas.app, ()), (of.user_state, deltas.user, of.plain_user_tag))
        await gather(
            *(
                self._write_one(who, holder, delta, tags, (names.name, source))
                for holder, delta, tags in changes
                if delta
            )
        )

    async def _write_one(
        self, who: Principal, holder: str, delta: Json, tags: Iterable[str], source: tuple[str, str]
    ) -> None:
        # The delta is part of the id: after a session is deleted and created again, an event can reuse an id.
        parts = (ADK_EVENT, holder, *source, json_digest(delta))
        id = derive_id_in_session(self._store, who.owner_id, holder, *parts)
        change = state_record(holder, delta, tags, source)
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._store.create(who.owner_id, change, by=who.agent_id, id=id)
            except SessionGone:  # the old state is being deleted: this change starts the new one
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return
        raise AlreadyExists(f"the state in {holder!r} is being deleted: retry in a moment")
