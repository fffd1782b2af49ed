"""The OpenAPI document contains every route, and every reply matches it."""

from __future__ import annotations

import os
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breadcrumbs.proofs.replay_http import ReplayRoutes
from breadcrumbs.runtime.http import app
from breadcrumbs.runtime.http.api.openapi import build_document
from breadcrumbs.runtime.http.api.problems import PROBLEM_TYPES
from breadcrumbs.runtime.http.app import OPERATIONS
from breadcrumbs.runtime.http.routes.event_stream import KNOWN_PARAMETERS
from breadcrumbs.runtime.http.routes.waiting import MAX_WAIT_SECONDS
from tests.http.conftest import MakeSite, Site
from tests.support.openapi import call_and_check

DOCUMENT = build_document(OPERATIONS, version="0", development_mode=True)

# The stream does not end. It is checked below and has its own tests.
api = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/events/stream")

EXAMPLES = 50 if os.environ.get("CI") == "true" else 12


async def test_the_document_is_built_once_at_the_first_request(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the server does not wait for it."""
    made: list[Any] = []

    def counted(*args: Any, **options: Any) -> dict[str, Any]:
        made.append(args)
        return build_document(*args, **options)

    monkeypatch.setattr(app, "build_document", counted)
    site = await make_site()
    await site.post(title="somebody else's business")
    assert not made
    pages = [
        (await site.client.get(path)).content for path in ("/openapi.json", "/docs", "/openapi.json", "/docs")
    ]
    assert pages[:2] == pages[2:] and all(pages)
    assert len(made) == 1


@api.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_reply_matches_the_document(case: schemathesis.Case[Any], served: str) -> None:
    """Check status, headers, type and body of each reply against the document.

    No reply is a 5xx, other methods are 405, and input that the document forbids is refused. Allowed input can still
    be refused: JSON Schema cannot express that a session tag and `context.session_id` must agree.
    """
    # There are no workers here, so a long wait would only cost time. The type stays: schemathesis compares the value
    # with the schema afterwards, and takes a text in place of a generated number for an error of the request.
    if _is_a_wait(wait := (case.query or {}).get("wait")):
        case.query["wait"] = "0.1" if isinstance(wait, str) else 0.1
    call_and_check(case, served)


def _is_a_wait(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    try:
        return 0 < float(value) <= MAX_WAIT_SECONDS
    except ValueError:
        return False


@settings(max_examples=EXAMPLES)
@given(
    query=st.lists(
        st.tuples(
            st.sampled_from([*sorted(KNOWN_PARAMETERS - {"token", "access_token"}), "x"]), st.text(max_size=5)
        ),
        max_size=4,
    )
)
def test_the_replies_of_the_stream_match_the_document(served: str, query: list[tuple[str, str]]) -> None:
    pairs: list[tuple[str, Any]] = [
        (name, value.encode("utf-8", "replace").decode()) for name, value in query
    ]
    with httpx.stream("GET", f"{served}/events/stream", params=httpx.QueryParams(pairs)) as answer:
        described = DOCUMENT["paths"]["/events/stream"]["get"]["responses"][str(answer.status_code)]
        media_type = answer.headers["content-type"].partition(";")[0]
        assert media_type in described["content"]
        if answer.status_code != 200:
            answer.read()
            _check(described["content"][media_type]["schema"], answer.json())


def _check(schema: dict[str, Any], document: Any) -> None:
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema_rs.validate(whole, document)


async def test_the_document_contains_exactly_the_routes(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    declared = {(operation.path, operation.method.lower()) for operation in OPERATIONS}
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == declared
    for path, method in declared:
        answer = await site.client.request(
            "OPTIONS", path.replace("{id}", "00000000-0000-0000-0000-000000000001")
        )
        assert method.upper() in answer.headers["allow"].split(", ")


def test_operation_ids_are_unique() -> None:
    ids = [operation.id for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)


def test_every_parameter_of_the_stream_is_documented() -> None:
    stream = next(operation for operation in OPERATIONS if operation.path == "/events/stream")
    assert set(stream.query_names) == KNOWN_PARAMETERS


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_every_example_is_valid(operation: Any) -> None:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    for content in described.get("requestBody", {}).get("content", {}).values():
        _check(content["schema"], content["example"])
    for parameter in described.get("parameters", ()):
        if "example" in parameter:
            _check(parameter["schema"], parameter["example"])


def test_every_problem_is_documented_somewhere() -> None:
    """Two problems belong to no operation: internal errors and unknown methods."""
    served = (*OPERATIONS, *ReplayRoutes("no models").operations)
    found = {kind for operation in served for kind in operation.problems}
    assert {kind.name for kind in set(PROBLEM_TYPES) - found} == {"internal", "method-not-allowed"}


def test_a_token_is_optional_only_in_the_development_mode() -> None:
    keyed = build_document(OPERATIONS, version="0", development_mode=False)
    for path, methods in keyed["paths"].items():
        for method, operation in methods.items():
            open_to_all = DOCUMENT["paths"][path][method]["security"]
            assert {} not in operation["security"]
            assert open_to_all == ([{}, *operation["security"]] if operation["security"] else [])


async def test_the_document_is_open_api_3_1(site: Site) -> None:
    answer = await site.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
