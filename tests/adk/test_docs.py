"""docs/adk.md agrees with the tests."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.adk.backends import SCHEMES, parse_address
from breadcrumbs.adk.http import OPERATIONS
from tests.adk.test_runner import SERVICES_PY, SERVICES_YAML

TEXT = (Path(__file__).parents[2] / "docs" / "adk.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


def test_the_documented_files_for_adk_are_those_of_the_tests() -> None:
    assert ("python", SERVICES_PY) in BLOCKS
    assert ("yaml", SERVICES_YAML.lstrip("\n")) in BLOCKS


def test_the_documented_calls_of_the_service_are_valid() -> None:
    signature = inspect.signature(BreadcrumbSessionService)
    calls = re.findall(r"BreadcrumbSessionService\([^)]*\)", TEXT)
    assert len(calls) >= 5
    for text in calls:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        bound = signature.bind(*call.args, **{word.arg or "": word.value for word in call.keywords})
        where = bound.arguments.get("where")
        if isinstance(where, ast.Constant):
            assert isinstance(where.value, str)
            parse_address(where.value)


def test_the_program_runs() -> None:
    (program,) = (code for kind, code in BLOCKS if kind == "python" and "Runner(" in code)
    names: dict[str, object] = {}
    exec(compile(program, "docs/adk.md", "exec"), names)
    assert isinstance(names["runner"].session_service, BreadcrumbSessionService)  # type: ignore[attr-defined]


def test_every_route_and_every_kind_of_address_is_listed() -> None:
    listed = set(re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) /[^`]*)`", TEXT, re.MULTILINE))
    assert listed == {
        f"{operation.method} {operation.path}"
        for operation in OPERATIONS
        if not operation.path.startswith("/api/")
    }
    assert {f"/api{place.split()[1]}" for place in listed} == {
        operation.path for operation in OPERATIONS if operation.path.startswith("/api/")
    }
    named = set(re.findall(r"`(crumb[a-z+]*)://", TEXT))
    assert named == set(SCHEMES) - {"crumb+http", "crumb+rediss+cluster"}
