"""Parameters of GET /breadcrumbs: their declaration, parsing, and the link to the next page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, get_args
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from breadcrumbs.runtime.breadcrumb.breadcrumb import parse_time
from breadcrumbs.runtime.breadcrumb.query import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_OFFSET,
    Query,
    Sort,
    check_limit,
)
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, check_session_id
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.http.api.operations import UUID_SCHEMA, Parameter
from breadcrumbs.runtime.http.api.parameters import read_tags

_SORT_ORDERS: Final[tuple[Sort, ...]] = get_args(Sort)
_FLAG_VALUES: Final = {"true": True, "1": True, "false": False, "0": False}
# The `+` of a UTC offset arrives as a space if the client did not percent-encode it.
_LOST_PLUS: Final = re.compile(r" (\d\d:\d\d)$")

_TAG_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH}

PAGE_HEADERS: Final = {
    "X-Has-More": "`true` if there is another page.",
    "Link": 'The next page (`rel="next"`).',
}
LIST_HEADERS: Final = PAGE_HEADERS | {
    "X-Unindexed-Tags": "Tags of the query that have no index for some schemas, percent-encoded. The page was found by "
    "reading these schemas. Add `session_id` or another tag to make it faster.",
}

_LIMIT: Final = Parameter(
    "limit", "query", "Maximum number of items. A page also ends at the byte limit of a response.",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}, False, 20,
)  # fmt: skip
_CURSOR: Final = Parameter(
    "cursor", "query", "Continues after the previous page. Take it from its Link header and keep the filters."
)
PAGING: Final = (_LIMIT, _CURSOR)

PARAMETERS: Final = (
    Parameter(
        "tag", "query", "Has this tag. If repeated, all tags must match.", _TAG_SCHEMA, True, "user:message",
    ),
    Parameter("tags", "query", "Same as `tag`.", _TAG_SCHEMA, True),
    Parameter(
        "all_tags", "query", "Has all of these tags. A value can also be a JSON array of tags.",
        {"type": "string", "minLength": 1}, True,
    ),
    Parameter(
        "any_tags", "query", "Has at least one of these tags. A value can also be a JSON array of tags.",
        {"type": "string", "minLength": 1}, True,
    ),
    Parameter(
        "schema_name", "query", "Has this schema name.", {"type": "string", "minLength": 1, "maxLength": 200},
    ),
    Parameter(
        "session_id", "query", "Belongs to this session.",
        {"type": "string", "minLength": 1, "maxLength": 248},
    ),
    Parameter(
        "updated_since", "query", "Was written at this time or later (RFC 3339).",
        {"type": "string", "format": "date-time"}, False, "2026-01-01T00:00:00Z",
    ),
    _LIMIT,
    _CURSOR,
    Parameter(
        "offset", "query", "Number of items to skip. Use `cursor` to read a long list.",
        {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0},
    ),
    Parameter(
        "sort", "query", "Default: newest first, by creation time, or by update time if `updated_since` is given.",
        {"type": "string", "enum": list(_SORT_ORDERS)},
    ),
    Parameter(
        "include_context", "query", "Whether items contain their context.",
        {"type": "boolean", "default": False},
    ),
    Parameter("owner_id", "query", "The owner of the token. Any other owner returns an empty list.", UUID_SCHEMA),
)  # fmt: skip


def read_query(given: QueryParams) -> Query:
    """Read the query from the parameters of a request."""
    return Query(
        schema_name=read_text(given, "schema_name", 200),
        session_id=check_session_id(given["session_id"]) if "session_id" in given else None,
        all_tags=tuple(tag for name in ("tag", "tags", "all_tags") for tag in read_tags(given, name)),
        any_tags=tuple(read_tags(given, "any_tags")),
        updated_since=read_time(given, "updated_since"),
        sort=_read_sort(given.get("sort")),
        limit=read_number(given, "limit", DEFAULT_LIMIT),
        offset=read_number(given, "offset", 0),
        cursor=given.get("cursor"),
    )


def read_limit(given: QueryParams) -> int:
    """Read the `limit` parameter, and check its range."""
    limit = read_number(given, "limit", DEFAULT_LIMIT)
    check_limit(limit)
    return limit


def read_flag(given: QueryParams, name: str) -> bool:
    """Read a boolean parameter. The default is false."""
    text = given.get(name, "false")
    if text not in _FLAG_VALUES:
        raise InvalidInput(f"{name} must be true or false", where=name)
    return _FLAG_VALUES[text]


def unindexed_tags(tags: Sequence[str]) -> bytes:
    """Return the value of the header `X-Unindexed-Tags`."""
    return ", ".join(quote(tag, safe=":") for tag in tags).encode()


def next_link(path: str, given: QueryParams, cursor: str) -> bytes:
    """Return the Link header of the next page, with the same filters and the cursor."""
    filters = [(name, value) for name, value in given.multi_items() if name not in ("cursor", "offset")]
    return f'<{path}?{urlencode([*filters, ("cursor", cursor)])}>; rel="next"'.encode("ascii")


def read_time(given: QueryParams, name: str) -> int | None:
    """Read a time parameter. Return microseconds since 1970, or None."""
    text = given.get(name)
    return None if text is None else parse_time(_LOST_PLUS.sub(r"+\1", text), where=name)


def read_text(given: QueryParams, name: str, max_length: int) -> str | None:
    """Read a text parameter of limited length, or None."""
    value = given.get(name)
    if value is not None and not 1 <= len(value) <= max_length:
        raise InvalidInput(
            f"{name} must have 1 to {max_length} characters: omit it for no filter", where=name
        )
    return value


def read_number(given: QueryParams, name: str, default: int) -> int:
    """Read an integer parameter of at most nine digits."""
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(f"{name} must be a whole number", where=name)
    return int(text)


def _read_sort(text: str | None) -> Sort | None:
    if text is None:
        return None
    for known in _SORT_ORDERS:
        if text == known:
            return known
    raise InvalidInput(f"sort must be one of {', '.join(_SORT_ORDERS)}", where="sort")
