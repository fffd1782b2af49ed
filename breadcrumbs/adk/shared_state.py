"""The state of apps and users, which their sessions share.

Each state lives in a session of its own, so a change of it is a second write after that of the event. Its id is
derived from the event's. A writer that died between the two writes delivers its event again: the event is then found,
and the second write is made or found too.
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
    """Reads and writes the state that the sessions of an app, or of a user, share."""

    def __init__(self, store: Store, sessions: Sessions) -> None:
        self._store = store
        self._sessions = sessions

    def check_access(self, who: Principal, of: UserNames, deltas: StateChanges) -> None:
        policy.check_shared_delta(who, of.user, app_changes=bool(deltas.app), user_changes=bool(deltas.user))

    async def check_room(self, who: Principal, of: UserNames, deltas: StateChanges) -> None:
        """Raise `StateTooLarge` before the event is written that changes a state too much."""
        for holder, delta in ((of.app_state, deltas.app), (of.user_state, deltas.user)):
            if delta:
                await self._sessions.check_room(who.owner_id, holder, ADK_EVENT, {"state_delta": delta})

    async def read(self, who: Principal, of: UserNames) -> Json:
        """Return the state of the app and of the user, with their prefixes."""
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
        """Write the changes that an event or a new session makes, once. `source` is its id."""
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
        # The delta is part of the id: when a session was deleted and created again, a new event may reuse an id.
        parts = (ADK_EVENT, holder, *source, json_digest(delta))
        id = derive_id_in_session(self._store, who.owner_id, holder, *parts)
        change = state_record(holder, delta, tags, source)
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._store.create(who.owner_id, change, by=who.agent_id, id=id)
            except SessionGone:  # the state is being deleted: the next one begins with this change
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return
        raise AlreadyExists(f"the state in {holder!r} is being deleted: try again in a moment")
