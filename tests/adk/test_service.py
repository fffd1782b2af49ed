"""Every call of the session service, directly on the store and over HTTP."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.openapi.models import OAuth2
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.adk.shared_state import SharedState
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.adk.support import APP, event, spoken, unique
from tests.support.servers import Cluster


async def reloaded(
    service: BaseSessionService, session: Session, config: GetSessionConfig | None = None
) -> Session:
    found = await service.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id, config=config
    )
    assert found is not None
    return found


# Creating


async def test_A2_an_id_is_generated_when_absent_and_used_when_given(
    service: BreadcrumbSessionService, user: str
) -> None:
    made_up = [
        await service.create_session(app_name=APP, user_id=user, session_id=id) for id in (None, "", "  ")
    ]
    given = await service.create_session(app_name=APP, user_id=user, session_id=" mine ")
    assert given.id == "mine"
    assert len({session.id for session in (*made_up, given)}) == 4
    for session in (*made_up, given):
        assert session.id and session.events == [] and session.state == {}
        assert await reloaded(service, session) == session


async def test_A2_an_id_that_is_taken_is_refused_and_nothing_changes(
    service: BreadcrumbSessionService, user: str, app: str
) -> None:
    first = await service.create_session(
        app_name=app, user_id=user, session_id="s", state={"a": 1, "app:a": 1}
    )
    for state in (None, {"a": 2, "app:a": 2, "user:a": 2}):
        with pytest.raises(AlreadyExistsError):
            await service.create_session(app_name=app, user_id=user, session_id="s", state=state)
    assert await reloaded(service, first) == first
    assert (await service.create_session(app_name=app, user_id=unique(), session_id="s")).id == "s"


async def test_A2_one_of_many_concurrent_creations_succeeds(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    async def create(on: BreadcrumbSessionService, number: int) -> str:
        try:
            await on.create_session(app_name=APP, user_id=user, session_id="s", state={"by": number})
        except AlreadyExistsError:
            return "refused"
        return "created"

    outcomes = await asyncio.gather(*(create((service, replica)[n % 2], n) for n in range(20)))
    assert Counter(outcomes) == {"created": 1, "refused": 19}


async def test_state_with_any_names_and_values_is_stored(
    service: BreadcrumbSessionService, user: str, app: str
) -> None:
    state: dict[str, Any] = {
        "none": None,
        "empty": [],
        "nested": {"list": [1, None, {"ü": "🙂"}], "n": 9007199254740993},
        "": "no name",
        "a:b/c d": 0.1,
        "user:u": None,
        "app:a": {"x": []},
        "user:": 1,
        "temp:t": "gone",
    }
    session = await service.create_session(app_name=app, user_id=user, state=state)
    del state["temp:t"]
    assert session.state == state
    assert (await reloaded(service, session)).state == state
    assert await service.get_user_state(app_name=app, user_id=user) == {"u": None, "": 1}


@pytest.mark.parametrize(
    "bad", [{"app_name": ""}, {"user_id": ""}, {"user_id": "\ud800"}, {"session_id": "\udfff"}]
)
async def test_state_names_that_are_not_text_are_refused(
    service: BreadcrumbSessionService, bad: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        await service.create_session(**{"app_name": APP, "user_id": "u", **bad})


async def test_state_that_cannot_be_stored_is_refused_before_anything_is_written(
    service: BreadcrumbSessionService, user: str
) -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"d": deep}
    for value in (2**70, deep, "\ud800"):
        with pytest.raises(ValueError):
            await service.create_session(app_name=APP, user_id=user, session_id="s", state={"a": value})
    assert await service.get_session(app_name=APP, user_id=user, session_id="s") is None


# Events


def everything() -> Event:
    """Return an event with every field that a conversion could lose."""
    credential = AuthCredential(
        auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(client_id="c", client_secret="hush")
    )
    return Event(
        author="helper",
        invocation_id="i-1",
        branch="root.helper",
        timestamp=1_700_000_000.123456789,
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="Words"),
                types.Part(text="a thought", thought=True, thought_signature=b"\xff\xfe\xfb"),
                types.Part(inline_data=types.Blob(data=bytes(range(256)), mime_type="image/png")),
                types.Part(
                    function_call=types.FunctionCall(
                        id="f1", name="look_up", args={"snake_case": None, "x": [1]}
                    )
                ),
                types.Part(
                    function_response=types.FunctionResponse(
                        id="f1", name="look_up", response={"a_b": {"c_d": 1}}
                    )
                ),
            ],
        ),
        long_running_tool_ids={"f2", "f1"},
        custom_metadata={"snake_key": {"inner_key": 1}, "none": None},
        grounding_metadata=types.GroundingMetadata(web_search_queries=["w"]),
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=3),
        output={"free_form": [None]},
        actions=EventActions(
            state_delta={"snake_case": {"deep_er": None}},
            artifact_delta={"file_name.txt": 3},
            transfer_to_agent="other",
            escalate=False,
            requested_auth_configs={
                "f2": AuthConfig(
                    auth_scheme=OAuth2(flows={}), raw_auth_credential=credential, credential_key="k"
                )
            },
            requested_tool_confirmations={
                "f_1": ToolConfirmation(hint="sure?", confirmed=False, payload={"pay_load": 1})
            },
            compaction=EventCompaction(
                start_timestamp=0.1,
                end_timestamp=0.2,
                compacted_content=types.Content(parts=[types.Part(text="short")]),
            ),
            agent_state={"step_number": 2},
        ),
    )


async def test_events_are_stored_completely(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    original = everything()
    stored = await service.append_event(session, original.model_copy(deep=True))
    assert stored == original
    for on in (service, replica):
        (read,) = (await reloaded(on, session)).events
        assert read == original
        assert read.timestamp == original.timestamp
        assert read.content and read.content.parts and read.content.parts[2].inline_data
        assert read.content.parts[2].inline_data.data == bytes(range(256))


async def test_appending_updates_the_callers_session(service: BreadcrumbSessionService, user: str) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    await service.append_event(session, event("hello", state={"a": 1, "user:b": 2, "temp:c": 3}))
    assert [one.author for one in session.events] == ["user"]
    assert session.state == {"a": 1, "user:b": 2, "temp:c": 3}
    assert session.last_update_time == session.events[0].timestamp
    assert session.events[0].actions.state_delta == {"a": 1, "user:b": 2}
    read = await reloaded(service, session)
    assert read.state == {"a": 1, "user:b": 2}
    assert read.last_update_time == session.last_update_time


async def test_events_of_the_same_time_stay_in_the_order_of_their_arrival(
    service: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    times = [5.0, 5.0, 5.0, 1.0, 5.0]
    for number, moment in enumerate(times):
        await service.append_event(session, event(str(number), timestamp=moment))
    assert [text for _, text in await spoken(service, user, session.id)] == ["0", "1", "2", "3", "4"]


async def test_partial_events_are_not_stored(service: BreadcrumbSessionService, user: str) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    await service.append_event(session, event("hel", partial=True))
    assert session.events == []
    assert (await reloaded(service, session)).events == []


async def test_a_repeated_event_is_stored_once(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    elsewhere = await reloaded(replica, session)
    one = event("hello", state={"n": 1, "user:n": 1})
    await asyncio.gather(
        *(service.append_event(session, one.model_copy(deep=True)) for _ in range(3)),
        *(replica.append_event(elsewhere, one.model_copy(deep=True)) for _ in range(3)),
    )
    assert len((await reloaded(service, session)).events) == 1
    # Each caller's session has the event once.
    assert len(session.events) == len(elsewhere.events) == 1
    assert elsewhere.state == {"n": 1, "user:n": 1}


async def test_another_event_with_an_existing_id_is_refused(
    service: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    await service.append_event(session, event("one", id="same"))
    with pytest.raises(ValueError, match="use a different id"):
        await service.append_event(session, event("two", id="same"))
    assert [text for _, text in await spoken(service, user, session.id)] == ["one"]
    assert len(session.events) == 1


async def test_events_can_be_limited_by_number_and_time(service: BreadcrumbSessionService, user: str) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    for number in range(6):
        await service.append_event(session, event(str(number), timestamp=float(number)))

    async def read(**config: Any) -> str:
        found = await reloaded(service, session, GetSessionConfig(**config))
        assert found.last_update_time == 5.0
        return "".join(
            one.content.parts[0].text or "" for one in found.events if one.content and one.content.parts
        )

    assert await read() == "012345"
    assert await read(num_recent_events=0) == ""
    assert await read(num_recent_events=2) == "45"
    assert await read(num_recent_events=100) == "012345"
    assert await read(after_timestamp=4.0) == "45"
    assert await read(after_timestamp=3.5) == "45"
    assert await read(after_timestamp=9.0) == ""
    assert await read(num_recent_events=3, after_timestamp=1.0) == "345"
    assert await read(num_recent_events=3, after_timestamp=5.0) == "5"


async def test_a_long_session_is_read_completely(store: Store, user: str) -> None:
    service = BreadcrumbSessionService(store)
    session = await service.create_session(app_name=APP, user_id=user)
    await asyncio.gather(
        *(service.append_event(session, event(str(n), timestamp=float(n))) for n in range(1_205))
    )
    found = await reloaded(service, session)
    assert sorted(one.timestamp for one in found.events) == [float(n) for n in range(1_205)]
    ids = [one.id for one in found.events]
    for recent in (199, 200, 201, 1_000, 1_100, 5_000):
        part = await reloaded(service, session, GetSessionConfig(num_recent_events=recent))
        assert [one.id for one in part.events] == ids[-recent:]
    late = await reloaded(service, session, GetSessionConfig(after_timestamp=900.0))
    assert [one.id for one in late.events] == ids[len(ids) - len(late.events) :]


# Missing sessions


async def test_a_missing_session_is_none(service: BreadcrumbSessionService, user: str) -> None:
    assert await service.get_session(app_name=APP, user_id=user, session_id="none") is None
    assert await service.get_session(app_name=APP, user_id=user, session_id="") is None
    await service.delete_session(app_name=APP, user_id=user, session_id="none")
    ghost = Session(id="none", app_name=APP, user_id=user)
    with pytest.raises(SessionNotFoundError):
        await service.append_event(ghost, event("hello", state={"user:a": 1}))
    assert ghost.events == []
    assert await service.get_user_state(app_name=APP, user_id=user) == {}


async def test_a_deleted_session_is_gone_and_its_name_is_free(
    service: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user, session_id="s", state={"a": 1})
    one = event("hello", state={"b": 1, "user:c": 1})
    await service.append_event(session, one)
    await service.delete_session(app_name=APP, user_id=user, session_id="s")
    assert await service.get_session(app_name=APP, user_id=user, session_id="s") is None
    assert (await service.list_sessions(app_name=APP, user_id=user)).sessions == []
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event("late"))
    again = await service.create_session(app_name=APP, user_id=user, session_id="s")
    assert again.state == {"user:c": 1}
    await service.append_event(again, one)
    assert [text for _, text in await spoken(service, user, "s")] == ["hello"]


async def test_events_during_a_deletion_are_stored_or_refused_and_leave_nothing(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user, session_id="s")

    async def append(writer: int) -> int:
        """Append events, also for a while after the session was deleted. Return the number of refusals."""
        copy, refused = session.model_copy(deep=True), 0
        for number in itertools.count():
            late = deleted.is_set()
            try:
                await service.append_event(copy, event(f"{writer} {number}"))
            except SessionNotFoundError:
                refused += 1
            begun.set()
            if late:
                return refused
        raise AssertionError

    async def delete() -> int:
        await begun.wait()
        await replica.delete_session(app_name=APP, user_id=user, session_id="s")
        deleted.set()
        return 1

    begun, deleted = asyncio.Event(), asyncio.Event()
    assert all(await asyncio.gather(*(append(writer) for writer in range(5)), delete()))
    assert await service.get_session(app_name=APP, user_id=user, session_id="s") is None
    assert (await service.list_sessions(app_name=APP, user_id=user)).sessions == []


async def test_P1_a_failed_append_raises_and_does_not_change_the_callers_session(
    embedded_server: EmbeddedServer, tmp_path: Path
) -> None:
    with EmbeddedServer(tmp_path / "data") as redis:
        async with BreadcrumbSessionService(redis.url) as service:
            session = await service.create_session(app_name=APP, user_id="ann")
            assert redis.process is not None
            redis.process.kill()
            redis.process.wait()
            one = event("hello", state={"a": 1})
            with pytest.raises(StoreUnavailable):
                await service.append_event(session, one)
            assert session.events == [] and session.state == {}
            redis.start()
            await service.append_event(session, one)
            assert await spoken(service, "ann", session.id) == [("user", "hello")]


# Lists


async def test_sessions_are_listed_by_user_and_by_app_the_last_to_change_last(
    service: BreadcrumbSessionService, app: str
) -> None:
    made = {}
    for user in ("ann", "bob"):
        for number in (1, 2):
            made[user, number] = await service.create_session(
                app_name=app, user_id=user, session_id=f"{user}{number}", state={"n": number, "user:u": user}
            )
    await service.append_event(made["ann", 1], event("hello", state={"app:x": 1}))

    async def ids(user: str | None) -> list[str]:
        found = (await service.list_sessions(app_name=app, user_id=user)).sessions
        for session in found:
            assert session.events == []
            assert session == (await reloaded(service, session)).model_copy(update={"events": []})
        return [session.id for session in found]

    assert await ids("ann") == ["ann2", "ann1"]
    assert await ids("bob") == ["bob1", "bob2"]
    assert await ids("eve") == []
    assert await ids(None) == ["ann2", "bob1", "bob2", "ann1"]
    assert (await service.list_sessions(app_name=unique("app"))).sessions == []


# Names


ODD = [
    ("a", "b:c", "d"),
    ("a:b", "c", "d"),
    ("a", "b", "c:d"),
    ("a/b", "c", "d"),
    ("a", "b/c", "d"),
    ("a%2Fb", "c", "d"),
    ("a%3Ab", "c", "d"),
    ("a b", "c", "d"),
    ("a", "b c", "d e"),
    ("ü", "é", "名前"),
    ("u\u0308", "é", "名前"),
    ("a", "..", "."),
    ("a", ".", ".."),
    ("message", "a message", "message"),
    ("a", "\n", "b+c"),
    ("a", "\n", "b/c"),
    ("a", " ", "b"),
    ("a", "%0A", "/"),
    ("a", "*", "{x}"),
    ("#", "?x=1", "#"),
    ("a" * 300, "b", "c"),
    ("a" * 300, "bc", ""),
    ("a" * 150, "b" * 150, "c"),
    ("a" * 150, "b" * 149, "bc"),
    ("a", "b" * 400, "c"),
    ("A", "b", "c"),
    ("a", "b", "C"),
    ("a", "b", "c"),
]


async def test_ids_with_colons_slashes_spaces_or_any_unicode_never_collide(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService
) -> None:
    salt = str(uuid4())
    names = [(app + salt, user, id or "x") for app, user, id in ODD]
    for number, (app, user, id) in enumerate(names):
        session = await service.create_session(
            app_name=app, user_id=user, session_id=id, state={"n": number, "user:n": number}
        )
        assert (session.app_name, session.user_id, session.id) == (app, user, id.strip())
        await service.append_event(session, event(str(number)))
    last = {(app, user): number for number, (app, user, _) in enumerate(names)}
    for number, (app, user, id) in enumerate(names):
        found = await replica.get_session(app_name=app, user_id=user, session_id=id)
        assert found is not None
        assert found.state == {"n": number, "user:n": last[app, user]}
        assert [text for _, text in await spoken(replica, user, id, app=app)] == [str(number)]
        listed = (await replica.list_sessions(app_name=app, user_id=user)).sessions
        assert {session.id for session in listed} == {name[2] for name in names if name[:2] == (app, user)}
    for app, user, id in names:
        await service.delete_session(app_name=app, user_id=user, session_id=id)
        assert await replica.get_session(app_name=app, user_id=user, session_id=id) is None
    for app, user, _ in names:
        assert (await service.list_sessions(app_name=app, user_id=user)).sessions == []


# Many writers


async def test_A4_two_replicas_that_write_a_thousand_keys_and_events_at_once_lose_nothing(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str, app: str
) -> None:
    """Each replica has a copy of the session that is stale after the first write of the other."""
    count = 1_000
    session = await service.create_session(app_name=app, user_id=user)
    copies = [(service, session), (replica, await reloaded(replica, session))]
    limit = asyncio.Semaphore(40)

    async def write(number: int) -> None:
        on, copy = copies[number % 2]
        delta = {f"{prefix}{number}": number for prefix in ("", "user:", "app:")}
        async with limit:
            await on.append_event(copy, event(str(number), state=delta))

    await asyncio.gather(*(write(number) for number in range(count)))
    for on, _ in copies:
        found = await reloaded(on, session)
        assert found.state == {
            f"{prefix}{number}": number for number in range(count) for prefix in ("", "user:", "app:")
        }
        assert sorted(text for _, text in await spoken(on, user, session.id, app=app)) == sorted(
            str(number) for number in range(count)
        )
    assert await service.get_user_state(app_name=app, user_id=user) == {
        str(number): number for number in range(count)
    }


async def test_on_a_cluster_sessions_users_and_apps_are_on_different_nodes(
    cluster_server: Cluster, app: str
) -> None:
    async with BreadcrumbSessionService(f"crumb+{cluster_server.url}") as service:
        sessions = [
            await service.create_session(
                app_name=app, user_id=f"u{number}", state={"n": number, "app:n": number}
            )
            for number in range(8)
        ]
        await asyncio.gather(
            *(
                service.append_event(session, event("hello", state={"user:m": number}))
                for number, session in enumerate(sessions)
            )
        )
        listed = {
            session.user_id: session.state for session in (await service.list_sessions(app_name=app)).sessions
        }
        assert listed == {f"u{n}": {"n": n, "app:n": 7, "user:m": n} for n in range(8)}
        for session in sessions:
            assert [text for _, text in await spoken(service, session.user_id, session.id, app=app)] == [
                "hello"
            ]
            await service.delete_session(app_name=app, user_id=session.user_id, session_id=session.id)
        assert (await service.list_sessions(app_name=app)).sessions == []


# A writer that dies between two writes


async def _fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original, left = SharedState._write_one, [1]

    async def share(self: SharedState, *arguments: Any) -> None:
        if left:
            left.pop()
            raise StoreUnavailable("the process is gone")
        await original(self, *arguments)

    monkeypatch.setattr(SharedState, "_write_one", share)


async def test_repeating_an_append_completes_interrupted_shared_state(
    store: Store, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = BreadcrumbSessionService(store)
    session = await service.create_session(app_name=app, user_id="ann")
    await _fail_once(monkeypatch)
    one = event("hello", state={"a": 1, "user:a": 1})
    with pytest.raises(StoreUnavailable):
        await service.append_event(session, one)
    assert session.events == []
    half = await reloaded(service, session)
    assert (len(half.events), half.state) == (1, {"a": 1})
    await service.append_event(session, one)
    for found in (session, await reloaded(service, session)):
        assert (len(found.events), found.state) == (1, {"a": 1, "user:a": 1})


async def test_a_late_repetition_does_not_reset_newer_shared_state(store: Store, app: str) -> None:
    service = BreadcrumbSessionService(store)
    session = await service.create_session(app_name=app, user_id="ann")
    one = event("one", state={"user:a": 1})
    await service.append_event(session, one)
    await service.append_event(session, event("two", state={"user:a": 2}))
    await service.append_event(session, one)
    assert await service.get_user_state(app_name=app, user_id="ann") == {"a": 2}


async def test_P4_a_session_is_created_in_one_write_and_a_retry_completes_the_rest(
    store: Store, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = BreadcrumbSessionService(store)
    await _fail_once(monkeypatch)
    wanted: dict[str, Any] = {
        "app_name": app,
        "user_id": "ann",
        "session_id": "s",
        "state": {"a": 1, "user:a": 1},
    }
    with pytest.raises(StoreUnavailable):
        await service.create_session(**wanted)
    found = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert found is not None and found.state == {"a": 1}
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**wanted)
    found = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert found is not None and found.state == {"a": 1, "user:a": 1}


# Cost


async def _calls(store: Store) -> Counter[str]:
    """Return the number of calls of each command on the server, including those of scripts."""
    text: bytes = await store.connection.call(0, b"INFO", b"commandstats")
    found: Counter[str] = Counter()
    for entry in text.decode().splitlines():
        if entry.startswith("cmdstat_"):
            name, _, numbers = entry.removeprefix("cmdstat_").partition(":calls=")
            found[name] = int(numbers.partition(",")[0])
    return found


async def test_A4_an_append_costs_the_same_at_any_length_and_the_last_twenty_read_twenty(
    tmp_path: Path,
) -> None:
    with EmbeddedServer(tmp_path / "data") as redis:
        store = await Store.open(redis.url)
        try:
            service = BreadcrumbSessionService(store)
            session = await service.create_session(app_name=APP, user_id="ann")
            await service.append_event(session, event("warm"))

            async def cost(action: Any) -> Counter[str]:
                before = await _calls(store)
                await action
                spent = await _calls(store) - before
                del spent["info"]
                return spent

            early = await cost(service.append_event(session, event("early", state={"a": 1})))
            assert early["evalsha"] == 1
            await reloaded(service, session, GetSessionConfig(num_recent_events=1))
            await asyncio.gather(*(service.append_event(session, event(str(n))) for n in range(500)))
            assert await cost(service.append_event(session, event("late", state={"a": 2}))) == early
            spent = await cost(reloaded(service, session, GetSessionConfig(num_recent_events=20)))
            assert spent["get"] == 20
            assert spent["evalsha"] == 1
            assert sum(spent.values()) < 30
        finally:
            await store.close()


# Breadcrumbs


async def test_fields_of_a_newer_adk_are_ignored_by_an_older_one(store: Store, user: str) -> None:
    service = BreadcrumbSessionService(store)
    session = await service.create_session(app_name=APP, user_id=user)
    backend = await service._backend()
    newer = event("hello", state={"a": 1}).model_dump(mode="json", by_alias=True, exclude_none=True)
    newer["actions"]["brandNew"] = {"x": 1}
    newer["brandNew"] = 1
    newer["content"]["parts"][0]["brandNew"] = 1
    await backend.append(APP, user, session.id, newer)
    assert await spoken(service, user, session.id) == [("user", "hello")]


async def test_a_breadcrumb_of_the_schema_without_an_event_is_ignored(store: Store, user: str) -> None:
    service = BreadcrumbSessionService(store)
    session = await service.create_session(app_name=APP, user_id=user)
    await service.append_event(session, event("one"))
    contexts: list[dict[str, Any]] = [{}, {"event": 5}, {"event": {}}, {"event": {"timestamp": "x"}}]
    for context in contexts:
        posted = BreadcrumbCreate(
            schema_name="adk.event.v1", tags=[f"session:adk:{APP}:{user}:{session.id}"], context=context
        )
        await store.create(DEVELOPER, posted)
    await service.append_event(session, event("two"))
    assert [text for _, text in await spoken(service, user, session.id)] == ["one", "two"]
    last = await reloaded(service, session, GetSessionConfig(num_recent_events=1))
    assert [one.id for one in last.events] == [session.events[-1].id]
