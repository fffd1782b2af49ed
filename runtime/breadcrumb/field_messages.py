"""Messages about invalid fields of documents that people write: configs and agent definitions.

The messages of pydantic use terms of Python. These use terms of JSON, and state which values are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic_core import ErrorDetails

from breadcrumbs.runtime.breadcrumb.nearest_names import nearest_name

_MESSAGES: Final[Mapping[str, str]] = {
    "missing": "this field is required",
    "int_type": "must be a whole number{given}",
    "int_parsing": "must be a whole number{given}",
    "int_from_float": "must be a whole number{given}",
    "int_parsing_size": "must be a whole number{given}",
    "greater_than_equal": "must be at least {ge:,}{given}",
    "less_than_equal": "must be at most {le:,}{given}",
    "bool_type": "must be true or false{given}",
    "bool_parsing": "must be true or false{given}",
    "float_type": "must be a number{given}",
    "float_parsing": "must be a number{given}",
    "greater_than": "must be more than {gt:g}{given}",
    "string_type": "must be a string{given}",
    "tuple_type": "must be a list [ … ]{given}",
    "list_type": "must be a list [ … ]{given}",
    "model_type": "must be an object {{ … }}{given}",
    "model_attributes_type": "must be an object {{ … }}{given}",
    "dict_type": "must be an object {{ … }}{given}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least one entry",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must begin with a letter, followed by letters, digits, _ . or -{given}",
}
"""Messages by the error type of pydantic. `{given}` is the wrong value. The other fields are in the error's `ctx`."""


def error_message(detail: ErrorDetails, context: Mapping[str, Any]) -> str:
    """Return a message that states which values are allowed."""
    given = f", not {_show_value(detail['input'])}"
    if detail["type"] in ("literal_error", "enum"):
        return _choices_message(detail["input"], str(context["expected"]), given)
    template = _MESSAGES.get(detail["type"])
    if template is None:
        return detail["msg"].removeprefix("Value error, ")
    return template.format_map({**context, "given": given})


def _choices_message(value: Any, expected: str, given: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    close = nearest_name(value, choices) if isinstance(value, str) else None
    suggestion = "" if close is None else f": did you mean {close!r}?"
    return f"must be one of {', '.join(choices)}{given}{suggestion}"


def _show_value(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = str(value)  # orjson does not encode integers of more than 64 bits
    return text if len(text) <= 60 else text[:59] + "…"
