"""Reads tags from a query, for lists and for the event stream."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.datastructures import QueryParams

from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS
from breadcrumbs.runtime.errors import InvalidInput

_ARRAY_PARAMETERS: Final = frozenset(("any_tags", "all_tags"))


def read_tags(query: QueryParams, name: str) -> list[str]:
    """Return the tags of a repeatable parameter.

    A comma is part of a tag, not a separator. A value of `any_tags` or `all_tags` can also be a JSON array of
    tags. A value that starts with `[` but is not such an array is one tag.
    """
    tags: list[str] = []
    for value in query.getlist(name):
        tags += _parse_tag_array(value) if name in _ARRAY_PARAMETERS and value.startswith("[") else [value]
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"{name} must have at most {MAX_TAGS} tags", where=name)
    for tag in tags:
        if not 1 <= len(tag) <= MAX_TAG_LENGTH:
            raise InvalidInput(
                f"a tag must have 1 to {MAX_TAG_LENGTH} characters: omit {name} for no filter", where=name
            )
    return tags


def _parse_tag_array(value: str) -> list[str]:
    try:
        tags = orjson.loads(value)
    except orjson.JSONDecodeError:
        return [value]
    return tags if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else [value]
