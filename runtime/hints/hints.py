"""What a model sees of a breadcrumb: its context after `llm_hints` (RCRT's wire form).

    {"include": ["tools.name", "note"],         keep only these
     "exclude": ["metadata.internal_id"],       then take these out
     "transform": {key: rule, ...},             then compute these from what is left
     "mode": "replace" | "merge"}               they stand instead of it (the default), or are laid over it

    {"type": "format",   "format": "User ({timestamp}): {content}"}
    {"type": "template", "template": "{{#each tools}}- {{name}}{{/each}}"}      a subset of Handlebars
    {"type": "extract",  "value": "$.tools[*].name"}                            see jsonpath
    {"type": "literal",  "literal": any JSON}

Hints are written by users and run on every read. A view therefore has an allowance of text, loop rounds and
steps; what does not fit is cut off with TRUNCATED in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias

from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.hints.jsonpath import MISSING, compile_path

__all__ = ["TRUNCATED", "apply_hints", "check_hints"]

TRUNCATED = "… [truncated: too much for one view]"

MAX_VIEW_TEXT = 1 << 20
MAX_VIEW_LOOPS = 10_000
MAX_VIEW_STEPS = 100_000

MAX_PATHS = 256
MAX_PATH_LENGTH = 256
MAX_PATH_DEPTH = 32
MAX_TRANSFORMS = 32
MAX_TEMPLATE_LENGTH = 65_536
MAX_TEMPLATE_DEPTH = 32
MAX_COMPLAINTS = 20
# Deeper than the edge lets a document in. Only nested arrays get there, for they use up no path.
MAX_NESTING = 100

_Path: TypeAlias = tuple[str, ...]


def apply_hints(context: dict[str, Any], hints: Any) -> dict[str, Any]:
    """The context as a model should see it. Never raises.

    The arguments stay as they are; the result shares parts with them, so treat it as read-only.
    Hints that `check_hints` would refuse, as older data may hold, are ignored as a whole. An empty list of
    paths and an empty `transform` count as absent.
    """
    if hints is None or next(_complaints(hints), None) is not None:
        return context
    view = context
    if include := hints.get("include"):
        kept = _keep(view, _tree(include))
        view = {} if kept is MISSING else kept
    if exclude := hints.get("exclude"):
        view = _drop(view, _tree(exclude))
    if transform := hints.get("transform"):
        allowance = _Allowance()
        made = {key: _transform(view, rule, allowance) for key, rule in transform.items()}
        view = {**view, **made} if hints.get("mode") == "merge" else made
    return view


def check_hints(hints: Any) -> list[Complaint]:
    """What is wrong with hints that somebody wants to store; nothing, if they are fine or None."""
    return list(islice(_complaints(hints), MAX_COMPLAINTS))


# --- Checking ------------------------------------------------------------------------------------------


def _complaints(hints: Any) -> Iterator[Complaint]:
    if hints is None:
        return
    if not isinstance(hints, dict):
        yield Complaint("llm_hints", "must be an object")
        return
    for key in hints:
        if key not in ("include", "exclude", "transform", "mode"):
            yield Complaint(
                f"llm_hints.{_short(key)}", "unknown key; use include, exclude, transform and mode"
            )
    for key in ("include", "exclude"):
        yield from _path_complaints(f"llm_hints.{key}", hints.get(key))
    yield from _transform_complaints(hints.get("transform"))
    if hints.get("mode") not in (None, "replace", "merge"):
        yield Complaint("llm_hints.mode", "must be 'replace' or 'merge'")


def _path_complaints(where: str, paths: Any) -> Iterator[Complaint]:
    if paths is None:
        return
    if not isinstance(paths, list) or len(paths) > MAX_PATHS:
        yield Complaint(where, f"must be a list of at most {MAX_PATHS} dotted paths")
        return
    for number, path in enumerate(paths):
        if why := _why_not(_read_dotted, path):
            yield Complaint(f"{where}[{number}]", why)


def _transform_complaints(transform: Any) -> Iterator[Complaint]:
    if transform is None:
        return
    if not isinstance(transform, dict) or len(transform) > MAX_TRANSFORMS:
        yield Complaint("llm_hints.transform", f"must be an object with at most {MAX_TRANSFORMS} rules")
        return
    for key, rule in transform.items():
        yield from _rule_complaints(f"llm_hints.transform.{_short(key)}", rule)


def _rule_complaints(where: str, rule: Any) -> Iterator[Complaint]:
    if not isinstance(rule, dict):
        yield Complaint(where, 'must be a rule such as {"type": "extract", "value": "$.name"}')
        return
    kind = rule.get("type")
    if kind == "jq":
        yield Complaint(f"{where}.type", "jq is not supported; use extract or template")
        return
    if not isinstance(kind, str) or kind not in _OPERANDS:
        yield Complaint(f"{where}.type", f"must be one of {', '.join(_OPERANDS)}")
        return
    operand, read = _OPERANDS[kind]
    for key in rule:
        if key not in ("type", operand):
            yield Complaint(f"{where}.{_short(key)}", f"unknown key; a {kind} rule has type and {operand}")
    if operand not in rule:
        yield Complaint(f"{where}.{operand}", f"is missing; a {kind} rule needs it")
    elif read is not None and (why := _why_not(read, rule[operand])):
        yield Complaint(f"{where}.{operand}", why)


def _why_not(read: Callable[[str], object], text: Any) -> str | None:
    if not isinstance(text, str):
        return "must be text"
    try:
        read(text)
    except InvalidInput as error:
        return error.message
    return None


def _short(key: object) -> str:
    return str(key)[:64]


# --- Include and exclude -------------------------------------------------------------------------------

# What is below a key; None means the key with all that it holds.
_Tree: TypeAlias = "dict[str, _Tree | None]"


@lru_cache(maxsize=1024)
def _read_dotted(text: str) -> _Path:
    """Read `metadata.id`. Arrays are entered by themselves, so RCRT's `tools[*].id` means `tools.id`."""
    if len(text) > MAX_PATH_LENGTH:
        raise InvalidInput(f"the path is longer than {MAX_PATH_LENGTH} characters")
    path = tuple(name.removesuffix("[*]") for name in text.removeprefix("$.").split("."))
    if len(path) > MAX_PATH_DEPTH:
        raise InvalidInput(f"the path has more than {MAX_PATH_DEPTH} names")
    if not all(path):
        raise InvalidInput(f"bad path {text!r}: a name is empty; write paths like metadata.internal_id")
    if any(sign in name for name in path for sign in "[]"):
        # An exclude that silently hides nothing would be worse than a refused one.
        raise InvalidInput(f"bad path {text!r}: only [*] may stand in brackets")
    return path


