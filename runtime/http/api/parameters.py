"""Tags in a query: the list and the event stream read them in the same way."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.datastructures import QueryParams

from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS
from breadcrumbs.runtime.errors import InvalidInput

_ARRAY_PARAMETERS: Final = frozenset(("any_tags", "all_tags"))


def read_tags(query: QueryParams, name: str) -> list[str]:
    """Read the tags of a parameter that may be repeated.

    Commas are legal in tags and separate nothing. A value of `any_tags` or `all_tags` may also be a JSON
    array of tags; a value that only looks like one is a tag as it stands.
    """
    tags: list[str] = []
    for value in query.getlist(name):
        tags += _parse_tag_array(value) if name in _ARRAY_PARAMETERS and value.startswith("[") else [value]
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"at most {MAX_TAGS} tags", where=name)
    for tag in tags:
        if not 1 <= len(tag) <= MAX_TAG_LENGTH:
            raise InvalidInput(
                f"a tag has 1 to {MAX_TAG_LENGTH} characters: leave {name} out for no filter", where=name
            )
    return tags


def _parse_tag_array(value: str) -> list[str]:
    try:
        tags = orjson.loads(value)
    except orjson.JSONDecodeError:
        return [value]
    return tags if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else [value]
