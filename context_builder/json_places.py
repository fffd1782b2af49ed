"""Where in a JSON text a value stands: so that an error can point to its line."""

from __future__ import annotations

from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]

_SPACE = " \t\r\n"


def place_of(raw: bytes, path: Sequence[str | int]) -> tuple[int, int]:
    """Line and column (from 1) of the value at a path, or of the nearest thing around it that is there."""
    text = raw.decode("utf-8", "replace")
    at = _Walker(text).find(path)
    line = text.count("\n", 0, at) + 1
    return line, at - (text.rfind("\n", 0, at) + 1) + 1


class _Walker:
    """Steps through text that is known to be valid JSON."""

    def __init__(self, text: str) -> None:
        self._text = text

    def find(self, path: Sequence[str | int]) -> int:
        at = self._skip_space(0)
        for step in path:
            found = self._enter(at, step)
            if found is None:
                break
            at = found
        return at

    def _enter(self, at: int, step: str | int) -> int | None:
        """Where the member that a step names begins; an object's member begins with its key."""
        opening = self._text[at]
        if opening == '"':  # we stand on a key: go on to its value
            at = self._value_of_key(at)
            opening = self._text[at]
        if opening == "{" and isinstance(step, str):
            return self._member(at, step)
        if opening == "[" and isinstance(step, int):
            return self._element(at, step)
        return None

    def _member(self, at: int, name: str) -> int | None:
        at = self._skip_space(at + 1)
        while self._text[at] != "}":
            key, after = scanstring(self._text, at + 1, False)
            if key == name:
                return at
            at = self._skip_separator(self._skip_value(self._skip_space(self._skip_space(after) + 1)))
        return None

    def _element(self, at: int, number: int) -> int | None:
        at = self._skip_space(at + 1)
        while self._text[at] != "]":
            if number == 0:
                return at
            number -= 1
            at = self._skip_separator(self._skip_value(at))
        return None

    def _value_of_key(self, at: int) -> int:
        _, after = scanstring(self._text, at + 1, False)
        after = self._skip_space(after)
        return self._skip_space(after + 1) if after < len(self._text) and self._text[after] == ":" else at

    def _skip_value(self, at: int) -> int:
        depth = 0
        while True:
            character = self._text[at]
            if character == '"':
                _, at = scanstring(self._text, at + 1, False)
            elif character in "{[":
                depth += 1
                at += 1
            elif character in "}]":
                depth -= 1
                at += 1
            elif depth or character in ",:" + _SPACE:
                at += 1
            else:  # a number or a word
                while at < len(self._text) and self._text[at] not in ",]}" + _SPACE:
                    at += 1
            if depth == 0:
                return at

    def _skip_separator(self, at: int) -> int:
        at = self._skip_space(at)
        return self._skip_space(at + 1) if self._text[at] == "," else at

    def _skip_space(self, at: int) -> int:
        while at < len(self._text) and self._text[at] in _SPACE:
            at += 1
        return at
