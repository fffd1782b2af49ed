"""A small subset of JSONPath with a limited cost per search.

    $                    the document            requestedBy     the same as $.requestedBy
    .name  ['any name']  a key of an object      [0]  [-1]       an element of an array
    .*     [*]           every child             ..name          that key, at any depth

Filters, slices, unions and regular expressions are not supported. Paths come from users and run on every event, so each
search has a `SearchBudget`. The default is MAX_NODES values. `PathMatches.complete` states whether it was enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from breadcrumbs.runtime.errors import InvalidInput

__all__ = [
    "MAX_LENGTH",
    "MAX_NODES",
    "MAX_STEPS",
    "MISSING",
    "JsonPath",
    "OverBudget",
    "PathMatches",
    "SearchBudget",
    "compile_path",
]

MAX_LENGTH = 256
MAX_STEPS = 32
MAX_NODES = 10_000


class _Missing(Enum):
    MISSING = "missing"


#: Marks a value that does not exist, as opposed to null.
MISSING: Final = _Missing.MISSING


class OverBudget(Exception):
    """A search or a comparison exceeds its budget."""


class SearchBudget:
    """Limits the cost of searches and comparisons. One unit is one value visited."""

    __slots__ = ("left",)

    def __init__(self, units: int = MAX_NODES) -> None:
        self.left = units

    def spend(self, units: int) -> None:
        """Take units from the budget. Raises OverBudget."""
        self.left -= units
        if self.left < 0:
            raise OverBudget


class Step(NamedTuple):
    """One step of a path: a key, an index, or None for all children. `deep` searches at any depth."""

    key: str | int | None
    deep: bool = False


class PathMatches(NamedTuple):
    """Values that a path matches."""

    values: list[Any]
    complete: bool
    """False if the search stopped after MAX_NODES values, so that matches may be missing."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A compiled path. Create it with `compile_path`."""

    text: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.text

    def search(self, document: Any) -> PathMatches:
        """Return the matching values in document order, and whether they are complete."""
        values: list[Any] = []
        try:
            values.extend(self.walk(document, SearchBudget()))
        except OverBudget:
            return PathMatches(values, complete=False)
        return PathMatches(values, complete=True)

    def find(self, document: Any) -> list[Any]:
        """Return the matching values in document order. `search` also returns whether they are complete."""
        return self.search(document).values

    def first(self, document: Any, default: Any = MISSING) -> Any:
        """Return the first matching value, or `default` if there is none within the budget."""
        try:
            return next(self.walk(document, SearchBudget()), default)
        except OverBudget:
            return default

    def walk(self, document: Any, budget: SearchBudget) -> Iterator[Any]:
        """Yield the matching values in document order. Raises OverBudget."""
        # A stack of iterators instead of recursion or lists of children: a document can be deeper than Python's stack,
        # and a wide document must not be copied to visit its first MAX_NODES values.
        stack = [iter([(document, 0)])]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                continue
            if budget.left <= 0:
                raise OverBudget
            budget.left -= 1
            node, at = entry
            if at == len(self.steps):
                yield node
            else:
                stack.append(_follow(self.steps[at], node, at))


def _follow(step: Step, node: Any, at: int) -> Iterator[tuple[Any, int]]:
    key = step.key
    if key is None:
        for child in _children(node):
            yield child, at + 1
    elif isinstance(key, int):
        if isinstance(node, list | tuple) and -len(node) <= key < len(node):
            yield node[key], at + 1
    else:
        if isinstance(node, Mapping) and key in node:
            yield node[key], at + 1
        if step.deep:
            for child in _children(node):
                yield child, at


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, Mapping):
        return node.values()
    return node if isinstance(node, list | tuple) else ()


@lru_cache(maxsize=1024)
def compile_path(text: str) -> JsonPath:
    """Parse a path. Raises InvalidInput with the reason and the position."""
    if not text:
        raise InvalidInput("the path is empty; write $ for the whole document")
    if len(text) > MAX_LENGTH:
        raise InvalidInput(f"the path is {len(text)} characters long; at most {MAX_LENGTH} are allowed")
    steps: list[Step] = []
    at = 1 if text[0] == "$" else 0
    while at < len(text):
        if len(steps) == MAX_STEPS:
            raise _path_error(text, at, f"more than {MAX_STEPS} steps")
        step, at = _read_step(text, at)
        steps.append(step)
    return JsonPath(text, tuple(steps))


_NAME = re.compile(r"[\w$@:-]+")
_INDEX = re.compile(r"\[(-?[0-9]+)\]")
_QUOTED = re.compile(r"""\[(?P<quote>['"])(?P<name>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)\]""", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def _read_step(text: str, at: int) -> tuple[Step, int]:
    if text.startswith("..", at):
        if text.startswith("[", at + 2):
            name, end = _read_quoted(text, at + 2, "only a name or ['name'] can follow '..'")
        else:
            name, end = _read_name(text, at + 2)
        return Step(name, deep=True), end
    if text[at] == "[":
        return _read_bracket(text, at)
    if text[at] == ".":
        at += 1
    elif at > 0:
        raise _path_error(text, at, "expected '.' or '['")
    if text.startswith("*", at):
        return Step(None), at + 1
    name, end = _read_name(text, at)
    return Step(name), end


def _read_name(text: str, at: int) -> tuple[str, int]:
    found = _NAME.match(text, at)
    if found is None:
        raise _path_error(text, at, "expected a name; write unusual names as ['name']")
    return found.group(), found.end()


def _read_bracket(text: str, at: int) -> tuple[Step, int]:
    if text.startswith("[*]", at):
        return Step(None), at + 3
    if found := _INDEX.match(text, at):
        return Step(int(found[1])), found.end()
    name, end = _read_quoted(
        text, at, "expected [0], [*] or ['name']; filters, slices and unions are not supported"
    )
    return Step(name), end


def _read_quoted(text: str, at: int, error: str) -> tuple[str, int]:
    found = _QUOTED.match(text, at)
    if found is None:
        raise _path_error(text, at, error)
    return _ESCAPE.sub(r"\1", found["name"]), found.end()


def _path_error(text: str, at: int, why: str) -> InvalidInput:
    return InvalidInput(f"invalid path {text!r} at character {at + 1}: {why}")
