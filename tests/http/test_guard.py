"""Checks of Host and Origin, CORS preflights, and the log of requests."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from breadcrumbs.runtime.settings.settings import OWN_EXTENSION, Settings
from tests.http.conftest import KEYS, MakeSite, Site, problem

EXTENSION = OWN_EXTENSION
OTHER_EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
FIREFOX_EXTENSION = "moz-extension://2c127fa4-62c7-7e4f-90e5-472b45eecfdc"


# Host


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8081", "127.0.0.1:9", "127.1.2.3:80", "localhost", "localhost:3000", "LOCALHOST",
        "localhost.", "[::1]", "[::1]:8081",
    ],
)  # fmt: skip
async def test_every_local_host_name_is_accepted(site: Site, host: str) -> None:
    assert (await site.client.get("/health", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "evil@127.0.0.1",
        "127.0.0.1@evil.example", "0.0.0.0", "192.168.1.5", "[::]", "::1", "[::1", "127.0.0.1:8081:1", "",
        "127.0.0.1 evil.example", "localhost/evil", "2130706433", "0x7f.1", "127.0.0.1:99999999",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/breadcrumbs"), ("POST", "/auth/token"), ("GET", "/nowhere")]
)
async def test_a_foreign_host_name_is_refused(site: Site, host: str, method: str, path: str) -> None:
    answer = await site.client.request(method, path, headers={"Host": host})
    assert "allowed_hosts" in problem(answer, 421, "misdirected")["detail"]


async def test_two_host_headers_are_refused(site: Site) -> None:
    headers = [("Host", "127.0.0.1"), ("Host", "127.0.0.1")]
    problem(await site.client.get("/health", headers=headers), 421, "misdirected")


async def test_a_host_name_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_hosts=["crumbs.example", "other.example:8443"])
    for host in ("crumbs.example", "crumbs.example:1234", "Crumbs.Example", "other.example:8443"):
        assert (await site.client.get("/health", headers={"Host": host})).status_code == 200
    for host in ("sub.crumbs.example", "other.example:80", "other.example"):
        assert (await site.client.get("/health", headers={"Host": host})).status_code == 421


async def test_every_host_name_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_hosts=["*"])
    assert (await site.client.get("/health", headers={"Host": "any.example"})).status_code == 200


async def test_a_public_server_with_keys_accepts_any_host_name_by_default(
    make_site: MakeSite,
) -> None:
    public: dict[str, Any] = {"host": "0.0.0.0", "api_keys": KEYS}
    site = await make_site(**public)
    assert (await site.client.get("/health", headers={"Host": "any.example"})).status_code == 200
    strict = await make_site(**public, allowed_hosts=["crumbs.example"])
    assert (await strict.client.get("/health", headers={"Host": "any.example"})).status_code == 421
    local = await make_site(api_keys=KEYS)
    assert (await local.client.get("/health", headers={"Host": "any.example"})).status_code == 421


# Origin


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example", "http://127.0.0.1:3000", "http://localhost:8081", "null", "", "http://127.0.0.1",
        "file://", "chrome-extension://", "chrome-extension://a/b", "https://chrome-extension",
        "http://127.0.0.1:8081.evil.example", "http://evil.example#http://127.0.0.1:8081", "ftp://127.0.0.1:8081",
        "xchrome-extension://abcdefghijklmnop", OTHER_EXTENSION, FIREFOX_EXTENSION,
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_every_request_of_a_foreign_page_is_refused(site: Site, origin: str, method: str) -> None:
    answer = await site.client.request(method, "/breadcrumbs", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin"


async def test_a_foreign_page_cannot_write_without_a_preflight(site: Site) -> None:
    for media_type in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
        answer = await site.client.post(
            "/breadcrumbs",
            content=b'{"title": "from afar"}',
            headers={"Origin": "https://evil.example", "Content-Type": media_type},
        )
        problem(answer, 403, "foreign-origin")
    assert await site.count() == 0


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8081", "https://127.0.0.1:8081", EXTENSION])
async def test_our_own_page_and_extension_are_accepted(site: Site, origin: str) -> None:
    answer = await site.client.post("/breadcrumbs", json={"title": "x"}, headers={"Origin": origin})
    assert answer.status_code == 201
    assert answer.headers["access-control-allow-origin"] == origin
    assert {"ETag", "Link", "X-Has-More", "Idempotency-Replayed", "Location"} <= set(
        answer.headers["access-control-expose-headers"].split(", ")
    )
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", [OTHER_EXTENSION, FIREFOX_EXTENSION])
async def test_the_refusal_of_an_extension_names_the_setting_that_allows_it(
    site: Site, keyed: Site, origin: str
) -> None:
    for server in (site, keyed):
        answer = await server.client.get("/health", headers={"Origin": origin})
        detail = problem(answer, 403, "foreign-origin")["detail"]
        assert "allowed_extensions" in detail and origin in detail


async def test_other_extensions_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_extensions=[OTHER_EXTENSION, FIREFOX_EXTENSION])
    for origin, status in ((OTHER_EXTENSION, 200), (FIREFOX_EXTENSION, 200), (EXTENSION, 403)):
        answer = await site.client.get("/health", headers={"Origin": origin})
        assert answer.status_code == status


async def test_every_extension_of_one_browser_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_extensions=["moz-extension://*"])
    for origin, status in ((FIREFOX_EXTENSION, 200), (OTHER_EXTENSION, 403), ("moz-extension://", 403)):
        answer = await site.client.get("/health", headers={"Origin": origin})
        assert answer.status_code == status


@pytest.mark.parametrize("origin", ["https://app.example", "chrome-extension://", "*", "abcdefghijklmnop"])
def test_a_setting_that_is_not_an_extension_is_refused_at_start(origin: str) -> None:
    with pytest.raises(ValidationError, match="is not an extension"):
        Settings(allowed_extensions=(origin,))


def test_the_key_in_the_manifest_gives_the_extension_the_id_that_is_allowed() -> None:
    manifest = json.loads((Path(__file__).parents[2] / "extension" / "manifest.json").read_text("utf-8"))
    digest = sha256(base64.b64decode(manifest["key"])).hexdigest()
    id = "".join(chr(ord("a") + int(digit, 16)) for digit in digest[:32])
    assert f"chrome-extension://{id}" == OWN_EXTENSION


async def test_an_allowed_page_can_read_error_replies(site: Site) -> None:
    answer = await site.client.get("/breadcrumbs?nonsense=1", headers={"Origin": EXTENSION})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (422, EXTENSION)


async def test_an_origin_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_origins=["https://app.example/"])
    assert (await site.client.get("/health", headers={"Origin": "https://app.example"})).status_code == 200
    for origin in ("https://app.example:8443", "http://app.example", "https://app.example.evil.example"):
        assert (await site.client.get("/health", headers={"Origin": origin})).status_code == 403


@pytest.mark.parametrize(
    ("origin", "right"),
    [
        ("https://app.example/chat", "https://app.example"),
        ("app.example", "https://app.example"),
        ("localhost:5173", "http://localhost:5173"),
        ("https://*.app.example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("https://me@app.example", "https://app.example"),
        ("https://app.example?x", "https://app.example"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("", "https://app.example"),
    ],
)
def test_an_origin_that_can_never_match_is_refused_at_start_with_the_right_form(
    origin: str, right: str
) -> None:
    with pytest.raises(ValidationError, match=f"can never match: .*; use {re.escape(right)} "):
        Settings(allowed_origins=(origin,))


@pytest.mark.parametrize(
    "origin", ["*", "null", "HTTP://localhost:5173", "https://[::1]:8443", "capacitor://localhost"]
)
def test_every_origin_that_a_browser_sends_can_be_allowed(origin: str) -> None:
    assert Settings(allowed_origins=(origin,)).allowed_origins == (origin,)


async def test_a_refused_origin_is_logged_once_with_the_setting_that_allows_it(make_site: MakeSite) -> None:
    site = await make_site()
    with structlog.testing.capture_logs() as logs:
        for origin in ("https://app.example", OTHER_EXTENSION, "https://app.example", "https://a\x1b[31mb"):
            await site.client.get("/health", headers={"Origin": origin})
        for number in range(200):
            await site.client.get("/health", headers={"Origin": f"https://{number}.example"})
    found = [
        (entry["origin"], entry["add_it_to_the_setting"])
        for entry in logs
        if entry["event"] == "origin refused"
    ]
    assert found[0] == ("https://app.example", "allowed_origins")
    assert found[1] == (OTHER_EXTENSION, "allowed_extensions")
    assert len(found) == len(set(found)) == 100
    assert all(origin.isprintable() and len(origin) <= 200 for origin, _ in found)


async def test_every_origin_can_be_allowed(make_site: MakeSite) -> None:
    site = await make_site(allowed_origins=["*"])
    answer = await site.client.get("/health", headers={"Origin": "https://any.example"})
    assert answer.headers["access-control-allow-origin"] == "https://any.example"


async def test_a_request_without_an_origin_gets_no_cors_headers(site: Site) -> None:
    answer = await site.client.get("/health")
    assert not [name for name in answer.headers if name.startswith("access-control")]


# Preflight


async def test_a_preflight_allows_the_headers_that_clients_send(keyed: Site) -> None:
    """Browsers send a preflight without a token."""
    asked = {
        "Origin": EXTENSION,
        "Access-Control-Request-Method": "PATCH",
        "Access-Control-Request-Headers": "authorization,content-type,if-match",
    }
    answer = await keyed.client.options("/breadcrumbs/anything", headers=asked)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == EXTENSION
    assert "PATCH" in answer.headers["access-control-allow-methods"].split(", ")
    assert "traceparent" in answer.headers["access-control-allow-headers"].split(", ")
    assert {
        "Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID", "X-API-Key",
    } <= set(answer.headers["access-control-allow-headers"].split(", "))  # fmt: skip
    assert int(answer.headers["access-control-max-age"]) > 0
    assert "access-control-allow-private-network" not in answer.headers
    private = await keyed.client.options(
        "/breadcrumbs", headers=asked | {"Access-Control-Request-Private-Network": "true"}
    )
    assert private.headers["access-control-allow-private-network"] == "true"


async def test_a_preflight_from_a_foreign_page_is_refused(site: Site) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await site.client.options("/breadcrumbs", headers=asked)
    problem(answer, 403, "foreign-origin")
    assert "access-control-allow-methods" not in answer.headers


async def test_options_without_a_page_lists_the_methods(site: Site) -> None:
    answer = await site.client.options("/breadcrumbs")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, POST")


# Metrics and logs


async def test_requests_are_counted_by_route_and_not_by_path(site: Site) -> None:
    id = (await site.post(title="x"))["id"]
    await site.client.get(f"/breadcrumbs/{id}")
    await site.client.get(f"/breadcrumbs/{id}?nothing=1")
    await site.client.get("/nowhere/at/all")
    await site.client.request("BREW", "/health")
    text = (await site.client.get("/metrics")).text
    assert 'breadcrumbs_http_requests_total{method="POST",route="/breadcrumbs",status="201"} 1.0' in text
    assert 'breadcrumbs_http_requests_total{method="GET",route="/breadcrumbs/{id}",status="200"} 1.0' in text
    assert 'breadcrumbs_http_requests_total{method="GET",route="/breadcrumbs/{id}",status="422"} 1.0' in text
    assert 'breadcrumbs_http_requests_total{method="GET",route="unknown",status="404"} 1.0' in text
    assert 'breadcrumbs_http_requests_total{method="other",route="/health",status="405"} 1.0' in text
    assert (
        'breadcrumbs_http_request_seconds_bucket{le="+Inf",method="POST",route="/breadcrumbs",status="201"} 1.0'
        in text
    )
    assert "breadcrumbs_http_in_flight 1.0" in text
    assert id not in text


async def test_the_access_log_contains_no_query(make_site: MakeSite, printed_logs: Callable[[], str]) -> None:
    site = await make_site(log_level="debug")
    await site.client.get("/breadcrumbs?tag=hunter2&token=hunter3")
    await site.client.get("/events/stream?token=hunter4")
    logged = printed_logs()
    assert "/breadcrumbs" in logged
    assert "hunter" not in logged
