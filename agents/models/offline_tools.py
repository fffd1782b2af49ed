"""The tools of the offline model: which calls a message asks for, and what the results say."""

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
_WORDS_IN_A_NAME = {
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
_NOTHING = frozenset(("", "none", "null", "undefined"))
_NO_WORDS = "nothing"
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class _RequestedTool:
    """A tool that the message asks for, by kind or by name, and its arguments."""

    kind: str
    meant: dict[str, Any] = field(default_factory=dict)
    tool: ToolSpec | None = None
    arguments: str | None = None


def calls_asked_for(question: str, request: ModelRequest) -> tuple[list[ToolCall], list[str]]:
    """The calls that a message obviously asks for, and the kinds of tool that it takes but are not there."""
    number = sum(len(message.tool_calls) for message in request.messages)
    calls: list[ToolCall] = []
    missing: list[str] = []
    for wish in _wishes(question, request.tools):
        tool = wish.tool or _tool_for(wish.kind, request.tools)
        if tool is None:
            missing.append(wish.kind)
            continue
        number += 1
        arguments = wish.arguments or json.dumps(_named_for(tool, wish.meant), ensure_ascii=False)
        calls.append(ToolCall(id=f"call_{number}", name=tool.name, arguments=arguments))
    return calls, missing


def _wishes(question: str, tools: Sequence[ToolSpec]) -> Iterator[_RequestedTool]:
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
    elif (expression := _sum_in(question)) is not None:
        yield _RequestedTool(_CALCULATOR, {"expression": expression})
    if _TIME.search(question):
        zone = _ZONE.search(question)
        yield _RequestedTool(_CLOCK, {"zone": zone[0]} if zone else {})


def _sum_in(question: str) -> str | None:
    """Arithmetic that was asked for, or a message that is nothing but arithmetic."""
    asked = _CALCULATE.search(question)
    text = (asked["sum"] if asked else question).strip()
    found = _SUM.match(text)
    if found is None or (not asked and text[found.end() :].strip(" ?!=")):
        return None
    expression = _THOUSANDS.sub("", found[0].strip(" ,.="))
    if not _OPERATION.search(expression) or _DATE.match(expression):
        return None
    expression = re.sub(rf"(?i){_TIMES}", "*", expression)
    return expression.replace("×", "*").replace("÷", "/").replace("^", "**")


def _tool_for(kind: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    words = _WORDS_IN_A_NAME.get(kind, frozenset())
    for tool in tools:
        snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool.name).lower()
        if words.intersection(re.split(r"[^a-z0-9]+", snake_case)):
            return tool
    return None


def _named_for(tool: ToolSpec, meant: dict[str, Any]) -> dict[str, Any]:
    """What was meant, under the names that the tool's schema has for it; the rest is left out."""
    properties = tool.parameters.get("properties")
    known = list(properties) if isinstance(properties, dict) else []
    arguments: dict[str, Any] = {}
    for meaning, value in meant.items():
        name = next((name for name in _PARAMETERS[meaning] if name in known), None)
        if name is None and isinstance(value, str) and meaning != "zone":
            name = known[0] if known else meaning
        if name is not None:
            arguments[name] = value
    return arguments


def results_in_words(messages: Sequence[PromptMessage]) -> list[str]:
    """A line for every result that came after the last message of a user."""
    results: list[PromptMessage] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            results.append(message)
    calls = {call.id: call for message in messages for call in message.tool_calls}
    return [_told(result, calls.get(result.tool_call_id or "")) for result in reversed(results)]


def _told(result: PromptMessage, call: ToolCall | None) -> str:
    name = (call.name if call else None) or result.name or "tool"
    value = _parsed(result.content)
    for _ in range(_DEEPEST):
        if not isinstance(value, dict):
            break
        if not _is_nothing(value.get("error")):
            return f"The {name} failed: {_worded(value['error'])}"
        key = next((key for key in _RESULTS if not _is_nothing(value.get(key))), None)
        if key is None:
            break
        value = value[key]
    if isinstance(value, dict) and isinstance(value.get("found"), list):
        value = [_excerpt(item) for item in value["found"]]
        if not value:
            return f"The {name} found nothing."
    if _is_nothing(value) or _worded(value) == _NO_WORDS:
        return f"The {name} returned nothing."
    asked = _parsed(call.arguments) if call else None
    expression = asked.get("expression") if isinstance(asked, dict) else None
    if isinstance(expression, str) and isinstance(value, int | float):
        return f"{expression} = {_worded(value)}"
    if isinstance(value, list):
        return "\n".join(
            [f"The {name} found:", *(f"- {_worded(item)}" for item in value if not _is_nothing(item))]
        )
    return f"The {name} says: {_worded(value)}"


def _excerpt(item: Any) -> Any:
    if isinstance(item, dict):
        return next(
            (item[key] for key in ("excerpt", "text", "title") if not _is_nothing(item.get(key))), item
        )
    return item


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def _is_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _NOTHING
    if isinstance(value, list | dict):
        return not value
    return value is None


def _worded(value: Any, depth: int = 0) -> str:
    """A JSON value for people; what has no value is left out."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, dict):
        said = [f"{key}: {_worded(part, depth + 1)}" for key, part in value.items() if not _is_nothing(part)]
    else:
        said = [_worded(part, depth + 1) for part in value if not _is_nothing(part)]
    return ", ".join(said) or _NO_WORDS
