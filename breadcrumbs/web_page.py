"""Web page at `/`.

The built files are part of the wheel. They are read once and served from memory. The page loads files only from this
server, so its content security policy forbids everything else: scripts, styles, fonts and images of other origins,
inline scripts, and display in a frame.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_FOUND
from breadcrumbs.runtime.http.api.replies import Header, Reply

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_MEDIA_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_SECURITY: Final[list[Header]] = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
# The name of an asset contains a hash of its content, so the content of a URL never changes.
_CACHE_FOREVER: Final[Header] = (b"cache-control", b"public, max-age=31536000, immutable")
_REVALIDATE: Final[Header] = (b"cache-control", b"no-cache")


@dataclass(frozen=True)
class BuiltFile:
    """File of the page in plain and compressed form, with its headers."""

    plain: bytes
    media_type: bytes
    etag: str
    """Hash of the content, without quotes."""
    cache: Header

    @classmethod
    def of(cls, name: str, content: bytes, *, immutable: bool) -> BuiltFile:
        """Compute the headers of a file.

        Caches keep an `immutable` file without revalidation.
        """
        digest = base64.urlsafe_b64encode(sha256(content).digest()[:15]).decode()
        return cls(
            plain=content,
            media_type=_MEDIA_TYPES[name.rpartition(".")[2]].encode(),
            etag=digest,
            cache=_CACHE_FOREVER if immutable else _REVALIDATE,
        )

    @cached_property
    def compressed(self) -> bytes:
        """The compressed file. Made for the first client, so that the server starts faster."""
        return gzip.compress(self.plain, mtime=0)

    def reply(self, call: HttpCall) -> Reply:
        """Return the file, or 304 if the client has it.

        The file is compressed if the client accepts gzip.
        """
        accepted = call.header(b"accept-encoding") or ""
        use_gzip = _accepts_gzip(accepted) and len(self.compressed) < len(self.plain)
        # The two forms need different ETags, so that a cache does not confuse them.
        tag = f'"{self.etag}{"-gz" if use_gzip else ""}"'
        headers = [*_SECURITY, self.cache, (b"etag", tag.encode()), (b"vary", b"Accept-Encoding")]
        if tag in _parse_etags(call.header(b"if-none-match") or ""):
            return Reply(304, headers=headers)
        if use_gzip:
            headers.append((b"content-encoding", b"gzip"))
        return Reply(200, self.compressed if use_gzip else self.plain, self.media_type, headers)


class WebPage:
    """Web page and the files that it loads."""

    def __init__(self, built: Traversable) -> None:
        self._index = BuiltFile.of("index.html", built.joinpath("index.html").read_bytes(), immutable=False)
        self._assets = {
            file.name: BuiltFile.of(file.name, file.read_bytes(), immutable=True)
            for file in built.joinpath("assets").iterdir()
        }

    @classmethod
    def of_this_installation(cls) -> WebPage:
        """Read the page from the installed package."""
        return cls(resources.files("breadcrumbs.web").joinpath("dist"))

    async def page(self, call: HttpCall) -> Reply:
        """Return the page itself."""
        return self._index.reply(call)

    async def asset(self, call: HttpCall) -> Reply:
        """Return a file that the page loads, by its name."""
        file = self._assets.get(call.scope["path_params"]["name"])
        if file is None:
            raise NotFound("file not found: reload the page")
        return file.reply(call)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations that serve the page and its files."""
        return (
            Operation(
                id="startPage",
                method="GET",
                path="/",
                group="System",
                summary="Open the web page: chat, blackboard, context config, operations",
                handle=self.page,
                uses_store="no",
                ignores_query=True,
                successes=(SuccessReply(200, "The web page.", media_type="text/html"),),
            ),
            Operation(
                id="pageAsset",
                method="GET",
                path="/assets/{name}",
                group="System",
                summary="Read a file of the web page",
                description="The name of a file changes with its content. Only the page itself uses these names.",
                handle=self.asset,
                uses_store="no",
                parameters=(Parameter("name", "path", "Name of the file, as in the page."),),
                successes=(SuccessReply(200, "The file.", media_type="text/javascript"),),
                may_fail=(NOT_FOUND,),
            ),
        )


def _accepts_gzip(accepted: str) -> bool:
    """Return whether an `Accept-Encoding` header allows gzip."""
    for part in accepted.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _parse_etags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}
