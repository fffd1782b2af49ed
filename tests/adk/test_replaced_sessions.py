"""A long session is read while it is sent. A session that replaces it during this time is not shown."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.adk.ledger import AdkSessions, NewSession
from breadcrumbs.adk.naming import session_names
from breadcrumbs.adk.wire import event_of
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.store.store import Store

OWNER, AGENT = UUID(int=1), UUID(int=2)
WHO = Principal(OWNER, AGENT, user_id="ann")


async def fill(sessions: AdkSessions, text: str, count: int) -> None:
    await sessions.create(WHO, NewSession("app", "ann", "s", {"pin": text}))
    for number in range(count):
        event = event_of({"author": "ann", "id": f"{text}-{number}"}, now=1.0 + number)
        await sessions.append(WHO, session_names("app", "ann", "s"), event)


async def test_reading_a_replaced_session_shows_nothing_of_the_next_one(
    store: Store,
) -> None:
    sessions = AdkSessions(store)
    await fill(sessions, "old", 120)
    reading = await sessions.read(WHO, session_names("app", "ann", "s"))
    assert reading is not None and not reading.is_short
    events = reading.events()
    read = [await anext(events)]
    await sessions.delete(WHO, session_names("app", "ann", "s"))
    await fill(sessions, "new", 120)
    read += [event async for event in events]
    assert {event["id"].partition("-")[0] for event in read} == {"old"}
    assert await reading.end() is None
