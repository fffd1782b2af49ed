"""Convert the results of tools to JSON of limited size, and exceptions to text.

The conversion of pydantic iterates generators, which can be endless, and has no size limit. So this module walks the
result itself and passes only single values of unknown types to pydantic.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set, ValuesView
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Final, cast

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from breadcrumbs.runtime.errors import InvalidInput

MAX_OUTPUT_BYTES: Final = 64 * 1024
MAX_OUTPUT_DEPTH: Final = 32
MAX_ERROR_CHARACTERS: Final = 600
_MAX_SEARCHED_CHARACTERS: Final = 20_000

_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1


def as_json(result: Any) -> Any:
    """Convert the result of a tool to a JSON value. Raises InvalidInput if that is not possible.

    A text that is too long is cut, with a note at its end. Any other value that is too long is an error, because a
    model could not see that a part of it is missing.
    """
    if isinstance(result, str) and len(result) > MAX_OUTPUT_BYTES // 6:
        return _cut_text(_encodable_text(result))
    value = _JsonConverter().convert(result, 1)
    size = len(orjson.dumps(value))
    if size > MAX_OUTPUT_BYTES:
        raise _too_large()
    return value


class _JsonConverter:
    """Converts the result of a tool to plain JSON values."""

    def __init__(self) -> None:
        self._left = MAX_OUTPUT_BYTES
        """Remaining characters. A long list is refused early, before all of it is converted."""
        self._open: set[int] = set()
        """Ids of the containers around the current value, to detect cycles."""

    def convert(self, value: Any, level: int) -> Any:
        self._spend(1)
        match value:
            case None | bool():
                return value
            case Enum():
                return self.convert(value.value, level)
            case str():
                self._spend(len(value))
                return _encodable_text(value)
            case int():
                return _convert_integer(value)
            case float():
                # JSON has no NaN, and null would mean "no value".
                return float(value) if math.isfinite(value) else _float_name(value)
            case bytes() | bytearray() | memoryview():
                return self._convert_other(value, level)
            case Mapping() | Sequence() | Set() | ValuesView() | deque() | BaseModel():
                return self._convert_container(value, level)
        if is_dataclass(value) and not isinstance(value, type):
            return self._convert_container(value, level)
        return self._convert_other(value, level)

    def _convert_container(self, value: Any, level: int) -> Any:
        if level > MAX_OUTPUT_DEPTH:
            raise InvalidInput(f"the tool's result nests deeper than {MAX_OUTPUT_DEPTH} levels")
        if id(value) in self._open:
            raise InvalidInput("the tool's result contains itself")
        self._open.add(id(value))
        try:
            if isinstance(value, BaseModel):
                return self.convert(_dump_model(value), level + 1)
            if is_dataclass(value):
                fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
                return {name: self.convert(below, level + 1) for name, below in fields.items()}
            if isinstance(value, Mapping):
                return {
                    self._convert_key(key): self.convert(below, level + 1) for key, below in value.items()
                }
            return [self.convert(below, level + 1) for below in _stable_order(value)]
        finally:
            self._open.discard(id(value))

    def _convert_key(self, key: Any) -> str:
        name = self.convert(key, 1)
        if isinstance(name, str):
            return name
        if isinstance(name, int | float):
            return orjson.dumps(name).decode()
        raise InvalidInput(f"the tool's result has a key of type {type(key).__name__}: JSON keys are text")

    def _convert_other(self, value: Any, level: int) -> Any:
        """Convert types that pydantic supports: times, decimals, ids, paths, bytes in UTF-8."""
        kind = type(value).__name__
        if hasattr(value, "__next__") or hasattr(value, "__anext__"):
            raise InvalidInput(f"the tool's result contains a {kind}: return a list instead")
        try:
            converted = to_jsonable_python(value)
        except (PydanticSerializationError, UnicodeDecodeError, ValueError):
            raise InvalidInput(f"the tool's result contains a {kind}, which is not JSON") from None
        if type(converted) is type(value):
            raise InvalidInput(f"the tool's result contains a {kind}, which is not JSON")
        return self.convert(converted, level + 1)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _too_large()


def _too_large() -> InvalidInput:
    return InvalidInput(
        f"the tool's result is larger than {MAX_OUTPUT_BYTES // 1024} KiB of JSON: request less data"
    )


def _dump_model(model: BaseModel) -> Any:
    try:
        return model.model_dump(mode="json", by_alias=True)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidInput(
            f"the tool's result contains a {type(model).__name__} that is not JSON: {error}"
        ) from None


def _stable_order(value: Any) -> Iterable[Any]:
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)  # equal sets give equal JSON
        except TypeError:
            pass
    return cast("Iterable[Any]", value)


def _encodable_text(value: str) -> str:
    # Lone surrogates, such as from file names, cannot be encoded as JSON.
    return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()


def _convert_integer(value: int) -> int | str:
    if _SMALLEST <= value <= _LARGEST:
        return int(value)
    try:
        return str(value)  # JSON parsers round integers beyond 64 bits
    except ValueError:
        raise InvalidInput("the tool's result contains an integer with thousands of digits") from None


def _float_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _cut_text(text: str) -> str:
    if len(orjson.dumps(text)) <= MAX_OUTPUT_BYTES:
        return text
    low, high = 0, len(text)
    while low < high:  # binary search, because escaping makes the size of each character different
        middle = (low + high + 1) // 2
        if len(orjson.dumps(text[:middle])) <= MAX_OUTPUT_BYTES - 100:
            low = middle
        else:
            high = middle - 1
    return f"{text[:low]}\n… [cut: {low:,} of {len(text):,} characters]"


# --- Errors --------------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH(?!OR)|PRIVATE|COOKIE|DSN", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<!\w)(\w{1,30}://)[^/\s@]*@")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
HIDDEN: Final = "[hidden]"


def error_text(error: BaseException) -> str:
    """Return an exception as one line without secrets, for a model or a user."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception:
        text = ""
    kind = type(error).__name__
    return redacted_line(f"{kind}: {text}" if text.strip() else kind)


def redacted_line(text: str) -> str:
    """Return a text as one short line, without the secrets of this process."""
    text = " ".join(_encodable_text(text).split())[:_MAX_SEARCHED_CHARACTERS]
    for secret in _secret_values():
        text = text.replace(secret, HIDDEN)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", _URL_LOGIN.sub(rf"\1{HIDDEN}@", text))
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[: MAX_ERROR_CHARACTERS - 1] + "…"


def _secret_values() -> list[str]:
    """Return the values of environment variables whose names suggest a secret, the longest first."""
    named = (" ".join(value.split()) for name, value in os.environ.items() if _SECRET_NAME.search(name))
    found = {value for value in named if len(value) >= 6}
    return sorted(found, key=len, reverse=True)  # one secret can be the prefix of another
