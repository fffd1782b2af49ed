"""Every operation × every kind of principal × own and foreign targets, compared with access_table.py.

Each cell is a real request to the application that `crumb serve` composes. A cell checks the status of the response.
It also checks that the response contains no marker that the principal may not read, that "not found" looks the same as
for an id that never existed, and that refused requests and reads leave every key of the store unchanged.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.http.access_table import PRINCIPALS, TABLE, Row, readers_of
from tests.http.access_world import (
    MARKER,
    Target,
    Template,
    World,
    copied,
    marker,
    unknown_target,
    written_template,
)

SUCCESSES = frozenset(("ok", "-", "apart"))


@pytest.fixture(scope="module")
async def template(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Template:
    return await written_template(embedded_server.url, tmp_path_factory.mktemp("world"))


class Worlds:
    """Copies of the template. A copy is reused until a cell has changed it."""

    def __init__(self, url: str, template: Template) -> None:
        self._url = url
        self.template = template
        self._stack = AsyncExitStack()
        self._world: World | None = None
        self.known: dict[bytes, bytes] = {}

    async def get(self) -> World:
        if self._world is None:
            self._world = await self._stack.enter_async_context(copied(self._url, self.template))
            self.known = {key: raw for key, (raw, _) in self.template.keys.items()}
        return self._world

    async def is_unchanged(self) -> bool:
        """Return whether the store is unchanged."""
        return (await self.get()).snapshot() == self.known

    async def accept_changes(self) -> None:
        self.known = (await self.get()).snapshot()

    async def drop(self) -> None:
        self._world = None
        await self._stack.aclose()


@pytest.fixture
async def worlds(embedded_server: EmbeddedServer, template: Template) -> AsyncIterator[Worlds]:
    worlds = Worlds(embedded_server.url, template)
    yield worlds
    await worlds.drop()


@dataclass
class Checker:
    """Runs the cells of one row and collects the faults."""

    worlds: Worlds
    row: Row
    method: str
    path: str
    wrong: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Principal and fault -> the targets."""
    unknown: Target = field(default_factory=unknown_target)
    _answers: dict[Any, httpx.Response] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        reading = ("previewContext", "testContextConfig", "checkContextConfig")
        return self.method != "GET" and self.row.operation not in reading

    async def run(self, principals: Iterable[str] = PRINCIPALS) -> None:
        for principal in principals:
            targets = [self.worlds.template.targets[name] for name in self.row.outcomes]
            changing = [target for target in targets if self.changes and self._may_succeed(principal, target)]
            for target in targets:
                if target not in changing:
                    await self._cell(principal, target)
            await self._check_unchanged(principal)
            for target in changing:
                await self._cell(principal, target)
                if self.row.destroys or "apart" in self.row.outcomes[target.name][principal]:
                    await self.worlds.drop()
                else:
                    await self.worlds.accept_changes()

    def _may_succeed(self, principal: str, target: Target) -> bool:
        return bool(self.row.outcomes[target.name][principal] & SUCCESSES)

    async def _check_unchanged(self, principal: str) -> None:
        if not await self.worlds.is_unchanged():
            self._note(principal, "any", "refused requests or reads changed the store")
            await self.worlds.drop()

    async def _cell(self, principal: str, target: Target) -> None:
        expected = self.row.outcomes[target.name][principal]
        for query in self.row.queries(target):
            found = await self._judged(principal, target, query, expected)
            if found:
                shown = f" with {query}" if query else ""
                right = "/".join(sorted(expected))
                self._note(principal, target.name, f"expected {right}, {found}{shown}")

    def _note(self, principal: str, target: str, fault: str) -> None:
        self.wrong.setdefault((principal, fault), []).append(target)

    def report(self) -> str:
        faults = [
            f"{principal} → {', '.join(targets)}: {fault}"
            for (principal, fault), targets in self.wrong.items()
        ]
        return "\n  ".join([f"{self.row.operation} ({self.method} {self.path})", *faults])

    async def _judged(
        self, principal: str, target: Target, query: dict[str, str], expected: frozenset[str]
    ) -> str:
        """Perform the operation. Return the fault of the response, or an empty text."""
        world = await self.worlds.get()
        before = world.snapshot(target.owner) if "apart" in expected else {}
        answer = await self._send(principal, target, query)
        leaks = _leaks(answer, principal)
        if leaks:
            return f"got {answer.status_code} that shows {', '.join(leaks)}"
        if answer.status_code < 300:
            return self._success_fault(world, answer, target, expected, before)
        outcome = str(answer.status_code)
        if outcome == "404" and "none" in expected:
            return ""
        if outcome not in expected:
            return f"got {outcome} {_detail(answer)}"
        if outcome == "404":
            control = await self._send(principal, self.unknown, query)
            said, same = _without_ids(answer, target), _without_ids(control, self.unknown)
            if (control.status_code, same) != (404, said):
                return f"got a 404 that differs from an unknown id: {said} != {control.status_code} {same}"
        return ""

    def _success_fault(
        self,
        world: World,
        answer: httpx.Response,
        target: Target,
        expected: frozenset[str],
        before: dict[bytes, bytes],
    ) -> str:
        sought = self._sought(target)
        shown = sought is not None and sought in answer.text
        if "apart" in expected:
            return "" if world.snapshot(target.owner) == before else "the other tenant's data changed"
        if {"ok", "-"} <= expected:
            return ""
        if "ok" in expected:
            return "" if shown or sought is None else f"got {answer.status_code} without {sought}"
        if "-" in expected:
            return f"got {answer.status_code} that shows {sought}" if shown else ""
        return f"got {answer.status_code} {answer.text[:120]}"

    def _sought(self, target: Target) -> str | None:
        """Return the text that a response contains exactly if it shows the target."""
        shows = self.row.shows
        if shows.startswith("@"):
            return target[shows[1:]]
        return marker(shows, target.name) if shows and (shows, target.name) not in UNMARKED else None

    async def _send(self, principal: str, target: Target, query: dict[str, str]) -> httpx.Response:
        world = await self.worlds.get()
        if self.row.operation == "streamEvents":
            return await self._once(world, principal, query)
        path = self.row.path(self.path, target)
        body = None if self.row.body is None else self.row.body(target)
        return await world.send(principal, self.method, path, params=query, json=body)

    async def _once(self, world: World, principal: str, query: dict[str, str]) -> httpx.Response:
        key = (world.namespace, principal, *query.items())
        if key not in self._answers:
            self._answers[key] = await world.stream(principal, query)
        return self._answers[key]


