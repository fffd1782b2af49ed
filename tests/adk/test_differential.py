"""The same calls on ADK's in-memory service and on ours have the same results.

Intended differences, which are not generated here:
- values that JSON does not have (NaN, integers beyond 64 bits, lone surrogates): ours refuses them, or stores null;
- empty names of apps and users: ours refuses them;
- another event with an existing id: ours refuses it, ADK's keeps both;
- a repeated event that the caller's session does not have: ours adds it to that session, ADK's does not.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.adk.support import event

APPS = ("one", "two:")
USERS = ("ann", ":ann")

# Few names, and mostly the same ones, so that calls affect each other.
names = st.sampled_from(
    [("one", "ann", "s")] * 4 + [("one", ":ann", "s"), ("two:", "ann", "s"), ("one", "ann", "t/u")]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
keys = st.builds(
    lambda prefix, name: prefix + name,
    st.sampled_from(["", "app:", "user:", "temp:"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
)
states = st.dictionaries(keys, json_values, max_size=4)
moments = st.sampled_from([0.0, 1.0, 1.5, 2.0, 1e9 + 0.1])

calls = st.one_of(
    st.tuples(st.just("create"), names, states | st.none()),
    st.tuples(st.just("append"), names, states, moments),
    st.tuples(st.just("again"), names),
    st.tuples(st.just("get"), names, st.none() | st.integers(0, 4), st.none() | moments),
    st.tuples(st.just("list"), st.sampled_from(APPS), st.sampled_from([*USERS, None])),
    st.tuples(st.just("user state"), names),
    st.tuples(st.just("delete"), names),
)


class Program:
    """Client of a service that keeps its sessions and records the result of each call."""

    def __init__(self, service: BaseSessionService, salt: str) -> None:
        self.service = service
        self.salt = salt
        self.held: dict[tuple[str, str, str], Session] = {}

    async def run(self, number: int, call: tuple[Any, ...]) -> Any:
        try:
            return await self.carry_out(number, *call)
        except (AlreadyExistsError, SessionNotFoundError) as error:
            return type(error).__name__

    async def carry_out(self, number: int, what: str, *rest: Any) -> Any:
        service = self.service
        if what == "list":
            found = await service.list_sessions(app_name=rest[0] + self.salt, user_id=rest[1])
            shown = [self.shown(session) for session in found.sessions]
            # Sessions without events have their creation time, which differs between the services.
            return sorted(shown, key=str)
        app, user, id = rest[0]
        # Both services ignore white space around an id.
        names = {"app_name": app + self.salt, "user_id": user, "session_id": (id, f" {id} ")[number % 2]}
        match what:
            case "create":
                session = await service.create_session(**names, state=rest[1])
                self.held[rest[0]] = session
                return self.shown(session)
            case "append":
                one = event(str(number), state=rest[1], id=f"e{number}", timestamp=rest[2])
                session = self.held.get(rest[0]) or Session(id=id, app_name=app + self.salt, user_id=user)
                appended = await service.append_event(session, one)
                return (
                    appended,
                    session.state,
                    [known.id for known in session.events],
                    session.last_update_time,
                )
            case "again":
                held = self.held.get(rest[0])
                if held is None or not held.events:
                    return None
                await service.append_event(held, held.events[-1].model_copy(deep=True))
                return [known.id for known in held.events]
            case "get":
                config = GetSessionConfig(num_recent_events=rest[1], after_timestamp=rest[2])
                read = await service.get_session(**names, config=config)
                return None if read is None else self.shown(read)
            case "user state":
                return await service.get_user_state(app_name=app + self.salt, user_id=user)
            case _:
                await service.delete_session(**names)
                return None

    def shown(self, session: Session) -> dict[str, Any]:
        document = session.model_dump(exclude={"events", "last_update_time"})
        document["events"] = session.events
        if session.last_update_time < 1.7e9:  # otherwise it is the current time
            document["last_update_time"] = session.last_update_time
        return document


Running: TypeAlias = tuple[asyncio.Runner, BreadcrumbSessionService]


@pytest.fixture
def direct(embedded_server: EmbeddedServer, namespace: str) -> Iterator[Running]:
    with asyncio.Runner() as runner:
        yield runner, BreadcrumbSessionService(embedded_server.url, namespace=namespace)


@pytest.fixture
def over_http(served: str) -> Iterator[Running]:
    with asyncio.Runner() as runner:
        yield runner, BreadcrumbSessionService(served)


async def compare(service: BreadcrumbSessionService, script: list[tuple[Any, ...]]) -> None:
    """Run a script of calls on both services and compare the results. Most calls use one existing session."""
    script = [("create", ("one", "ann", "s"), {"a": 1, "user:b": 2}), *script]
    salt = secrets.token_hex(6)
    theirs, ours = Program(InMemorySessionService(), salt), Program(service, salt)
    for number, call in enumerate(script):
        assert await ours.run(number, call) == await theirs.run(number, call), call


relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@relaxed
@given(st.lists(calls, max_size=25))
def test_every_call_has_the_same_result_as_on_adks_service_in_memory(
    direct: Running, script: list[tuple[Any, ...]]
) -> None:
    runner, service = direct
    runner.run(compare(service, script))


@settings(relaxed, max_examples=25)
@given(st.lists(calls, max_size=20))
def test_over_http_every_call_has_the_same_result_as_on_adks_service_in_memory(
    over_http: Running, script: list[tuple[Any, ...]]
) -> None:
    runner, service = over_http
    runner.run(compare(service, script))
