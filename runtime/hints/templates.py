"""Renders the formats (`{name}`) and templates (a subset of Handlebars) of `llm_hints`.

Users write both, and every read renders them. Each view therefore has an `Allowance` of text, loop iterations and
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
    """Remaining text, loop iterations and steps for all transforms of one view."""

    text: int = MAX_VIEW_TEXT
    """Characters."""
    loops: int = MAX_VIEW_LOOPS
    """Loop iterations."""
    steps: int = MAX_VIEW_STEPS
    """Rendered nodes of templates."""


class _UsedUp(Exception):
    """The allowance is used up, and the text ends here."""


def join_pieces(pieces: Iterator[str], allowance: Allowance) -> str:
    """Join pieces of text. The text ends with `TRUNCATED` when the allowance is used up."""
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
    """Yield the pieces of a template. Raises `_UsedUp` at the end of the allowance; `join_pieces` handles it."""
    return _Renderer(root, allowance).render(read_template(text), _NameScope(context, root, {}))


def _show(value: Any) -> str:
    """Return a value as text for a model. Null gives an empty string, and everything but strings is shown as JSON."""
    if value is None or value is MISSING:
        return ""
    return value if isinstance(value, str) else compact_json(value)


def shorten(key: object) -> str:
    """Return the beginning of a user's name, for an error message."""
    return str(key)[:64]


def compact_json(value: Any) -> str:
    """Encode a value as JSON without spaces. Never raises."""
    try:
        # orjson refuses large integers and lone surrogates, which older data can contain.
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
    """Parse a format into literal text and paths, which are tuples. Raises InvalidInput."""
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

# {{ }} and {{{ }}} do not escape HTML, because models read the output.

_LOOP_NAMES = ("@index", "@key", "@first", "@last")


@dataclass(frozen=True, slots=True)
class _Value:
    path: NamePath


@dataclass(frozen=True, slots=True)
class _Block:
    """A block. `body` is rendered for each element (each) or if the value is true (if), otherwise `fallback`."""

    kind: Literal["each", "if"]
    path: NamePath
    body: tuple[_TemplateNode, ...]
    fallback: tuple[_TemplateNode, ...]


_TemplateNode: TypeAlias = str | _Value | _Block


@dataclass(slots=True)
class _Open:
    """A block whose end has not been read."""

    name: str
    path: NamePath
    at: int
    body: list[_TemplateNode] = field(default_factory=list)
    fallback: list[_TemplateNode] | None = None
    """Nodes after `{{else}}`."""

    @property
    def nodes(self) -> list[_TemplateNode]:
        """The list that the next node is added to."""
        return self.body if self.fallback is None else self.fallback

    def close(self) -> _Block:
        body, fallback = tuple(self.body), tuple(self.fallback or ())
        if self.name == "unless":
            body, fallback = fallback, body
        return _Block("each" if self.name == "each" else "if", self.path, body, fallback)


@lru_cache(maxsize=256)
def read_template(text: str) -> tuple[_TemplateNode, ...]:
    """Parse a template. Raises InvalidInput with the position."""
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
    """Return the text between the braces, and the position after the tag."""
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
    """Return the range of a tag. It is the whole line if the tag is alone on it, as in Handlebars."""
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
            raise InvalidInput(f"unknown block {shorten(name)!r}; use each, if or unless")
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
        if len(stack) == 1 or current.fallback is not None:
            raise InvalidInput("{{else}} is only allowed once, inside a block")
        current.fallback = []
    elif tag.startswith("else "):
        raise InvalidInput("{{else if}} is not supported; put an {{#if}} inside the else")
    else:
        current.nodes.append(_Value(_read_value(tag, stack)))


def _read_value(text: str, stack: list[_Open]) -> NamePath:
    if not text:
        raise InvalidInput("a name is missing")
    if len(words := text.split()) > 1:
        raise InvalidInput(
            f"unknown helper {shorten(words[0])!r}; only names, each, if and unless are supported"
        )
    if text == ".":
        return ("this",)
    if "/" in text:
        raise InvalidInput("'../' is not supported; a name is looked up in the element, then in the context")
    if text.startswith("@"):
        looping = any(block.name == "each" and block.fallback is None for block in stack)
        if text not in _LOOP_NAMES or not looping:
            raise InvalidInput(
                f"{shorten(text)!r} is unknown here; inside each you can use {', '.join(_LOOP_NAMES)}"
            )
        return (text,)
    return _read_names(text)


@dataclass(frozen=True, slots=True)
class _NameScope:
    """The values that names refer to at one point of a template."""

    this: Any
    names: Mapping[str, Any]
    """Names of the current element. Outside loops, the names of the context."""
    loop: Mapping[str, Any]
    """`@index` and the other loop names."""


@dataclass(frozen=True, slots=True)
class _Renderer:
    root: Mapping[str, Any]
    allowance: Allowance

    def render(self, nodes: tuple[_TemplateNode, ...], scope: _NameScope) -> Iterator[str]:
        for node in nodes:
            # Steps are counted in addition to loop iterations, because a long body in a long loop can produce no text.
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
                # As in RCRT's Handlebars, 0 and empty strings, arrays and objects count as false.
                value = self._look_up(node.path, scope)
                is_true = value is not MISSING and bool(value)
                yield from self.render(node.body if is_true else node.fallback, scope)

    def _each(self, block: _Block, scope: _NameScope) -> Iterator[str]:
        value = self._look_up(block.path, scope)
        elements: Iterator[tuple[Any, Any]]
        if isinstance(value, dict) and value:
            elements = iter(value.items())
        elif isinstance(value, list) and value:
            elements = enumerate(value)
        else:
            yield from self.render(block.fallback, scope)
            return
        for index, (key, element) in enumerate(elements):
            if self.allowance.loops == 0:
                raise _UsedUp
            self.allowance.loops -= 1
            loop = {"@index": index, "@key": key, "@first": index == 0, "@last": index == len(value) - 1}
            names = element if isinstance(element, dict) else {}
            yield from self.render(block.body, _NameScope(element, names, loop))

    def _look_up(self, path: NamePath, scope: _NameScope) -> Any:
        """Return the value of a path, or MISSING.

        The first name decides between element and context: if the element has `user`, the context's `user` is not used.
        """
        first, rest = path[0], path[1:]
        if first == "this":
            return _descend(scope.this, rest)
        if first in scope.loop:
            return scope.loop[first]
        return _descend(scope.names if first in scope.names else self.root, path)
