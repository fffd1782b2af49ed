"""Invalid requests: each gets a 4xx problem document with advice, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.conftest import KEY, OTHER_KEY, Site, problem

JSON = {"Content-Type": "application/json"}
UNSUPPORTED = "unsupported-media-type"


@dataclass
class Bad:
    """A body that is refused, with the expected problem."""

    name: str
    body: Any
    status: int = 422
    kind: str = "invalid-input"
    where: str | None = None
    says: str = ""
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)


def _nested(levels: int) -> bytes:
    return b'{"context": ' + b'{"a": ' * levels + b"1" + b"}" * levels + b"}"


def _as(media_type: str) -> dict[str, str]:
    return {"Content-Type": media_type}


def _key(idempotency_key: str) -> dict[str, str]:
    return {**JSON, "Idempotency-Key": idempotency_key}


BODIES = [
    Bad("nothing", b"", 400, "malformed", says="JSON"),
    Bad("not JSON", b"title=x", 400, "malformed", says="JSON"),
    Bad("half of it", b'{"title": "x"', 400, "malformed", says="JSON"),
    Bad("two documents", b"{} {}", 400, "malformed", says="JSON"),
    Bad("not UTF-8", b'{"title": "\xff\xfe"}', 400, "malformed", says="UTF-8"),
    Bad("UTF-16", '{"title": "x"}'.encode("utf-16"), 400, "malformed", says="JSON"),
    Bad("a byte order mark", b'\xef\xbb\xbf{"title": "x"}', 400, "malformed", says="byte order mark"),
    Bad("a lone surrogate", rb'{"title": "\ud800"}', 400, "malformed", says="surrogate"),
    Bad("a lone surrogate deep in the context", rb'{"context": {"a": ["\udc00"]}}', 400, "malformed"),
    Bad("NaN", b'{"context": {"a": NaN}}', 400, "malformed", says="JSON"),
    Bad("Infinity", b'{"context": {"a": -Infinity}}', 400, "malformed", says="JSON"),
    Bad("a number beyond floats", b'{"context": {"a": 1e400}}', 400, "malformed", says="infinity"),
    Bad("too deep", _nested(64), says="flatten"),
    Bad("far too deep", _nested(50_000), 400, "malformed"),
    Bad("too deep in arrays", b'{"context": {"a": ' + b"[" * 70 + b"]" * 70 + b"}}", says="flatten"),
    Bad("an integer past 64 bits", b'{"context": {"a": 18446744073709551616}}', says="64 bits"),
    Bad("a negative integer past 64 bits", b'{"context": {"a": -9223372036854775809}}', says="64 bits"),
    Bad("an endless integer", b'{"context": {"a": ' + b"9" * 5000 + b"}}", 400, "malformed"),
    Bad("an array", [], says=""),
    Bad("null", None),
    Bad("a string", "hello"),
    Bad("a title that is a number", {"title": 5}, where="title"),
    Bad("a title of two lines", {"title": "a\nb"}, where="title", says="control"),
    Bad("a title that never ends", {"title": "x" * 501}, where="title"),
    Bad("a description that never ends", {"description": "x" * 10_001}, where="description"),
    Bad("a context that is a list", {"context": [1]}, where="context"),
    Bad("a thousand tags", {"tags": [f"t{n}" for n in range(1000)]}, where="tags"),
    Bad("a tag of 10 kB", {"tags": ["x" * 10_240]}, where="tags.0"),
    Bad("an empty tag", {"tags": [""]}, where="tags.0"),
    Bad("a tag of white space", {"tags": [" \u00a0"]}, where="tags.0"),
    Bad("a tag that is a number", {"tags": [1]}, where="tags.0"),
    Bad("a NUL in a tag", {"tags": ["a\x00b"]}, where="tags.0", says="control"),
    Bad("a line break in a tag", {"tags": ["a\r\nb"]}, where="tags.0", says="control"),
    Bad("a C1 control in a tag", {"tags": ["a\x85b"]}, where="tags.0", says="control"),
    Bad("a line separator in a tag", {"tags": ["a\u2028b"]}, where="tags.0", says="control"),
    Bad("a control character in the schema", {"schema_name": "a\x1bb"}, where="schema_name", says="control"),
    Bad("two sessions", {"tags": ["session:a", "session:b"]}, 422, "session-conflict", "tags", "one session"),
    Bad(
        "a session that disagrees", {"tags": ["session:a"], "context": {"session_id": "b"}},
        422, "session-conflict", "context.session_id",
    ),
    Bad("a session that is a number", {"context": {"session_id": 5}}, 422, "session-conflict"),
    Bad("a session that is a list", {"context": {"session_id": []}}, 422, "session-conflict"),
    Bad("a session without a name", {"tags": ["session:"]}, where="session_id"),
    Bad("a session with a line break", {"context": {"session_id": "a\nb"}}, where="session_id"),
    Bad("a session that never ends", {"context": {"session_id": "x" * 300}}, where="session_id"),
    Bad("an unknown field", {"titel": "x"}, where="titel", says="unknown field"),
    Bad("an owner in the body", {"owner_id": str(uuid4())}, where="owner_id", says="set by the store"),
    Bad("an id in the body", {"id": str(uuid4())}, where="id", says="set by the store"),
    Bad("a version in the body", {"version": 7}, where="version", says="set by the store"),
    Bad("an unknown visibility", {"visibility": "everyone"}, where="visibility"),
    Bad("an unknown sensitivity", {"sensitivity": "hot"}, where="sensitivity"),
    Bad("a time without a zone", {"ttl": "2030-01-01T00:00:00"}, where="ttl"),
    Bad("a time before time", {"ttl": "1066-10-14T00:00:00Z"}, where="ttl"),
    Bad("a time beyond time", {"ttl": "9999-12-31T23:59:59Z"}, where="ttl"),
    Bad("a duration without one", {"ttl_type": "duration"}, where="ttl_config.duration"),
    Bad("a duration of nothing", {"ttl_type": "duration", "ttl_config": {"duration": 0}}),
    Bad("reads without a number", {"ttl_type": "usage"}, where="ttl_config.max_reads"),
    Bad("no reads at all", {"ttl_type": "usage", "ttl_config": {"max_reads": 0}}),
    Bad("hints that nobody knows", {"llm_hints": {"include_all": True}}, says="llm_hints"),
    Bad("hints in jq", {"llm_hints": {"transform": {"a": {"type": "jq", "query": "."}}}}),
    Bad("an open template", {"llm_hints": {"transform": {"a": {"type": "template", "template": "{{#if a}}"}}}}),
    Bad("a form", b"title=x", 415, UNSUPPORTED, headers=_as("application/x-www-form-urlencoded")),
    Bad("text, as pages may send it", b"{}", 415, UNSUPPORTED, headers=_as("text/plain")),
    Bad("no type at all", b"{}", 415, UNSUPPORTED, headers={}),
    Bad("another charset", b"{}", 415, UNSUPPORTED, headers=_as("application/json; charset=utf-16")),
    Bad("a merge patch", b"{}", 415, UNSUPPORTED, headers=_as("application/merge-patch+json")),
    Bad("an empty idempotency key", {}, headers=_key(""), where="Idempotency-Key"),
    Bad("an endless idempotency key", {}, headers=_key("x" * 256), where="Idempotency-Key"),
    Bad("a control in an idempotency key", {}, headers=_key("a\x85"), where="Idempotency-Key"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BODIES, ids=lambda bad: bad.name)
async def test_a_bad_body_is_refused_and_nothing_is_written(site: Site, bad: Bad) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in bad.headers.items()]
    answer = await site.client.post("/breadcrumbs", content=bad.raw, headers=headers)
    document = problem(answer, bad.status, bad.kind)
    told = document["detail"] + " ".join(error["message"] for error in document.get("errors", ()))
    assert bad.says in told
    if bad.where is not None:
        assert bad.where in [error["where"] for error in document["errors"]]
    assert await site.count() == 0


@pytest.mark.parametrize("bad", [bad for bad in BODIES if bad.status != 415], ids=lambda bad: bad.name)
async def test_the_same_body_is_refused_as_a_change(site: Site, bad: Bad) -> None:
    if "Idempotency-Key" in bad.headers:
        return  # a change has no idempotency key
    id = (await site.post(title="before", tags=["session:s"]))["id"]
    for media_type in ("application/json", "application/merge-patch+json"):
        answer = await site.client.patch(
            f"/breadcrumbs/{id}", content=bad.raw, headers={"Content-Type": media_type}
        )
        assert answer.status_code in (400, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    view = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    assert (view["version"], view["title"]) == (1, "before")


async def test_a_body_with_a_large_content_length_is_refused_unread(site: Site) -> None:
    limit = 1 << 20
    answer = await site.client.post("/breadcrumbs", content=b" " * (limit + 1), headers=JSON)
    assert str(limit) in problem(answer, 413, "too-large")["detail"]
    at_the_limit = orjson.dumps({"title": "x"}).ljust(limit)
    assert (await site.client.post("/breadcrumbs", content=at_the_limit, headers=JSON)).status_code == 201


async def test_a_body_in_pieces_is_refused_when_it_exceeds_the_limit(site: Site) -> None:
    sent = 0

    async def pieces() -> Any:
        nonlocal sent
        while sent < 8 << 20:
            sent += 1 << 16
            yield b" " * (1 << 16)

    answer = await site.client.post("/breadcrumbs", content=pieces(), headers=JSON)
    problem(answer, 413, "too-large")
    assert sent < 2 << 20
    assert await site.count() == 0


async def test_a_body_in_pieces_is_read_completely(site: Site) -> None:
    async def pieces() -> Any:
        for byte in b'{"title": "in pieces"}':
            yield bytes([byte])

    answer = await site.client.post("/breadcrumbs", content=pieces(), headers=JSON)
    assert answer.status_code == 201


@pytest.mark.parametrize("lie", ["99999999999999999999999", "-1", "many"])
async def test_an_invalid_content_length_does_not_affect_others(site: Site, lie: str) -> None:
    """The HTTP server refuses these values. Another server could pass them on to the application."""
    answer = await site.client.post("/breadcrumbs", content=b"{}", headers={**JSON, "Content-Length": lie})
    assert answer.status_code in (201, 413)


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
@pytest.mark.parametrize(
    "form", ["", "abc", '"abc"', "1.5", "-1", '"1', "W/1", '"1", "2"', "²", "9" * 30, '"1.zz"', "\x851"]
)
async def test_an_invalid_if_match_is_400_and_shows_the_form(site: Site, method: str, form: str) -> None:
    id = (await site.post(title="before"))["id"]
    answer = await site.client.request(
        method,
        f"/breadcrumbs/{id}",
        content=b'{"title": "after"}' if method == "PATCH" else None,
        headers=[(b"If-Match", form.encode("latin-1")), (b"Content-Type", b"application/json")],
    )
    assert 'W/"3"' in problem(answer, 400, "malformed")["detail"]
    assert (await site.client.get(f"/breadcrumbs/{id}")).json()["version"] == 1


IDS = [
    "1",
    "x",
    "search",
    "0197a3c45e6f70078a9b0c1d2e3f4a5b",
    "{0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b}",
    "%00",
    "%ff",
    "*",
]


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/breadcrumbs/{id}"),
        ("GET", "/breadcrumbs/{id}/full"),
        ("GET", "/breadcrumbs/{id}/history"),
        ("PATCH", "/breadcrumbs/{id}"),
        ("DELETE", "/breadcrumbs/{id}"),
        ("PUT", "/subscriptions/selectors/{id}"),
        ("DELETE", "/subscriptions/selectors/{id}"),
        ("GET", "/agents/{id}"),
        ("POST", "/agents/{id}"),
        ("GET", "/tenants/{id}"),
        ("DELETE", "/tenants/{id}"),
    ],
)
async def test_an_id_that_is_not_a_uuid_is_422_on_every_route(
    site: Site, method: str, path: str, id: str
) -> None:
    body: dict[str, Any] = {"json": {"title": "x"}} if method in ("PATCH", "PUT", "POST") else {}
    answer = await site.client.request(method, path.replace("{id}", id), **body)
    assert "UUID" in problem(answer, 422, "invalid-input")["detail"]


async def test_an_id_of_another_tenant_is_404_like_an_unknown_id(keyed: Site) -> None:
    theirs = (await keyed.post({"X-API-Key": OTHER_KEY}, title="theirs", tags=["session:s"]))["id"]
    for method, suffix, body in (
        ("GET", "", None),
        ("GET", "/full", None),
        ("GET", "/history", None),
        ("PATCH", "", {"title": "mine now"}),
        ("DELETE", "", None),
    ):
        answers = [
            await keyed.client.request(
                method,
                f"/breadcrumbs/{id}{suffix}",
                headers={"X-API-Key": KEY},
                json=body,
            )
            for id in (theirs, uuid4())
        ]
        assert problem(answers[0], 404, "not-found") == problem(answers[1], 404, "not-found")
    view = await keyed.client.get(f"/breadcrumbs/{theirs}", headers={"X-API-Key": OTHER_KEY})
    assert (view.json()["title"], view.json()["version"]) == ("theirs", 1)


async def test_a_stale_if_match_of_another_tenants_breadcrumb_is_404_too(keyed: Site) -> None:
    theirs = (await keyed.post({"X-API-Key": OTHER_KEY}, title="theirs"))["id"]
    headers = {"X-API-Key": KEY, "If-Match": '"9"'}
    problem(await keyed.client.delete(f"/breadcrumbs/{theirs}", headers=headers), 404, "not-found")


async def _first_page(site: Site) -> str:
    for n in range(3):
        await site.post(title=f"{n}", tags=["t"])
    answer = await site.client.get("/breadcrumbs?tag=t&limit=1")
    found = re.search(r"cursor=([^&>]+)", answer.headers["link"])
    assert found is not None
    return found[1]


async def test_a_tampered_cursor_is_refused(site: Site) -> None:
    cursor = await _first_page(site)
    flipped = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    for bad in (flipped, cursor[:-1], cursor + "A", cursor + "=", cursor.swapcase(), "", "x", "%00", "é"):
        problem(
            await site.client.get("/breadcrumbs", params={"tag": "t", "limit": 1, "cursor": bad}),
            422,
            "invalid-cursor",
        )


async def test_a_cursor_is_valid_only_for_its_own_query(site: Site) -> None:
    cursor = await _first_page(site)
    for other in (
        {},
        {"tag": "u"},
        {"tag": "t", "sort": "created_at"},
        {"tag": ["t", "u"]},
        {"any_tags": "t"},
    ):
        problem(
            await site.client.get("/breadcrumbs", params={**other, "cursor": cursor}), 422, "invalid-cursor"
        )
    assert (await site.client.get("/breadcrumbs", params={"tag": "t", "cursor": cursor})).status_code == 200


async def test_a_cursor_of_another_tenant_is_refused(keyed: Site) -> None:
    theirs = {"X-API-Key": OTHER_KEY}
    for n in range(2):
        await keyed.post(theirs, title=f"{n}")
    link = (await keyed.client.get("/breadcrumbs?limit=1", headers=theirs)).links["next"]["url"]
    problem(await keyed.client.get(link, headers={"X-API-Key": KEY}), 422, "invalid-cursor")


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("session=abc", "session"),
        ("Tag=x", "Tag"),
        ("q=hello", "q"),
        ("token=abc", "token"),
        ("schema_name=a&sesion_id=b", "sesion_id"),
        ("=", ""),
    ],
)
async def test_a_misspelt_filter_is_refused_with_the_known_ones(site: Site, query: str, where: str) -> None:
    await site.post(title="x")
    document = problem(await site.client.get(f"/breadcrumbs?{query}"), 422, "invalid-input")
    assert where in [error["where"] for error in document["errors"]]
    assert "session_id" in document["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=10001", "limit=ten", "limit=1.0", "limit=", "limit=٣", "limit=1&limit=2",
        "offset=-1", "offset=100001", "offset=x", "offset=1&cursor=x", "sort=title", "sort=", "sort=-",
        "include_context=maybe", "include_context=", "updated_since=yesterday", "updated_since=2026-01-01",
        "updated_since=0001-01-01T00:00:00%2B23:59", "updated_since=9999-12-31T23:59:59-23:59",
        "owner_id=me", "owner_id=", "tag=", "any_tags=", "all_tags=[\"\"]", "schema_name=", "session_id=",
        f"tag={'x' * 257}", f"session_id={'x' * 249}", f"schema_name={'x' * 201}", "session_id=%00",
        "&".join(f"tag={n}" for n in range(65)), "any_tags=" + "[" + ",".join('"t"' for _ in range(65)) + "]",
    ],
)  # fmt: skip
async def test_a_bad_value_in_the_query_is_422(site: Site, query: str) -> None:
    answer = await site.client.get(httpx.URL("http://127.0.0.1:8081/breadcrumbs?" + query))
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("query", ["tag=%ff", "tag=%ed%a0%80", "&".join(["tag=x"] * 300)])
async def test_a_query_that_cannot_be_read_is_400(site: Site, query: str) -> None:
    problem(await site.client.get(f"/breadcrumbs?{query}"), 400, "malformed")


async def test_unusual_filters_match_nothing_and_cause_no_error(site: Site) -> None:
    await site.post(title="x", tags=["a"])
    for query in (
        "tag=%00",
        "tag=*",
        "tag=a*",
        "tag=%F0%9F%8D%9E",
        "tag=a%0A",
        "any_tags=[1]",
        "any_tags=[",
        "schema_name=%3A%3A",
    ):
        answer = await site.client.get(f"/breadcrumbs?{query}")
        assert (answer.status_code, answer.json()) == (200, []), query


async def test_an_empty_change_is_refused(site: Site) -> None:
    id = (await site.post(title="x"))["id"]
    problem(await site.client.patch(f"/breadcrumbs/{id}", json={}), 422, "invalid-input")


async def test_a_breadcrumb_cannot_move_to_another_session(site: Site) -> None:
    id = (await site.post(title="x", tags=["session:a"]))["id"]
    changes: list[Any] = [
        {"tags": ["session:b"]},
        {"context": {"session_id": "b"}},
        {"context": {"session_id": []}},
    ]
    for change in changes:
        problem(await site.client.patch(f"/breadcrumbs/{id}", json=change), 422, "session-conflict")
    sessionless = (await site.post(title="y"))["id"]
    answer = await site.client.patch(f"/breadcrumbs/{sessionless}", json={"tags": ["session:a"]})
    problem(answer, 422, "session-conflict")


@pytest.mark.parametrize("stated", [[], {}, 5, True, ""])
async def test_a_narrowed_token_with_an_odd_session_is_refused(keyed: Site, stated: Any) -> None:
    narrow = await keyed.token(KEY, session_id="a")
    answer = await keyed.client.post("/breadcrumbs", json={"context": {"session_id": stated}}, headers=narrow)
    assert answer.status_code in (403, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_the_tags_that_a_token_adds_count_towards_the_limit(keyed: Site) -> None:
    narrow = await keyed.token(KEY, session_id="a")
    tags = [f"t{n}" for n in range(64)]
    problem(
        await keyed.client.post("/breadcrumbs", json={"tags": tags}, headers=narrow), 422, "invalid-input"
    )
    created = await keyed.post(narrow, tags=tags[:63])
    changed = await keyed.client.patch(f"/breadcrumbs/{created['id']}", json={"title": "y"}, headers=narrow)
    assert changed.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/breadcrumbs", "GET, HEAD, POST"),
        ("POST", f"/breadcrumbs/{DEVELOPER}", "DELETE, GET, HEAD, PATCH"),
        ("DELETE", "/health", "GET, HEAD"),
        ("TRACE", "/auth/token", "POST"),
        ("BREW", "/breadcrumbs", "GET, HEAD, POST"),
        ("POST", "/events/stream", "GET, HEAD"),
    ],
)
async def test_an_unknown_method_is_405_with_the_allowed_ones(
    site: Site, method: str, path: str, allow: str
) -> None:
    answer = await site.client.request(method, path)
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize(
    "path", ["/nowhere", "/breadcrumbs/", "//breadcrumbs", "/breadcrumbs/x/y", "/BREADCRUMBS", "/../etc"]
)
async def test_an_unknown_path_is_404(site: Site, path: str) -> None:
    problem(await site.client.get(httpx.URL(f"http://127.0.0.1:8081{path}")), 404, "not-found")


async def test_an_internal_error_is_a_500_without_details(
    site: Site, monkeypatch: pytest.MonkeyPatch, printed_logs: Callable[[], str]
) -> None:
    async def broken(*args: object, **options: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr(site.store, "list", broken)
    document = problem(await site.client.get("/breadcrumbs"), 500, "internal")
    assert "hunter2" not in str(document)
    assert document["instance"].startswith("urn:uuid:")
    logged = printed_logs()
    assert document["instance"] in logged
    assert "hunter2" in logged
