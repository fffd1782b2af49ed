"""Renders formats (`{name}`) and templates (a subset of Handlebars) of `llm_hints`.

Both are written by users and rendered on every read. Each view therefore has an `Allowance` of text, loop rounds and
steps. Output that exceeds it is cut off and ends with `TRUNCATED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.hints.jsonpath import MISSING

TRUNCATED = "… [truncated: too much for one view]"

MAX_VIEW_TEXT = 1 << 20
MAX_VIEW_LOOPS = 10_000
MAX_VIEW_STEPS = 100_000

MAX_PATH_LENGTH = 256
MAX_TEMPLATE_LENGTH = 65_536
MAX_TEMPLATE_DEPTH = 32

NamePath: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class Allowance:
    """The text, loop rounds and steps that the transforms of one view may still use, together."""

    text: int = MAX_VIEW_TEXT
    loops: int = MAX_VIEW_LOOPS
    steps: int = MAX_VIEW_STEPS


class _UsedUp(Exception):
    """The allowance is used up: the text ends here."""


def join_pieces(pieces: Iterator[str], allowance: Allowance) -> str:
    if allowance.text == 0:
        return TRUNCATED
    text: list[str] = []
    try:
        for piece in pieces:
            text.append(piece[: allowance.text])
            if len(piece) > allowance.text:
                allowance.text = 0
                raise _UsedUp
            allowance.text -= len(piece)
    except _UsedUp:
        text.append(TRUNCATED)
    return "".join(text)


def render_format(text: str, root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pieces of a format with its paths filled in."""
    for part in read_format(text):
        yield part if isinstance(part, str) else _show(_descend(root, part))


def render_template(
    text: str, context: dict[str, Any], root: Mapping[str, Any], allowance: Allowance
) -> Iterator[str]:
    """Yield the pieces of a template. Raises `_UsedUp` where the allowance ends; `join_pieces` handles it."""
    return _Renderer(root, allowance).render(read_template(text), _NameScope(context, root, {}))


def _show(value: Any) -> str:
    """A value as text for a model: nothing for null, JSON for the rest, and never Python's own spelling."""
    if value is None or value is MISSING:
        return ""
    return value if isinstance(value, str) else compact_json(value)


def shorten(key: object) -> str:
    """Return the beginning of a user's name, for an error message."""
    return str(key)[:64]


def compact_json(value: Any) -> str:
    try:
        # Not orjson: it refuses what older data may hold (large integers, lone surrogates).
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return "[a value that cannot be shown]"


def _descend(value: Any, names: NamePath) -> Any:
    for name in names:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        elif not isinstance(value, list):
            return MISSING
        elif name == "length":
            value = len(value)
        elif name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value


_NAME = re.compile(r"[\w$:-]+")


def _read_names(text: str) -> NamePath:
    if len(text) > MAX_PATH_LENGTH:
        raise InvalidInput(f"a path is longer than {MAX_PATH_LENGTH} characters")
    names = tuple(text.split("."))
    if not all(_NAME.fullmatch(name) for name in names):
        raise InvalidInput(f"{text!r} is not a path such as user.name")
    return names


# --- Formats: "User ({timestamp}): {content}" ----------------------------------------------------------

_FORMAT_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@lru_cache(maxsize=256)
def read_format(text: str) -> tuple[str | NamePath, ...]:
    """Literal text and, as tuples, the paths between it."""
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise InvalidInput(f"the format is longer than {MAX_TEMPLATE_LENGTH} characters")
    parts: list[str | NamePath] = []
    at = 0
    for mark in _FORMAT_MARK.finditer(text):
        parts.append(text[at : mark.start()])
        at = mark.end()
        if mark[1] is not None:
            parts.append(_read_names(mark[1].strip()))
        elif mark[0] in ("{{", "}}"):
            parts.append(mark[0][0])
        else:
            raise InvalidInput(
                f"a lone {mark[0]!r} at character {mark.start() + 1}; write {mark[0] * 2} for a brace"
            )
    parts.append(text[at:])
    return tuple(part for part in parts if part)


