"""Checks `llm_hints` and applies them to a context. The wire format is RCRT's.

    {"include": ["tools.name", "note"],         keep only these paths
     "exclude": ["metadata.internal_id"],       then remove these paths
     "transform": {key: rule, ...},             then compute these keys from the rest
     "mode": "replace" | "merge"}               return only the computed keys (the default), or merge them into the rest

    {"type": "format",   "format": "User ({timestamp}): {content}"}
    {"type": "template", "template": "{{#each tools}}- {{name}}{{/each}}"}      a subset of Handlebars
    {"type": "extract",  "value": "$.tools[*].name"}                            see jsonpath
    {"type": "literal",  "literal": any JSON}

Users write hints, and every read applies them. A view therefore has an allowance of text, loop iterations and steps.
Output that exceeds it is cut off and ends with TRUNCATED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.hints.jsonpath import MISSING, compile_path
from breadcrumbs.runtime.hints.templates import (
    MAX_PATH_LENGTH,
    TRUNCATED,
    Allowance,
    NamePath,
    compact_json,
    join_pieces,
    read_format,
    read_template,
    render_format,
    render_template,
    shorten,
)

__all__ = ["TRUNCATED", "apply_hints", "check_hints"]

MAX_PATHS = 256
MAX_PATH_DEPTH = 32
MAX_TRANSFORMS = 32
MAX_COMPLAINTS = 20
# Deeper than json_input accepts. Only nested arrays reach it, because a path has no step for an array.
MAX_NESTING = 100


def apply_hints(context: dict[str, Any], hints: Any) -> dict[str, Any]:
    """Return the context as a model sees it. Never raises.

    The arguments are not modified. The result shares values with them, so it must not be modified either. Older data
    can contain hints that `check_hints` refuses. Such hints are ignored as a whole. An empty list of paths and an
    empty `transform` count as absent.
    """
    if hints is None or next(_complaints(hints), None) is not None:
        return context
    view = context
    if include := hints.get("include"):
        kept = _keep_paths(view, _path_tree(include))
        view = {} if kept is MISSING else kept
    if exclude := hints.get("exclude"):
        view = _drop_paths(view, _path_tree(exclude))
    if transform := hints.get("transform"):
        allowance = Allowance()
        computed = {key: _transform(view, rule, allowance) for key, rule in transform.items()}
        view = {**view, **computed} if hints.get("mode") == "merge" else computed
    return view


def check_hints(hints: Any) -> list[Complaint]:
    """Return the errors of hints, up to 20. The list is empty if the hints are valid or None."""
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
                f"llm_hints.{shorten(key)}", "unknown key; use include, exclude, transform and mode"
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
        if why := _read_problem(_read_dotted, path):
            yield Complaint(f"{where}[{number}]", why)


def _transform_complaints(transform: Any) -> Iterator[Complaint]:
    if transform is None:
        return
    if not isinstance(transform, dict) or len(transform) > MAX_TRANSFORMS:
        yield Complaint("llm_hints.transform", f"must be an object with at most {MAX_TRANSFORMS} rules")
        return
    for key, rule in transform.items():
        yield from _rule_complaints(f"llm_hints.transform.{shorten(key)}", rule)


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
            yield Complaint(f"{where}.{shorten(key)}", f"unknown key; a {kind} rule has type and {operand}")
    if operand not in rule:
        yield Complaint(f"{where}.{operand}", f"is missing; a {kind} rule needs it")
    elif read is not None and (why := _read_problem(read, rule[operand])):
        yield Complaint(f"{where}.{operand}", why)


def _read_problem(read: Callable[[str], object], text: Any) -> str | None:
    if not isinstance(text, str):
        return "must be a string"
    try:
        read(text)
    except InvalidInput as error:
        return error.message
    return None


# --- Include and exclude -------------------------------------------------------------------------------

# Subtree by key. None means the whole value of the key.
_PathTree: TypeAlias = "dict[str, _PathTree | None]"


@lru_cache(maxsize=1024)
def _read_dotted(text: str) -> NamePath:
    """Parse a path such as `metadata.id`. Arrays are entered implicitly, so RCRT's `tools[*].id` means `tools.id`."""
    if len(text) > MAX_PATH_LENGTH:
        raise InvalidInput(f"the path is longer than {MAX_PATH_LENGTH} characters")
    path = tuple(name.removesuffix("[*]") for name in text.removeprefix("$.").split("."))
    if len(path) > MAX_PATH_DEPTH:
        raise InvalidInput(f"the path has more than {MAX_PATH_DEPTH} names")
    if not all(path):
        raise InvalidInput(f"invalid path {text!r}: a name is empty; write paths like metadata.internal_id")
    if any(sign in name for name in path for sign in "[]"):
        # Refused, because an exclude that matches nothing would silently show the value.
        raise InvalidInput(f"invalid path {text!r}: only [*] is supported, not other brackets")
    return path


def _path_tree(paths: list[str]) -> _PathTree:
    root: _PathTree = {}
    for text in paths:
        *above, last = _read_dotted(text)
        branch = root
        for name in above:
            below = branch.setdefault(name, {})
            if below is None:  # a shorter path already includes the whole value
                break
            branch = below
        else:
            branch[last] = None
    return root


def _keep_paths(value: Any, tree: _PathTree, nesting: int = 0) -> Any:
    """Return the parts that the tree names, or MISSING if there are none."""
    if nesting > MAX_NESTING:
        return MISSING
    if isinstance(value, dict):
        kept = {}
        for key, child in value.items():
            if key in tree:
                below = tree[key]
                part = child if below is None else _keep_paths(child, below, nesting + 1)
                if part is not MISSING:
                    kept[key] = part
        return kept or MISSING
    if isinstance(value, list):
        parts = (_keep_paths(element, tree, nesting + 1) for element in value)
        return [part for part in parts if part is not MISSING] or MISSING
    return MISSING


def _drop_paths(value: Any, tree: _PathTree, nesting: int = 0) -> Any:
    """Return the value without the parts that the tree names."""
    if isinstance(value, dict):
        left = {}
        for key, child in value.items():
            if key not in tree:
                left[key] = child
            elif (below := tree[key]) is not None:
                left[key] = _drop_paths(child, below, nesting + 1)
        return left
    if isinstance(value, list):
        # Below this depth the value is not searched, and could contain excluded parts.
        return (
            None if nesting > MAX_NESTING else [_drop_paths(element, tree, nesting + 1) for element in value]
        )
    return value


# --- Transforms ----------------------------------------------------------------------------------------


def _transform(context: dict[str, Any], rule: dict[str, Any], allowance: Allowance) -> Any:
    kind = rule["type"]
    if kind == "literal":
        return rule["literal"]
    if kind == "extract":
        return _extract(context, rule["value"], allowance)
    root = {**context, "context": context}
    if kind == "format":
        return join_pieces(render_format(rule["format"], root), allowance)
    return join_pieces(render_template(rule["template"], context, root, allowance), allowance)


def _extract(context: dict[str, Any], path: str, allowance: Allowance) -> Any:
    if allowance.text == 0:
        return TRUNCATED
    found = compile_path(path).search(context)
    values: list[Any] = []
    for value in found.values:
        # Charged by size, because `..a..a` matches the same large value many times.
        size = len(compact_json(value))
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


#: By type of rule: the key of its operand, and the parser of the operand, which raises InvalidInput.
_OPERANDS: Mapping[str, tuple[str, Callable[[str], object] | None]] = {
    "format": ("format", read_format),
    "template": ("template", read_template),
    "extract": ("value", compile_path),
    "literal": ("literal", None),
}