def _tree(paths: list[str]) -> _Tree:
    root: _Tree = {}
    for text in paths:
        *above, last = _read_dotted(text)
        branch = root
        for name in above:
            below = branch.setdefault(name, {})
            if below is None:  # a shorter path takes the whole of it already
                break
            branch = below
        else:
            branch[last] = None
    return root


def _keep(value: Any, tree: _Tree, nesting: int = 0) -> Any:
    """Only what the tree names; MISSING when that is nothing."""
    if nesting > MAX_NESTING:
        return MISSING
    if isinstance(value, dict):
        kept = {}
        for key, child in value.items():
            if key in tree:
                below = tree[key]
                part = child if below is None else _keep(child, below, nesting + 1)
                if part is not MISSING:
                    kept[key] = part
        return kept or MISSING
    if isinstance(value, list):
        parts = (_keep(element, tree, nesting + 1) for element in value)
        return [part for part in parts if part is not MISSING] or MISSING
    return MISSING


def _drop(value: Any, tree: _Tree, nesting: int = 0) -> Any:
    """All but what the tree names."""
    if isinstance(value, dict):
        left = {}
        for key, child in value.items():
            if key not in tree:
                left[key] = child
            elif (below := tree[key]) is not None:
                left[key] = _drop(child, below, nesting + 1)
        return left
    if isinstance(value, list):
        # What cannot be searched to the bottom might hold what was to be hidden.
        return None if nesting > MAX_NESTING else [_drop(element, tree, nesting + 1) for element in value]
    return value


# --- Transforms ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Allowance:
    """What the transforms of one view may still use up, together."""

    text: int = MAX_VIEW_TEXT
    loops: int = MAX_VIEW_LOOPS
    steps: int = MAX_VIEW_STEPS


class _UsedUp(Exception):
    """The allowance is used up: the text ends here."""


def _transform(context: dict[str, Any], rule: dict[str, Any], allowance: _Allowance) -> Any:
    kind = rule["type"]
    if kind == "literal":
        return rule["literal"]
    if kind == "extract":
        return _extract(context, rule["value"], allowance)
    root = {**context, "context": context}
    if kind == "format":
        return _join(_fill(_read_format(rule["format"]), root), allowance)
    scope = _Scope(context, root, {})
    return _join(_Renderer(root, allowance).render(_read_template(rule["template"]), scope), allowance)


def _extract(context: dict[str, Any], path: str, allowance: _Allowance) -> Any:
    if allowance.text == 0:
        return TRUNCATED
    found = compile_path(path).search(context)
    values: list[Any] = []
    for value in found.values:
        # Charged by size, because `..a..a` names the same large value many times over.
        size = len(_compact(value))
        if size > allowance.text:
            allowance.text = 0
            values.append(TRUNCATED)
            break
        allowance.text -= size
        values.append(value)
    else:
        if not found.complete:
            values.append(TRUNCATED)
    if not values:
        return None
    return values[0] if len(values) == 1 else values


def _join(pieces: Iterator[str], allowance: _Allowance) -> str:
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


