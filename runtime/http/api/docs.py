"""Renders the OpenAPI document as an HTML page without scripts and external resources."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH
from breadcrumbs.runtime.breadcrumb.query import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS
from breadcrumbs.runtime.http.api.problems import PROBLEM_TYPES
from breadcrumbs.runtime.settings.settings import Settings

_EXAMPLE_ID: Final = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5b6570;--paper:#fff;--tint:#f4f5f7;--line:#dde1e6;
--get:#17663a;--post:#1d4ed8;--put:#8a4b00;--patch:#8a4b00;--delete:#b42318;--link:#1d4ed8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa5b1;--paper:#14171a;--tint:#1d2226;--line:#2f363d;
--get:#5fd08f;--post:#8fb4ff;--put:#f0b35c;--patch:#f0b35c;--delete:#ff8a80;--link:#8fb4ff}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:1rem}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,sans-serif;overflow-wrap:anywhere}
a{color:var(--link)}
.page{display:grid;grid-template-columns:minmax(0,1fr);max-width:72rem;margin:auto;padding:0 1rem 4rem}
header{padding:2rem 0 1rem}
h1{margin:0;font-size:2rem;letter-spacing:-.02em}
h2{margin:3rem 0 .25rem;font-size:1.35rem;padding-top:.5rem;border-top:1px solid var(--line)}
h3{margin:2rem 0 .25rem;font-size:1rem;font-weight:600}
p{margin:.4rem 0;max-width:46rem}
.soft{color:var(--soft)}
code,pre{font:.875em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{background:var(--tint);padding:.1em .3em;border-radius:4px}
pre{background:var(--tint);border:1px solid var(--line);border-radius:8px;
padding:.75rem 1rem;overflow-x:auto;margin:.6rem 0}
pre code{background:none;padding:0}
nav ul{list-style:none;margin:0;padding:0}
nav li{margin:.1rem 0;font-size:.9rem}
nav .group{margin-top:.9rem;font-weight:600}
nav a{text-decoration:none}
nav a:hover,nav a:focus-visible{text-decoration:underline}
.method{display:inline-block;min-width:3.6rem;font:600 .8rem ui-monospace,Menlo,Consolas,monospace}
.get{color:var(--get)}.post{color:var(--post)}.put{color:var(--put)}.patch{color:var(--patch)}.delete{color:var(--delete)}
h3 code{background:none;padding:0;font-size:.95rem}
h3 a{color:inherit;text-decoration:none}
details{margin:.4rem 0}
summary{cursor:pointer;color:var(--soft);font-size:.9rem;padding:.35rem 0}
dl{margin:.25rem 0 .5rem;padding-left:.9rem;border-left:2px solid var(--line)}
dt{margin-top:.4rem}
dd{margin:0 0 0 .1rem;color:var(--soft);font-size:.92rem}
@media(min-width:60rem){.page{grid-template-columns:15rem minmax(0,1fr);column-gap:3rem}
header{grid-column:1/-1}
nav{position:sticky;top:0;align-self:start;max-height:100vh;overflow-y:auto;padding-bottom:2rem}}
"""

POLICY: Final = (
    "default-src 'none'; "
    f"style-src 'sha256-{base64.b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
).encode()
"""Content-Security-Policy of the page. It allows only the inline style sheet."""


def render_page(document: Mapping[str, Any], settings: Settings) -> bytes:
    """Return the docs page of an OpenAPI document."""
    page = _DocsPage(document, settings)
    return "".join(page.parts()).encode()