# --- Templates: a subset of Handlebars -----------------------------------------------------------------

# No HTML escaping in {{ }} or {{{ }}}: the reader is a model, not a page.

_LOOP_NAMES = ("@index", "@key", "@first", "@last")


@dataclass(frozen=True, slots=True)
class _Value:
    path: NamePath


@dataclass(frozen=True, slots=True)
class _Block:
    """`body` for each element (each) or when the value holds (if); `otherwise` when there is none."""

    kind: Literal["each", "if"]
    path: NamePath
    body: tuple[_TemplateNode, ...]
    otherwise: tuple[_TemplateNode, ...]


_TemplateNode: TypeAlias = str | _Value | _Block


@dataclass(slots=True)
class _Open:
    """A block whose end was not read yet."""

    name: str
    path: NamePath
    at: int
    body: list[_TemplateNode] = field(default_factory=list)
    otherwise: list[_TemplateNode] | None = None

    @property
    def nodes(self) -> list[_TemplateNode]:
        return self.body if self.otherwise is None else self.otherwise

    def close(self) -> _Block:
        body, otherwise = tuple(self.body), tuple(self.otherwise or ())
        if self.name == "unless":
            body, otherwise = otherwise, body
        return _Block("each" if self.name == "each" else "if", self.path, body, otherwise)


@lru_cache(maxsize=256)
def read_template(text: str) -> tuple[_TemplateNode, ...]:
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise InvalidInput(f"the template is longer than {MAX_TEMPLATE_LENGTH} characters")
    stack = [_Open("", (), 0)]
    at = 0
    while (start := text.find("{{", at)) >= 0:
        tag, end = _read_tag(text, start)
        left, right = start, end
        if tag[:1] in ("#", "/", "!") or tag == "else":
            left, right = _own_line(text, start, end)
        stack[-1].nodes.append(text[at:left])
        at = right
        try:
            _take_tag(tag, start, stack)
        except InvalidInput as error:
            raise InvalidInput(f"at character {start + 1}: {error.message}") from None
    if len(stack) > 1:
        raise InvalidInput(f"at character {stack[-1].at + 1}: {{{{#{stack[-1].name}}}}} is never closed")
    stack[0].nodes.append(text[at:])
    return tuple(stack[0].body)


def _read_tag(text: str, start: int) -> tuple[str, int]:
    """What stands between the braces, and where the tag ends."""
    opening, closing = "{{", "}}"
    if text.startswith("{{!--", start):
        opening, closing = "{{!--", "--}}"
    elif text.startswith("{{{", start):
        opening, closing = "{{{", "}}}"
    end = text.find(closing, start + len(opening))
    if end < 0:
        raise InvalidInput(f"at character {start + 1}: {opening} is never closed with {closing}")
    inside = text[start + len(opening) : end].strip()
    if opening == "{{!--":
        inside = "!"
    elif opening == "{{{" and inside[:1] in ("#", "/", "!"):
        raise InvalidInput(f"at character {start + 1}: blocks and comments have two braces")
    return inside, end + len(closing)


def _own_line(text: str, start: int, end: int) -> tuple[int, int]:
    """As in Handlebars, a block tag alone on its line takes the line with it."""
    left, right = start, end
    while left > 0 and text[left - 1] in " \t":
        left -= 1
    while right < len(text) and text[right] in " \t":
        right += 1
    if left > 0 and text[left - 1] != "\n":
        return start, end
    if right == len(text):
        return left, right
    for newline in ("\n", "\r\n"):
        if text.startswith(newline, right):
            return left, right + len(newline)
    return start, end