def _show(value: Any) -> str:
    """A value as text for a model: nothing for null, JSON for the rest, and never Python's own spelling."""
    if value is None or value is MISSING:
        return ""
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    try:
        # Not orjson: it refuses what older data may hold (large integers, lone surrogates).
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return "[a value that cannot be shown]"


def _descend(value: Any, names: _Path) -> Any:
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


def _read_names(text: str) -> _Path:
    if len(text) > MAX_PATH_LENGTH:
        raise InvalidInput(f"a path is longer than {MAX_PATH_LENGTH} characters")
    names = tuple(text.split("."))
    if not all(_NAME.fullmatch(name) for name in names):
        raise InvalidInput(f"{text!r} is not a path such as user.name")
    return names


# --- Formats: "User ({timestamp}): {content}" ----------------------------------------------------------

_FORMAT_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@lru_cache(maxsize=256)
def _read_format(text: str) -> tuple[str | _Path, ...]:
    """Literal text and, as tuples, the paths between it."""
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise InvalidInput(f"the format is longer than {MAX_TEMPLATE_LENGTH} characters")
    parts: list[str | _Path] = []
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


def _fill(parts: tuple[str | _Path, ...], root: Mapping[str, Any]) -> Iterator[str]:
    for part in parts:
        yield part if isinstance(part, str) else _show(_descend(root, part))


# --- Templates: a subset of Handlebars -----------------------------------------------------------------

# No HTML escaping in {{ }} or {{{ }}}: the reader is a model, not a page.

_LOOP_NAMES = ("@index", "@key", "@first", "@last")


@dataclass(frozen=True, slots=True)
class _Value:
    path: _Path


@dataclass(frozen=True, slots=True)
class _Block:
    """`body` for each element (each) or when the value holds (if); `otherwise` when there is none."""

    kind: Literal["each", "if"]
    path: _Path
    body: tuple[_Node, ...]
    otherwise: tuple[_Node, ...]


_Node: TypeAlias = str | _Value | _Block


@dataclass(slots=True)
class _Open:
    """A block whose end was not read yet."""

    name: str
    path: _Path
    at: int
    body: list[_Node] = field(default_factory=list)
    otherwise: list[_Node] | None = None

    @property
    def nodes(self) -> list[_Node]:
        return self.body if self.otherwise is None else self.otherwise

    def close(self) -> _Block:
        body, otherwise = tuple(self.body), tuple(self.otherwise or ())
        if self.name == "unless":
            body, otherwise = otherwise, body
        return _Block("each" if self.name == "each" else "if", self.path, body, otherwise)


@lru_cache(maxsize=256)
def _read_template(text: str) -> tuple[_Node, ...]:
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
            raise InvalidInput(f"unknown block {_short(name)!r}; there are each, if and unless")
        if len(stack) > MAX_TEMPLATE_DEPTH:
            raise InvalidInput(f"blocks nest deeper than {MAX_TEMPLATE_DEPTH} levels")
        stack.append(_Open(name, _read_value(argument, stack), at))
    elif tag.startswith("/"):
        name = tag[1:].strip()
        if len(stack) == 1 or name != current.name:
            raise InvalidInput(f"{{{{/{_short(name)}}}}} closes no open block")
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


def _read_value(text: str, stack: list[_Open]) -> _Path:
    if not text:
        raise InvalidInput("a name is missing")
    if len(words := text.split()) > 1:
        raise InvalidInput(f"unknown helper {_short(words[0])!r}; only names, each, if and unless are known")
    if text == ".":
        return ("this",)
    if "/" in text:
        raise InvalidInput("'../' is not supported; a name is looked up in the element, then in the context")
    if text.startswith("@"):
        looping = any(block.name == "each" and block.otherwise is None for block in stack)
        if text not in _LOOP_NAMES or not looping:
            raise InvalidInput(
                f"{_short(text)!r} is not known here; inside each there are {', '.join(_LOOP_NAMES)}"
            )
        return (text,)
    return _read_names(text)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names mean at one place of a template."""

    this: Any
    names: Mapping[str, Any]
    loop: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Renderer:
    root: Mapping[str, Any]
    allowance: _Allowance

    def render(self, nodes: tuple[_Node, ...], scope: _Scope) -> Iterator[str]:
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

    def _each(self, block: _Block, scope: _Scope) -> Iterator[str]:
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
            yield from self.render(block.body, _Scope(element, names, loop))

    def _look_up(self, path: _Path, scope: _Scope) -> Any:
        """The first name decides where: an element that has a `user` never shows the context's `user`."""
        first, rest = path[0], path[1:]
        if first == "this":
            return _descend(scope.this, rest)
        if first in scope.loop:
            return scope.loop[first]
        return _descend(scope.names if first in scope.names else self.root, path)


#: For each type of rule: the key that holds its operand, and what reads it (raising InvalidInput).
_OPERANDS: Mapping[str, tuple[str, Callable[[str], object] | None]] = {
    "format": ("format", _read_format),
    "template": ("template", _read_template),
    "extract": ("value", compile_path),
    "literal": ("literal", None),
}