UNMARKED = frozenset(
    (
        ("title", "adkann"),
        ("message", "adkann"),
        ("trigger", "nocontext"),
        ("crumb", "context"),
        ("crumb", "adkrecord"),
    )
)
"""Targets without a marker of the kind that the row shows."""


def _leaks(answer: httpx.Response, principal: str) -> list[str]:
    text = answer.text + repr(answer.headers)
    found = dict.fromkeys(MARKER.findall(text))
    return [f"{kind} of {target}" for kind, target in found if principal not in readers_of(kind, target)]


def _detail(answer: httpx.Response) -> str:
    return answer.text[:160]


def _without_ids(answer: httpx.Response, target: Target) -> str:
    text = answer.text
    for id in sorted(set(target.ids.values()), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(id)}(?![\w-])", "<id>", text)
    return text


@pytest.fixture(scope="module")
async def served(embedded_server: EmbeddedServer, template: Template) -> dict[str, tuple[str, str]]:
    """Operation id -> method and path, as the server documents them."""
    async with copied(embedded_server.url, template) as world:
        document = (await world.send("none", "GET", "/openapi.json")).json()
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


async def test_every_operation_has_a_row_and_every_row_an_operation(
    served: dict[str, tuple[str, str]],
) -> None:
    assert sorted(served) == sorted(TABLE), "add the operation to tests/http/access_table.py"


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
async def test_an_operation_follows_the_table_for_each_principal(
    worlds: Worlds, served: dict[str, tuple[str, str]], row: Row
) -> None:
    checker = Checker(worlds, row, *served[row.operation])
    await checker.run()
    if checker.wrong:
        pytest.fail(checker.report(), pytrace=False)


# Each entry removes one rule of the policy. The named row must then have faults.


def _allow(*args: Any, **options: Any) -> bool:
    return True


def _pass(*args: Any, **options: Any) -> None:
    return None


def _given(principal: Any, *given: Any, **options: Any) -> Any:
    """Return the last argument of the policy unchanged."""
    return given[-1]


REMOVED_RULES: tuple[tuple[str, Any, str], ...] = (
    ("check_operation", _pass, "listDeadLetters"),
    ("check_session_not_deleted", _pass, "getSession"),
    ("may_see", _allow, "getBreadcrumb"),
    ("may_see_event", _allow, "streamEvents"),
    ("may_read_content", _allow, "getBreadcrumbFull"),
    ("restrict_query", _given, "listBreadcrumbs"),
    ("admit_new", _given, "createBreadcrumb"),
    ("admit_change", _given, "updateBreadcrumb"),
    ("check_session_user", _pass, "deleteBreadcrumb"),
    ("may_see_session", _allow, "getSession"),
    ("may_read_state", _allow, "getSession"),
    ("admit_session_user", _given, "createSession"),
    ("check_fork", _pass, "forkSession"),
    ("may_see_adk_session", _allow, "getAdkSession"),
    ("check_adk_write", _pass, "appendAdkEvent"),
    ("check_adk_create", _pass, "createAdkSession"),
    ("may_read_app_state", _allow, "getAdkSession"),
    ("may_read_user_state", _allow, "getAdkUserState"),
    ("may_see_context_item", _allow, "getBreadcrumbHistory"),
    ("may_see_agent", _allow, "listAgents"),
    ("check_agent_change", _pass, "putAgent"),
    ("owns_selector", _allow, "deleteSelector"),
    ("check_tenant", _pass, "getTenant"),
)


SOME_PRINCIPALS = ("agent", "session", "user", "s+user", "adk", "foreign", "again")
"""A subset that is enough to detect a missing rule."""


@pytest.mark.parametrize(
    ("rule", "replacement", "operation"), REMOVED_RULES, ids=[rule for rule, _, _ in REMOVED_RULES]
)
async def test_the_table_fails_when_a_rule_is_removed(
    worlds: Worlds,
    served: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    replacement: Any,
    operation: str,
) -> None:
    intact = Checker(worlds, TABLE[operation], *served[operation])
    await intact.run(SOME_PRINCIPALS)
    monkeypatch.setattr(policy, rule, replacement)
    broken = Checker(worlds, TABLE[operation], *served[operation])
    await broken.run(SOME_PRINCIPALS)
    assert broken.wrong.keys() - intact.wrong.keys()
