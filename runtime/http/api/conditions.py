"""Conditional requests: ETag, If-Match and If-None-Match."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final

from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import MALFORMED, HttpProblem

_VERSION: Final = re.compile(r'(?:W/)?"([0-9]{1,15})(?:\.[0-9a-f]{8})?"|([0-9]{1,15})')

IF_MATCH: Final = Parameter(
    "If-Match",
    "header",
    'Apply the write only if this is the newest version: 3, "3", W/"3" or *.',
    {"type": "string", "pattern": rf"^(\*|{_VERSION.pattern})$"},
)
IF_NONE_MATCH: Final = Parameter(
    "If-None-Match", "header", "The ETag of your copy. The reply is 304 if it is still current."
)
ETAG_HEADER: Final = {"ETag": "The version, for If-Match and If-None-Match."}
NOT_MODIFIED: Final = SuccessReply(304, "Not modified.", headers=ETAG_HEADER)


def version_etag(version: int, borrowed_hints: Any = None) -> bytes:
    """Return the ETag of a version.

    A view that uses the hints of another breadcrumb also has a hash of these hints in its ETag, because they
    can change while the version stays the same. If-Match ignores the hash.
    """
    if not borrowed_hints:
        return b'"%d"' % version
    return b'"%d.%s"' % (version, sha256(canonical(borrowed_hints)).hexdigest()[:8].encode())


def expected_version(call: HttpCall) -> int | None:
    """Return the version in If-Match, or None if any version is accepted."""
    given = call.header(b"if-match")
    text = None if given is None else given.strip(" \t")
    if text is None or text == "*":
        return None
    match = _VERSION.fullmatch(text)
    if match is None:
        raise HttpProblem(MALFORMED, 'If-Match must be a version: 3, "3", W/"3", or * for any')
    return int(match[1] or match[2])


def client_has(call: HttpCall, etag: bytes) -> bool:
    """Return whether If-None-Match contains this ETag, or `*`."""
    given = call.headers.get(b"if-none-match")
    if given is None:
        return False
    tags = [tag.strip().removeprefix(b"W/") for tag in given.split(b",")]
    return etag in tags or b"*" in tags
