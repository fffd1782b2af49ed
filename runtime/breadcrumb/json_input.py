"""Parses untrusted JSON with orjson, and adds two checks.

It refuses documents that are nested too deeply for orjson to encode again. It also refuses integers above 64 bits,
which orjson silently converts to floats.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from breadcrumbs.runtime.errors import InvalidInput

MAX_DEPTH = 64
MAX_BODY_BYTES = 1 << 20

_DIGITS_TO_ZERO: Final = bytes(ord("0") if ord("0") <= byte <= ord("9") else ord(" ") for byte in range(256))
_LONG_NUMBER: Final = b"0" * 19
"""Shortest integer that may not fit into 64 bits, after `_DIGITS_TO_ZERO`."""
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1


def parse_json(raw: bytes, *, levels: int = MAX_DEPTH) -> Any:
    """Parse untrusted JSON. Raises InvalidInput with the reason."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", where="body") from None
    # A document cannot be deeper than its number of opening brackets. Most documents need no walk.
    if raw.count(b"{") + raw.count(b"[") > levels and nesting_depth(document) > levels:
        raise InvalidInput(f"the JSON nests deeper than {levels} levels: flatten it", where="body")
    if _LONG_NUMBER in raw.translate(_DIGITS_TO_ZERO):  # takes a tenth of the time of a regular expression
        _refuse_long_integers(raw)
    return document


def nesting_depth(document: Any) -> int:
    """Return the number of levels of arrays and objects."""
    deepest = 0
    level = [document]
    while level:
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            break
        deepest += 1
        level = [
            child for value in containers for child in (value.values() if isinstance(value, dict) else value)
        ]
    return deepest


def _refuse_long_integers(raw: bytes) -> None:
    def check(digits: str) -> int:
        number = int(digits) if len(digits) <= 20 else _LARGEST + 1
        if not _SMALLEST <= number <= _LARGEST:
            raise InvalidInput(
                f"the integer {digits[:24]}… does not fit into 64 bits: send it as a string", where="body"
            )
        return number

    json.loads(raw, parse_int=check)


def canonical(document: Any) -> bytes:
    """Encode JSON with sorted keys, so that equal documents give equal bytes."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
