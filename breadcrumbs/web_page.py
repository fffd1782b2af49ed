"""The page at `/`: built files from the wheel, read once and served from memory.

Everything that a page loads comes from here, so its policy allows nothing else: no foreign script, style,
font or picture, no inline script, and nobody may put it into a frame.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
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

_TYPES: Final[Mapping[str, str]] = {
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
# Where they are is decided by what is in them, so they never change.
_FOR_EVER: Final[Header] = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK_EACH_TIME: Final[Header] = (b"cache-control", b"no-cache")


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One file, plain and compressed, with the headers that both have."""

    plain: bytes
    small: bytes
    media_type: bytes
    etag: str
    cache: Header

    @classmethod
    def of(cls, name: str, content: bytes, *, for_ever: bool) -> BuiltFile:
        digest = base64.urlsafe_b64encode(sha256(content).digest()[:15]).decode()
        return cls(
            plain=content,
            small=gzip.compress(content, mtime=0),
            media_type=_TYPES[name.rpartition(".")[2]].encode(),
            etag=digest,
            cache=_FOR_EVER if for_ever else _ASK_EACH_TIME,
        )

    def reply(self, call: HttpCall) -> Reply:
        packed = _takes_gzip(call.header(b"accept-encoding") or "") and len(self.small) < len(self.plain)
        # Two forms of one thing have two tags: a cache must not mend one with the other.
        tag = f'"{self.etag}{"-gz" if packed else ""}"'
        headers = [*_SECURITY, self.cache, (b"etag", tag.encode()), (b"vary", b"Accept-Encoding")]
        if tag in _parse_etags(call.header(b"if-none-match") or ""):
            return Reply(304, headers=headers)
        if packed:
            headers.append((b"content-encoding", b"gzip"))
        return Reply(200, self.small if packed else self.plain, self.media_type, headers)


class WebPage:
    """The page and the files that it loads."""

    def __init__(self, built: Traversable) -> None:
        self._index = BuiltFile.of("index.html", built.joinpath("index.html").read_bytes(), for_ever=False)
        self._assets = {
            file.name: BuiltFile.of(file.name, file.read_bytes(), for_ever=True)
            for file in built.joinpath("assets").iterdir()
        }

    @classmethod
    def of_this_installation(cls) -> WebPage:
        return cls(resources.files("breadcrumbs.web").joinpath("dist"))

    async def page(self, call: HttpCall) -> Reply:
        return self._index.reply(call)

    async def asset(self, call: HttpCall) -> Reply:
        file = self._assets.get(call.scope["path_params"]["name"])
        if file is None:
            raise NotFound("the page has no such file: load the page again")
        return file.reply(call)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="startPage",
                method="GET",
                path="/",
                group="System",
                summary="The page: chat, blackboard, context config, operations",
                handle=self.page,
                uses_store="no",
                successes=(SuccessReply(200, "A page.", media_type="text/html"),),
            ),
            Operation(
                id="pageAsset",
                method="GET",
                path="/assets/{name}",
                group="System",
                summary="A file that the page loads",
                description="The names change with the contents, and are for the page alone to know.",
                handle=self.asset,
                uses_store="no",
                parameters=(Parameter("name", "path", "As the page names it."),),
                successes=(SuccessReply(200, "The file.", media_type="text/javascript"),),
                may_fail=(NOT_FOUND,),
            ),
        )


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, quality = part.partition(";")
        if coding.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _parse_etags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}
