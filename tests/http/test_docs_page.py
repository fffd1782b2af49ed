"""The docs page is complete and loads no script and no foreign resources."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from breadcrumbs.runtime.http.api.problems import PROBLEM_TYPES
from breadcrumbs.runtime.http.app import OPERATIONS
from tests.http.conftest import KEYS, MakeSite, Site

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Parser that collects the parts of the page and checks that elements close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)
        for name, value in attrs:
            self.attributes.append(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.styles.append(data)
        else:
            self.text += data


@pytest.fixture
async def page(site: Site) -> Page:
    return Page((await site.client.get("/docs")).text)


@pytest.mark.parametrize("path", ["/docs", "/"])
async def test_the_page_allows_its_own_style_sheet_and_nothing_else(site: Site, path: str) -> None:
    answer = await site.client.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert "script-src" not in policy
    [style] = Page(answer.text).styles
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert policy["style-src"] == f"'sha256-{digest}'"


async def test_the_page_loads_nothing_from_other_origins(page: Page) -> None:
    assert not {"script", "img", "link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on") or name in ("style", "src")]
    assert all(link.startswith("#") or link == "/openapi.json" for link in page.links)
    assert not re.search(r"url\(|@import|@font-face", page.styles[0])
    addresses = set(re.findall(r"https?://[^/\s']+", page.text))
    assert addresses == {"http://127.0.0.1:8081"}


async def test_every_link_on_the_page_resolves_and_ids_are_unique(page: Page) -> None:
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
async def test_every_operation_is_on_the_page_with_an_example(page: Page, operation: object) -> None:
    id, path = operation.id, operation.path  # type: ignore[attr-defined]
    assert id in page.ids
    address = path.replace("{id}", "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b")
    assert re.search(rf"curl [^\n]*'http://127\.0\.0\.1:8081{re.escape(address)}(\?[^']*)?'", page.text)


async def test_every_problem_type_links_to_its_explanation(site: Site, page: Page) -> None:
    for kind in PROBLEM_TYPES:
        path, _, anchor = kind.uri.partition("#")
        assert path == "/docs"
        assert anchor in page.ids
        assert kind.title in page.text


async def test_the_limits_are_on_the_page(make_site: MakeSite) -> None:
    site = await make_site(max_body_bytes=2_000_000, event_window="36h")
    text = Page((await site.client.get("/docs")).text).text
    assert "2000000 bytes" in text
    assert "36 hours" in text


async def test_with_keys_the_examples_carry_a_token(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS, port=9000)
    text = Page((await site.client.get("/docs")).text).text
    assert "curl -H \"Authorization: Bearer $TOKEN\" 'http://127.0.0.1:9000/agents'" in text
    assert "X-API-Key: $API_KEY" in text
    assert not [key["key"] for key in KEYS if key["key"] in text]


async def test_the_page_supports_small_screens_and_dark_mode(site: Site) -> None:
    html = (await site.client.get("/docs")).text
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in html
    assert "prefers-color-scheme:dark" in html
    assert "overflow-x:auto" in html
    assert '<html lang="en">' in html