class _DocsPage:
    """Builds the parts of the docs page."""

    def __init__(self, document: Mapping[str, Any], settings: Settings) -> None:
        self._document = document
        self._settings = settings
        host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 (shown, not bound)
        self._base = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"

    def parts(self) -> Iterator[str]:
        info = self._document["info"]
        yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
        yield f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
        yield f'<div class="page"><header><h1>{escape(info["title"])}</h1>'
        yield f'<p class="soft">{escape(info["summary"])}, version {escape(info["version"])}</p>'
        for paragraph in info["description"].split("\n\n"):
            yield f"<p>{_inline_html(paragraph)}</p>"
        yield "</header>"
        yield from self._navigation()
        yield "<main>"
        yield from self._start()
        for tag in self._document["tags"]:
            yield f'<h2 id="{_anchor_name(tag["name"])}">{escape(tag["name"])}</h2>'
            yield f'<p class="soft">{_inline_html(tag["description"])}</p>'
            for method, path, operation in self._operations(tag["name"]):
                yield from self._operation(method, path, operation)
        yield from self._problems()
        yield from self._limits()
        yield "</main></div></body></html>"

    def _operations(self, group: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                if group in operation["tags"]:
                    yield method, path, operation

    def _navigation(self) -> Iterator[str]:
        yield '<nav aria-label="Contents"><ul><li class="group"><a href="#start">Start here</a></li>'
        for tag in self._document["tags"]:
            yield f'<li class="group"><a href="#{_anchor_name(tag["name"])}">{escape(tag["name"])}</a></li>'
            for method, _, operation in self._operations(tag["name"]):
                label = _method_html(method) + escape(operation["summary"])
                yield f'<li><a href="#{operation["operationId"]}">{label}</a></li>'
        yield '<li class="group"><a href="#problems">Problems</a></li>'
        yield '<li class="group"><a href="#limits">Limits</a></li></ul></nav>'

    def _start(self) -> Iterator[str]:
        yield '<h2 id="start">Start here</h2>'
        if self._settings.development_mode:
            yield "<p>This server runs in development mode. Requests from this machine need no token.</p>"
        else:
            yield "<p>Get a token with your API key and send it with every request.</p>"
            yield _code_html(
                f'TOKEN=$(curl -s -X POST {self._base}/auth/token -H "X-API-Key: $API_KEY" |\n'
                "  python3 -c 'import json, sys; print(json.load(sys.stdin)[\"token\"])')"
            )
        yield "<p>Post a breadcrumb, and follow the events of its session:</p>"
        paths = self._document["paths"]
        yield _code_html(self._curl("post", "/breadcrumbs", paths["/breadcrumbs"]["post"]))
        yield _code_html(f"curl -N{self._login()} '{self._base}/events/stream?session_id=abc'")
        yield from self._guides()
        yield '<p>Machine-readable description: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'

    def _guides(self) -> Iterator[str]:
        """Yield links to the guides, if this server has them."""
        guide = self._document["paths"].get("/docs/{name}")
        if guide is not None:
            (parameter,) = guide["get"]["parameters"]
            names = parameter["schema"]["enum"]
            links = (
                f'<a href="/docs/{escape(name)}">{escape(name.removesuffix(".md"))}</a>' for name in names
            )
            yield f"<p>Guides, as Markdown: {', '.join(links)}.</p>"

    def _operation(self, method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
        id = operation["operationId"]
        yield f'<section><h3 id="{id}"><a href="#{id}">{_method_html(method)}<code>{escape(path)}</code></a></h3>'
        yield f"<p><strong>{_inline_html(operation['summary'])}.</strong>"
        if operation["description"] != operation["summary"]:
            yield f" {_inline_html(operation['description'])}"
        yield "</p>"
        yield _code_html(self._curl(method, path, operation))
        if parameters := operation.get("parameters"):
            yield "<details><summary>Parameters</summary><dl>"
            for parameter in parameters:
                kind = f"{parameter['in']}, {self._type(parameter['schema'])}"
                yield _entry_html(parameter["name"], kind, parameter["description"])
            yield "</dl></details>"
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]
            yield f"<details><summary>Body: {escape(' or '.join(content))}</summary><dl>"
            yield from self._fields(next(iter(content.values()))["schema"])
            yield "</dl></details>"
        yield "<details><summary>Responses</summary><dl>"
        for status, response in operation["responses"].items():
            yield _entry_html(status, "", response["description"])
            for content in response.get("content", {}).values():
                if (status < "400" and "type" not in content["schema"]) or content["schema"].get(
                    "type"
                ) == "array":
                    yield f"<dd>{escape(self._outline(content['schema']))}</dd>"
        yield "</dl></details></section>"

    def _fields(self, schema: Mapping[str, Any]) -> Iterator[str]:
        resolved = self._resolve(schema)
        needed = resolved.get("required", [])
        for name, field in resolved.get("properties", {}).items():
            kind = self._type(field) + (", required" if name in needed else "")
            yield _entry_html(
                name, kind, self._resolve(field).get("description", field.get("description", ""))
            )

    def _outline(self, schema: Mapping[str, Any]) -> str:
        """Return the fields of an object type in one line, such as `{id, version, session_id?}`."""
        resolved = self._resolve(schema)
        if resolved.get("type") == "array":
            return f"[{self._outline(resolved['items'])}, …]"
        needed = resolved.get("required", [])
        names = (name if name in needed else f"{name}?" for name in resolved.get("properties", {}))
        return "{" + ", ".join(names) + "}"

    def _type(self, schema: Mapping[str, Any]) -> str:
        resolved = self._resolve(schema)
        if "enum" in resolved:
            return " | ".join(str(value) for value in resolved["enum"])
        if "const" in resolved:
            return str(resolved["const"])
        if "anyOf" in resolved:
            kinds = dict.fromkeys(
                self._type(part) for part in resolved["anyOf"] if part.get("type") != "null"
            )
            return " or ".join(kinds)
        if resolved.get("type") == "array":
            most = f", at most {resolved['maxItems']}" if "maxItems" in resolved else ""
            return f"list of {self._type(resolved.get('items', {}))}{most}"
        return str(resolved.get("format") or resolved.get("type", "any JSON")) + _bounds_text(resolved)

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        found: Mapping[str, Any] = self._document["components"]["schemas"][reference.rpartition("/")[2]]
        return found

    def _login(self) -> str:
        return "" if self._settings.development_mode else ' -H "Authorization: Bearer $TOKEN"'

    def _curl(self, method: str, path: str, operation: dict[str, Any]) -> str:
        examples = [
            (parameter["name"], value)
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query" and "example" in parameter
            for value in _as_list(parameter["example"])
        ]
        url = (
            self._base
            + path.replace("{id}", _EXAMPLE_ID)
            + (f"?{urlencode(examples, safe=':')}" if examples else "")
        )
        words = ["curl"]
        if path == "/events/stream":
            words.append("-N")
        elif method != "get":
            words.append(f"-X {method.upper()}")
        if path == "/auth/token" and not self._settings.development_mode:
            words.append('-H "X-API-Key: $API_KEY"')
        elif operation["security"] and (login := self._login().strip()):
            words.append(login)
        words.append(f"'{url}'")
        if "requestBody" in operation:
            media_type, content = next(iter(operation["requestBody"]["content"].items()))
            words.append(f"\\\n  -H 'Content-Type: {media_type}'")
            words.append(f"\\\n  -d '{orjson.dumps(content['example']).decode()}'")
        return " ".join(words)

    def _problems(self) -> Iterator[str]:
        intro = (
            "Every error is a problem document (RFC 9457) with `type`, `title`, `status` and `detail`. `errors` lists "
            "invalid fields of the input. These are the problem types."
        )
        yield f'<h2 id="problems">Problems</h2><p class="soft">{_inline_html(intro)}</p><dl>'
        for kind in PROBLEM_TYPES:
            yield f'<dt id="problem-{kind.name}"><code>{kind.name}</code> '
            yield f'<span class="soft">{kind.status}</span> {escape(kind.title)}</dt>'
            yield f"<dd>{_inline_html(kind.advice)}</dd>"
        yield "</dl>"

    def _limits(self) -> Iterator[str]:
        settings = self._settings
        heads = settings.connection_limits
        keys_kept = _duration_text(settings.idempotency_ttl.total_seconds())
        limits = {
            "Request head": f"{heads.max_head_bytes} bytes, {heads.max_headers} headers",
            "URL": f"{heads.max_url_bytes} bytes",
            "Body": f"{settings.max_body_bytes} bytes",
            "JSON": f"at most {MAX_DEPTH} levels; integers of 64 bits; no NaN, no lone surrogates",
            "Tags": f"{MAX_TAGS} per breadcrumb, {MAX_TAG_LENGTH} characters each, no control characters",
            "List": f"{DEFAULT_LIMIT} items per page by default, {MAX_LIMIT} at most; offset up to {MAX_OFFSET}",
            "Idempotency keys": f"255 characters, stored for {keys_kept}",
            "Events": f"a stream can resume for {_duration_text(settings.event_window.total_seconds())}",
        }
        yield '<h2 id="limits">Limits</h2><dl>'
        for name, text in limits.items():
            yield f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        yield "</dl>"


def _bounds_text(schema: Mapping[str, Any]) -> str:
    unit = " characters" if schema.get("type") == "string" else ""
    least = schema.get("minLength", schema.get("minimum"))
    most = schema.get("maxLength", schema.get("maximum"))
    if most is None:
        return "" if least is None else ", not empty" if unit else f", at least {least}"
    return f", at most {most}{unit}" if least is None else f", {least} to {most}{unit}"


def _inline_html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _code_html(text: str) -> str:
    return f"<pre><code>{escape(text, quote=False)}</code></pre>"


def _entry_html(name: str, kind: str, description: str) -> str:
    kind = f' <span class="soft">{escape(kind)}</span>' if kind else ""
    return f"<dt><code>{escape(name)}</code>{kind}</dt>" + (
        f"<dd>{_inline_html(description)}</dd>" if description else ""
    )


def _method_html(method: str) -> str:
    return f'<span class="method {method}">{method.upper()}</span> '


def _anchor_name(name: str) -> str:
    return name.lower()


def _as_list(example: Any) -> list[Any]:
    return example if isinstance(example, list) else [example]


def _duration_text(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            number = int(seconds // length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"
