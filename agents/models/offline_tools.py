"""Tool calls of the offline model: find them in a message, and describe their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from breadcrumbs.agents.models.base import ModelRequest, PromptMessage, ToolCall, ToolSpec

_USE = re.compile(
    r"""(?isx)
    ^\W* (?:please \s+)? (?:use|call|run) \s+ (?:the \s+)? (?:tool \s+)? [`"']? (?P<tool>[\w.-]+) [`"']?
    (?:\s+ tool)? \s* (?:with|:)? \s* (?P<arguments>\{.*\})? \s*$
    """
)
_SEARCH = re.compile(
    r"""(?isx)
    ^\W* (?:(?:please|can \s you|could \s you) \s+)? (?:search|look|find)
    (?:\s+ (?:the|this|our) \s+ (?:session|conversation|chat|breadcrumbs))?
    (?:\s+ (?:for|up)\b)? \s* :? \s+ (?P<query>.+?) [\s?!.]*$
    """
)
_TIME = re.compile(
    r"""(?ix)
    \bwhat (?:'s|\s+is)? \s+ (?:the \s+)? (?:current \s+|exact \s+)? (?:time|date|day)
        (?=\s+ (?:is \s+ it|is \s+ today|now|today|in|right \s+ now)\b | \W*$)
    | \b(?:current|tell \s+ me \s+ the|show \s+ me \s+ the) \s+ (?:time|date) \b
    """
)
_ZONE = re.compile(r"\b(?:UTC|GMT|[A-Z][A-Za-z]+/[A-Z][A-Za-z]+(?:[_/-][A-Za-z]+)*)\b")
_RANDOM = re.compile(r"(?i)\brandom\b.{0,20}\b(?:number|integer|value)\b|\bpick a number\b|^\W*random\W*$")
_DIE = re.compile(r"(?i)\b(?:roll|throw) (?:a|the|one) (?:die|dice)\b")
_BOUNDS = re.compile(r"(?i)(?P<low>-?\d{1,15})\s*(?:and|to|-|–|\.\.)\s*(?P<high>-?\d{1,15})\b")

_CALCULATE = re.compile(
    r"(?i)\b(?:calculate|compute|evaluate|work out|solve|how much (?:is|are)|what(?:'s| is| are))\b[:\s]*"
    r"(?P<sum>.+)"
)
_FUNCTION = r"\b(?:sqrt|abs|round|min|max|sin|cos|tan|log|exp|factorial)\b"
_TIMES = r"(?<=[\d)\s])x(?=[\d(\s])"
_SUM = re.compile(
    rf"(?i)(?:\d[\d_.]*(?:e[+-]?\d+)?|[().,]|[-+*/%^×÷]|\bpi\b|{_FUNCTION}|{_TIMES}|\s)+",
)
_OPERATION = re.compile(rf"(?i)[\d)i]\s*(?:[-+*/%^×÷]|{_TIMES})+\s*[-(\dp.]|{_FUNCTION}\s*\(")
_DATE = re.compile(r"^\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\s*$")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

_SEARCH_TOOL, _CLOCK, _DICE, _CALCULATOR = "search tool", "clock", "random number tool", "calculator"
_NAME_WORDS = {
    _SEARCH_TOOL: frozenset(("search", "find", "lookup")),
    _CLOCK: frozenset(("clock", "time", "date", "datetime", "now")),
    _DICE: frozenset(("random", "dice", "rng")),
    _CALCULATOR: frozenset(("calculator", "calculate", "calc", "math")),
}
_PARAMETERS = {
    "expression": ("expression", "input", "formula", "query", "text"),
    "query": ("query", "q", "text", "search", "term", "terms", "words", "input"),
    "low": ("min", "minimum", "low", "lower", "start", "from", "a"),
    "high": ("max", "maximum", "high", "upper", "end", "stop", "to", "b"),
    "zone": ("zone", "timezone", "time_zone", "tz"),
}

_RESULTS = ("result", "output", "value", "number", "choice", "answer")
_EMPTY_WORDS = frozenset(("", "none", "null", "undefined"))
_EMPTY_TEXT = "nothing"
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class _RequestedTool:
    """A tool that the message requests, by kind or by name, and its arguments."""

    kind: str
    meanings: dict[str, Any] = field(default_factory=dict)
    """Argument values by meaning, such as `query`."""
    tool: ToolSpec | None = None
    arguments: str | None = None
    """The arguments as JSON, if the message contains them."""


def requested_calls(question: str, request: ModelRequest) -> tuple[list[ToolCall], list[str]]:
    """Return the tool calls that a message requests, and the kinds of missing tools."""
    calls: list[ToolCall] = []
    missing: list[str] = []
    all_requested = list(_requested_tools(question, request.tools))
    if not all_requested:
        return calls, missing
    number = sum(len(message.tool_calls) for message in request.messages)
    for requested in all_requested:
        tool = requested.tool or _find_tool(requested.kind, request.tools)
        if tool is None:
            missing.append(requested.kind)
            continue
        number += 1
        arguments = requested.arguments or json.dumps(
            _name_arguments(tool, requested.meanings), ensure_ascii=False
        )
        calls.append(ToolCall(id=f"call_{number}", name=tool.name, arguments=arguments))
    return calls, missing


def _requested_tools(question: str, tools: Sequence[ToolSpec]) -> Iterator[_RequestedTool]:
    if use := _USE.match(question):
        tool = next((tool for tool in tools if tool.name.lower() == use["tool"].lower()), None)
        if tool is not None or use["arguments"]:
            yield _RequestedTool(f"tool called {use['tool']}", tool=tool, arguments=use["arguments"] or "{}")
            return
    if search := _SEARCH.match(question):
        yield _RequestedTool(_SEARCH_TOOL, {"query": search["query"].strip("\"'“” ")})
        return
    if _DIE.search(question):
        yield _RequestedTool(_DICE, {"low": 1, "high": 6})
    elif _RANDOM.search(question):
        bounds = _BOUNDS.search(question)
        low, high = sorted((int(bounds["low"]), int(bounds["high"]))) if bounds else (1, 100)
        yield _RequestedTool(_DICE, {"low": low, "high": high})
    elif (expression := _find_expression(question)) is not None:
        yield _RequestedTool(_CALCULATOR, {"expression": expression})
    if _TIME.search(question):
        zone = _ZONE.search(question)
        yield _RequestedTool(_CLOCK, {"zone": zone[0]} if zone else {})


def _find_expression(question: str) -> str | None:
    """Return the arithmetic expression in a message, or None."""
    explicit = _CALCULATE.search(question)
    text = (explicit["sum"] if explicit else question).strip()
    found = _SUM.match(text)
    if found is None or (not explicit and text[found.end() :].strip(" ?!=")):
        return None
    expression = _THOUSANDS.sub("", found[0].strip(" ,.="))
    if not _OPERATION.search(expression) or _DATE.match(expression):
        return None
    expression = re.sub(rf"(?i){_TIMES}", "*", expression)
    return expression.replace("×", "*").replace("÷", "/").replace("^", "**")


def _find_tool(kind: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    words = _NAME_WORDS.get(kind, frozenset())
    for tool in tools:
        snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool.name).lower()
        if words.intersection(re.split(r"[^a-z0-9]+", snake_case)):
            return tool
    return None


def _name_arguments(tool: ToolSpec, meanings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the names of the tool's schema. Arguments without a name are left out."""
    properties = tool.parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    arguments: dict[str, Any] = {}
    for meaning, value in meanings.items():
        name = next((name for name in _PARAMETERS[meaning] if name in names), None)
        if name is None and isinstance(value, str) and meaning != "zone":
            name = names[0] if names else meaning
        if name is not None:
            arguments[name] = value
    return arguments


def describe_results(messages: Sequence[PromptMessage]) -> list[str]:
    """Return a line for each result since the last message of the user."""
    results: list[PromptMessage] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            results.append(message)
    if not results:
        return []
    calls = {call.id: call for message in messages for call in message.tool_calls}
    return [_describe_result(result, calls.get(result.tool_call_id or "")) for result in reversed(results)]


def _describe_result(result: PromptMessage, call: ToolCall | None) -> str:
    name = (call.name if call else None) or result.name or "tool"
    value = _parse_or_keep(result.content)
    for _ in range(_MAX_DEPTH):
        if not isinstance(value, dict):
            break
        if not _is_empty(value.get("error")):
            return f"The {name} failed: {_value_text(value['error'])}"
        key = next((key for key in _RESULTS if not _is_empty(value.get(key))), None)
        if key is None:
            break
        value = value[key]
    if isinstance(value, dict) and isinstance(value.get("found"), list):
        value = [_excerpt(item) for item in value["found"]]
        if not value:
            return f"The {name} found nothing."
    if _is_empty(value) or _value_text(value) == _EMPTY_TEXT:
        return f"The {name} returned nothing."
    arguments = _parse_or_keep(call.arguments) if call else None
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    if isinstance(expression, str) and isinstance(value, int | float):
        return f"{expression} = {_value_text(value)}"
    if isinstance(value, list):
        return "\n".join(
            [f"The {name} found:", *(f"- {_value_text(item)}" for item in value if not _is_empty(item))]
        )
    return f"The {name} returned: {_value_text(value)}"


def _excerpt(item: Any) -> Any:
    if isinstance(item, dict):
        return next((item[key] for key in ("excerpt", "text", "title") if not _is_empty(item.get(key))), item)
    return item


def _parse_or_keep(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _EMPTY_WORDS
    if isinstance(value, list | dict):
        return not value
    return value is None


def _value_text(value: Any, depth: int = 0) -> str:
    """Return a JSON value as text. Empty values are left out."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if depth == _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        parts = [
            f"{key}: {_value_text(part, depth + 1)}" for key, part in value.items() if not _is_empty(part)
        ]
    else:
        parts = [_value_text(part, depth + 1) for part in value if not _is_empty(part)]
    return ", ".join(parts) or _EMPTY_TEXT
