"""JSON parser that records the line and column of every key and value.

Errors in configs need these positions. orjson reports only where a syntax error is, and it silently keeps one of two
equal keys. Common typing mistakes, such as a comment or a trailing comma, have messages of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn, TypeAlias

from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH

DocumentPath: TypeAlias = tuple[str | int, ...]

_SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_MAX_NUMBER_LENGTH = 400
_WORD = re.compile(r"[A-Za-z_][\w-]*|-?\.?\d[\w.]*|.", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_FOREIGN_CONSTANTS = {"True": "true", "False": "false", "None": "null", "undefined": "null", "nil": "null"}


class Location(NamedTuple):
    """Line and column, both counted from 1. Columns count characters, not bytes."""

    line: int
    column: int


class NotJson(ValueError):
    """The text is not valid JSON. `location` is the first error."""

    def __init__(self, message: str, location: Location) -> None:
        super().__init__(message)
        self.message = message
        self.location = location


class LocatedJson:
    """Parsed document with the locations of its keys and values.

    The constructor raises `NotJson` for invalid text.
    """

    def __init__(self, raw: bytes) -> None:
        self._text = _decode(raw)
        self._values: dict[DocumentPath, int] = {}
        self._keys: dict[DocumentPath, int] = {}
        self._repeated: list[tuple[DocumentPath, int, int]] = []
        self._at = 0
        self.value: Any = self._document()

    @property
    def repeated_keys(self) -> list[tuple[DocumentPath, Location, Location]]:
        """Keys that appear twice in one object, as path, first location and second location."""
        return [
            (path, self._location(first), self._location(second)) for path, first, second in self._repeated
        ]

    def locate(self, path: Sequence[str | int], *, key: bool = False) -> Location:
        """Return the location of a value or of its key.

        If the value is missing, return the location of the closest value around it.
        """
        wanted = tuple(path)
        if key and wanted in self._keys:
            return self._location(self._keys[wanted])
        while wanted not in self._values:
            wanted = wanted[:-1]
        return self._location(self._values[wanted])

    def _location(self, at: int) -> Location:
        return Location(self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at))

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        raise NotJson(message, self._location(self._at if at is None else at))

    # Reading

    def _document(self) -> Any:
        self._skip_space()
        if self._at == len(self._text):
            self._fail("the document is empty")
        value = self._value(())
        self._skip_space()
        if self._at < len(self._text):
            self._fail("unexpected text after the end: put several values into one list, [ … , … ]")
        return value

    def _value(self, path: DocumentPath) -> Any:
        if len(path) > MAX_DEPTH:
            self._fail(f"the document is nested deeper than {MAX_DEPTH} levels")
        self._values[path] = self._at
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._object(path)
            case "[":
                return self._array(path)
            case '"':
                return self._string()
        number = _NUMBER.match(self._text, self._at)
        word = _WORD.match(self._text, self._at)
        found = word[0] if word else ""
        if number is not None and len(number[0]) >= len(found):
            self._at = number.end()
            return self._number(number)
        if found not in _CONSTANTS:
            self._fail(_value_error(found))
        self._at += len(found)
        return _CONSTANTS[found]

    def _object(self, path: DocumentPath) -> dict[str, Any]:
        opened = self._at
        found: dict[str, Any] = {}
        self._step("{")
        while self._text[self._at : self._at + 1] != "}":
            at = self._at
            if self._text[at : at + 1] != '"':
                self._fail(self._key_error(opened))
            name = self._string()
            member = (*path, name)
            if name in found:
                self._repeated.append((member, self._keys[member], at))
            self._keys[member] = at
            self._skip_space()
            if self._text[self._at : self._at + 1] != ":":
                self._fail(f'a : and a value are missing after "{name}"')
            self._step(":")
            found[name] = self._value(member)
            self._separator("}", opened)
        self._at += 1
        return found

    def _array(self, path: DocumentPath) -> list[Any]:
        opened = self._at
        found: list[Any] = []
        self._step("[")
        while self._text[self._at : self._at + 1] != "]":
            if self._at == len(self._text):
                self._fail(self._unclosed(opened))
            found.append(self._value((*path, len(found))))
            self._separator("]", opened)
        self._at += 1
        return found

    def _separator(self, end: str, opened: int) -> None:
        """Move past the comma to the next member, or to the closing bracket `end`."""
        self._skip_space()
        found = self._text[self._at : self._at + 1]
        if found == end:
            return
        if not found:
            self._fail(self._unclosed(opened))
        if found != ",":
            self._fail(_COMMENT_ERROR if found in "/#" else f"a comma or {end} is missing before this")
        comma = self._at
        self._step(",")
        if self._text[self._at : self._at + 1] == end:
            self._fail(f"trailing comma before {end}: remove it", comma)

    def _string(self) -> str:
        begin = self._at
        try:
            text, self._at = scanstring(self._text, begin + 1, True)
        except JSONDecodeError as error:
            if error.msg.startswith("Unterminated"):
                self._fail('this string does not end: a closing " is missing', begin)
            if error.msg.startswith("Invalid control"):
                self._fail(
                    'a line break or tab in a string: add the missing ", or write \\n or \\t', error.pos
                )
            self._fail(
                r'only " \ / b f n r t, or u and four hex digits, can follow a backslash: '
                r"write \\ for the character itself",
                error.pos,
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._fail("half of a surrogate pair (\\ud800 … \\udfff) is not a character", begin)
        return str(text)

    def _number(self, found: re.Match[str]) -> int | float:
        if len(found[0]) > _MAX_NUMBER_LENGTH:
            self._fail(f"this number has more than {_MAX_NUMBER_LENGTH} characters", found.start())
        if found[1] is None and found[2] is None:
            return int(found[0])
        value = float(found[0])
        if math.isinf(value):
            self._fail("this number is too large", found.start())
        return value

    def _step(self, character: str) -> None:
        self._at += len(character)
        self._skip_space()

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _SPACE:
            self._at += 1

    def _key_error(self, opened: int) -> str:
        found = self._text[self._at : self._at + 1]
        if not found:
            return self._unclosed(opened)
        if found in "/#":
            return _COMMENT_ERROR
        return "the name of a field is missing: write it in double quotes"

    def _unclosed(self, opened: int) -> str:
        line, column = self._location(opened)
        bracket = self._text[opened]
        end = {"{": "}", "[": "]"}[bracket]
        return f"unexpected end: {end} is missing for the {bracket} in line {line}, column {column}"


_COMMENT_ERROR = "JSON has no comments: remove this one"


def _value_error(found: str) -> str:
    """Return the message for a word that is not a JSON value."""
    if not found:
        return "unexpected end: a value is missing"
    if found in _FOREIGN_CONSTANTS:
        return f"write {_FOREIGN_CONSTANTS[found]} instead of {found}"
    if found == "'":
        return 'strings need double quotes: "…"'
    if found in "/#":
        return _COMMENT_ERROR
    if found[0].isalpha():
        return f'{found[:40]} is not a JSON value: strings need double quotes, "{found[:40]}"'
    if found[0] in "-.+0123456789":
        return f"{found[:40]} is not a JSON number"
    return "a value is missing here"


def _decode(raw: bytes) -> str:
    start = Location(1, 1)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise NotJson("the file begins with a byte order mark (BOM): save it as UTF-8 without BOM", start)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotJson("the file is UTF-16: save it as UTF-8", start)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        location = Location(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise NotJson("these bytes are not UTF-8: save the file as UTF-8", location) from None
