"""The built files of the page: their sources, their size and how they are served."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from breadcrumbs.web_page import POLICY
from tests.client.support import CRUMB, CrumbUp, environment
from tests.http.conftest import problem
from tests.web.built_files import OUTDATED, PAGE_SOURCES, WEB, built_from, source_hash

DIST = WEB / "dist"


def test_the_built_files_are_built_from_the_current_sources() -> None:
    assert source_hash(PAGE_SOURCES) == built_from(DIST), OUTDATED


def test_all_files_together_are_smaller_than_300_kilobytes_compressed() -> None:
    weight = {file.name: len(gzip.compress(file.read_bytes())) for file in DIST.rglob("*") if file.is_file()}
    assert sum(weight.values()) < 300_000, weight


def test_the_page_loads_nothing_from_other_hosts() -> None:
    html = (DIST / "index.html").read_text("utf-8")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert loaded and all(target.startswith("/assets/") or target == "/docs" for target in loaded)
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)
    assert all(code == "" for code in re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL))
    for sheet in DIST.rglob("*.css"):
        assert not re.search(r"url\((?!/assets/)|@import|https?:", sheet.read_text("utf-8")), sheet.name


def test_the_lock_file_contains_no_registry_urls() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
    assert not [name for name, package in packages.items() if "resolved" in package]
    assert all("integrity" in package for name, package in packages.items() if name)


def test_the_lock_file_lists_every_package_that_npm_ci_expects() -> None:
    """`npm ci` refuses a lock file without the optional dependencies for other platforms."""
    packages = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
    wanted = {
        dependency
        for package in packages.values()
        for kind in ("dependencies", "devDependencies", "optionalDependencies")
        for dependency in package.get(kind, {})
    }
    assert not [name for name in sorted(wanted) if f"node_modules/{name}" not in packages]


def test_crumb_up_prints_a_link_to_the_page(tmp_path: Path) -> None:
    """Only a terminal gets the link. Programs get the same URL as JSON."""
    ours, theirs = pty.openpty()
    command = [str(CRUMB), "up", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment(TERM="dumb", COLUMNS="200")
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while b"Press Ctrl-C to stop" not in seen:
                seen += os.read(ours, 65536)
            link = re.search(r"web page +(http://127\.0\.0\.1:\d+/)", seen.decode())
            assert link is not None, seen.decode()
            assert "<title>Breadcrumbs</title>" in httpx.get(link[1], trust_env=False).text
        finally:
            process.terminate()
            process.wait(60)
            os.close(ours)


@pytest.fixture(scope="module")
def client(crumb_up: CrumbUp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=crumb_up.url, trust_env=False, headers={"accept-encoding": "gzip"}) as client:
        yield client


def assets(client: httpx.Client) -> list[str]:
    found = re.findall(r'"(/assets/[^"]+)"', client.get("/").text)
    assert found
    return found


def test_the_page_has_a_strict_content_security_policy(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and POLICY.startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-cache"


def test_assets_of_the_page_are_cached_as_immutable(client: httpx.Client) -> None:
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for path in assets(client):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == types[path.rpartition(".")[2]]
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.content == (DIST / path.removeprefix("/")).read_bytes()


def test_files_are_compressed_for_clients_that_accept_it(client: httpx.Client) -> None:
    (script,) = (
        path for path in assets(client) if path.startswith("/assets/index-") and path.endswith(".js")
    )
    packed = client.get(script)
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(packed.content) / 2
    for plain in ("identity", "gzip;q=0", "br"):
        answer = client.get(script, headers={"accept-encoding": plain})
        assert "content-encoding" not in answer.headers
        assert answer.content == packed.content
        assert "Accept-Encoding" in answer.headers["vary"]
    assert answer.headers["etag"] != packed.headers["etag"]


def test_an_unchanged_page_is_304(client: httpx.Client) -> None:
    first = client.get("/")
    for tag in (first.headers["etag"], f"W/{first.headers['etag']}", f'"other", {first.headers["etag"]}'):
        again = client.get("/", headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/", headers={"if-none-match": '"other"'}).status_code == 200


def test_head_returns_the_headers_of_get(client: httpx.Client) -> None:
    get, head = client.get("/"), client.head("/")
    assert head.content == b""
    for name in ("content-length", "etag", "content-type", "content-security-policy"):
        assert head.headers[name] == get.headers[name]


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2findex.html", "%2e%2e%2fstamp.txt", "index.html", "a/b.js"]
)
def test_an_unknown_asset_is_404(client: httpx.Client, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404
    problem(client.get("/assets/nothing.js"), 404, "not-found")


def test_the_page_does_not_hide_the_routes_of_the_api(client: httpx.Client) -> None:
    assert "Content-Security-Policy" in client.get("/docs").headers
    assert client.get("/openapi.json").json()["paths"]["/"]["get"]["operationId"] == "startPage"
    assert client.post("/").status_code == 405


@pytest.mark.parametrize("query", ["?utm_source=mail", "?a=1&a=2&b", "?%ff", "?" + "&".join("x" * 300)])
def test_the_page_ignores_query_parameters(client: httpx.Client, query: str) -> None:
    """Mail programs and search engines add parameters to links."""
    answer = client.get(f"/{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == client.get("/").text
    assert client.get(f"/breadcrumbs{query}").status_code in (400, 422)