def _take_tag(tag: str, at: int, stack: list[_Open]) -> None:
    current = stack[-1]
    if tag.startswith("!"):
        return
    if tag.startswith("#"):
        name, argument = [*tag[1:].split(maxsplit=1), "", ""][:2]
        if name not in ("each", "if", "unless"):
            raise InvalidInput(f"unknown block {shorten(name)!r}; there are each, if and unless")
        if len(stack) > MAX_TEMPLATE_DEPTH:
            raise InvalidInput(f"blocks nest deeper than {MAX_TEMPLATE_DEPTH} levels")
        stack.append(_Open(name, _read_value(argument, stack), at))
    elif tag.startswith("/"):
        name = tag[1:].strip()
        if len(stack) == 1 or name != current.name:
            raise InvalidInput(f"{{{{/{shorten(name)}}}}} closes no open block")
        stack.pop()
        stack[-1].nodes.append(current.close())
    elif tag == "else":
        if len(stack) == 1 or current.otherwise is not None:
            raise InvalidInput("{{else}} belongs once into a block")
        current.otherwise = []
    elif tag.startswith("else "):
        raise InvalidInput("{{else if}} is not supported; put an if into the else")
    else:
        current.nodes.append(_Value(_read_value(tag, stack)))


def _read_value(text: str, stack: list[_Open]) -> NamePath:
    if not text:
        raise InvalidInput("a name is missing")
    if len(words := text.split()) > 1:
        raise InvalidInput(f"unknown helper {shorten(words[0])!r}; only names, each, if and unless are known")
    if text == ".":
        return ("this",)
    if "/" in text:
        raise InvalidInput("'../' is not supported; a name is looked up in the element, then in the context")
    if text.startswith("@"):
        looping = any(block.name == "each" and block.otherwise is None for block in stack)
        if text not in _LOOP_NAMES or not looping:
            raise InvalidInput(
                f"{shorten(text)!r} is not known here; inside each there are {', '.join(_LOOP_NAMES)}"
            )
        return (text,)
    return _read_names(text)


@dataclass(frozen=True, slots=True)
class _NameScope:
    """What names mean at one place of a template."""

    this: Any
    names: Mapping[str, Any]
    loop: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Renderer:
    root: Mapping[str, Any]
    allowance: Allowance

    def render(self, nodes: tuple[_TemplateNode, ...], scope: _NameScope) -> Iterator[str]:
        for node in nodes:
            # Counted besides the rounds of loops, since a long body in a long loop may write nothing.
            if self.allowance.steps == 0:
                raise _UsedUp
            self.allowance.steps -= 1
            if isinstance(node, str):
                yield node
            elif isinstance(node, _Value):
                yield _show(self._look_up(node.path, scope))
            elif node.kind == "each":
                yield from self._each(node, scope)
            else:
                # As in RCRT's Handlebars: 0, empty text, arrays and objects do not hold.
                value = self._look_up(node.path, scope)
                holds = value is not MISSING and bool(value)
                yield from self.render(node.body if holds else node.otherwise, scope)

    def _each(self, block: _Block, scope: _NameScope) -> Iterator[str]:
        value = self._look_up(block.path, scope)
        elements: Iterator[tuple[Any, Any]]
        if isinstance(value, dict) and value:
            elements = iter(value.items())
        elif isinstance(value, list) and value:
            elements = enumerate(value)
        else:
            yield from self.render(block.otherwise, scope)
            return
        for index, (key, element) in enumerate(elements):
            if self.allowance.loops == 0:
                raise _UsedUp
            self.allowance.loops -= 1
            loop = {"@index": index, "@key": key, "@first": index == 0, "@last": index == len(value) - 1}
            names = element if isinstance(element, dict) else {}
            yield from self.render(block.body, _NameScope(element, names, loop))

    def _look_up(self, path: NamePath, scope: _NameScope) -> Any:
        """The first name decides where: an element that has a `user` never shows the context's `user`."""
        first, rest = path[0], path[1:]
        if first == "this":
            return _descend(scope.this, rest)
        if first in scope.loop:
            return scope.loop[first]
        return _descend(scope.names if first in scope.names else self.root, path)
