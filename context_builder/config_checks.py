"""Reads configs from a document, or lists everything that is wrong with it: where, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from breadcrumbs.context_builder.config import ERROR_PATH, ContextConfig, find_trigger_cycle
from breadcrumbs.context_builder.json_positions import DocumentPath, LocatedJson, NotJson
from breadcrumbs.runtime.errors import BreadcrumbsError

MAX_BYTES: Final = 1 << 20
MAX_COMPLAINTS: Final = 20


@dataclass(frozen=True, slots=True)
class ConfigComplaint:
    """One error in a config file."""

    where: str
    """Path in the document, such as `sources.0.fetch.limit`."""
    line: int
    column: int
    message: str


class ConfigError(BreadcrumbsError):
    """A config that cannot be used, with the line and column of every error."""

    def __init__(self, name: str, complaints: list[ConfigComplaint]) -> None:
        self.name = name
        self.complaints = complaints
        super().__init__(
            "\n".join(
                f"{name}:{c.line}:{c.column}: {c.where + ': ' if c.where else ''}{c.message}"
                for c in complaints
            )
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a document."""

    path: DocumentPath
    message: str
    at_key: bool = False
    """The name of the field is wrong, not its value."""

    @property
    def where(self) -> str:
        return ".".join(str(part) for part in self.path)


def parse_configs(raw: bytes, *, name: str = "config") -> tuple[ContextConfig, ...]:
    """Read a config document, or raise a `ConfigError` with all errors."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(name, [ConfigComplaint("", 1, 1, f"a config has at most {MAX_BYTES} bytes")])
    try:
        text = LocatedJson(raw)
    except NotJson as error:
        raise ConfigError(
            name, [ConfigComplaint("", *error.location, f"not JSON: {error.message}")]
        ) from None
    complaints = [
        ConfigComplaint(Fault(path, "").where, *second, f"this field stands in line {first.line} already")
        for path, first, second in text.repeated_keys
    ]
    configs, faults = check_document(text.value)
    complaints += [
        ConfigComplaint(fault.where, *text.locate(fault.path, key=fault.at_key), fault.message)
        for fault in faults
    ]
    if complaints:
        complaints.sort(key=lambda complaint: (complaint.line, complaint.column))
        raise ConfigError(name, complaints[:MAX_COMPLAINTS])
    return configs


def check_document(document: Any) -> tuple[tuple[ContextConfig, ...], list[Fault]]:
    """Return the configs in a document (one, or a list of them), and the errors."""
    many = isinstance(document, list)
    entries: list[Any] = document if many else [document]
    if not entries:
        return (), [Fault((), "the list is empty: write at least one config")]
    configs: list[ContextConfig] = []
    faults: list[Fault] = []
    for number, entry in enumerate(entries):
        config, wrong = check_config(entry)
        prefix: DocumentPath = (number,) if many else ()
        faults += [Fault((*prefix, *fault.path), fault.message, fault.at_key) for fault in wrong]
        if config is not None:
            configs.append(config)
    if not faults:
        faults = _check_together(configs)
    return tuple(configs), faults


def _check_together(configs: Sequence[ContextConfig]) -> list[Fault]:
    """Return the errors of configs that are valid one by one."""
    seen: dict[str, int] = {}
    faults: list[Fault] = []
    for number, config in enumerate(configs):
        first = seen.setdefault(config.consumer_id, number)
        if first != number:
            faults.append(
                Fault(
                    (number, "consumer_id"),
                    f"{config.consumer_id!r} has a config already, the one at {first}",
                )
            )
    if not faults and (cycle := find_trigger_cycle(configs)):
        names = " → ".join(config.consumer_id for config in (*cycle, cycle[0]))
        faults.append(
            Fault(
                (configs.index(cycle[0]), "update_triggers"),
                f"the contexts of these would trigger each other for ever: {names}",
            )
        )
    return faults


def check_config(document: Any) -> tuple[ContextConfig | None, list[Fault]]:
    """Return a config, or None and its errors."""
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "$schema"}
    try:
        return ContextConfig.model_validate(document), []
    except ValidationError as error:
        return None, [_fault(detail) for detail in error.errors(include_url=False) if not _is_echo(detail)]


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether the error repeats others: pydantic also calls a list too short if all its entries are invalid."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _fault(detail: ErrorDetails) -> Fault:
    context: Mapping[str, Any] = detail.get("ctx", {})
    path: DocumentPath = (*detail["loc"], *context.get(ERROR_PATH, ()))
    unknown = detail["type"] == "extra_forbidden"
    return Fault(path, _unknown_field(path) if unknown else _error_message(detail, context), at_key=unknown)


def _unknown_field(path: DocumentPath) -> str:
    known = _fields_at(path[:-1])
    if close := get_close_matches(str(path[-1]), known, 1):
        return f"there is no such field: did you mean {close[0]!r}?"
    return f"there is no such field; here are {', '.join(known)}"


def _fields_at(path: DocumentPath) -> list[str]:
    """Return the fields of a part of a config."""
    model: type[BaseModel] = ContextConfig
    for part in path:
        if isinstance(part, str):
            inner = _model_in(model.model_fields[part].annotation)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)


_MESSAGES: Final[Mapping[str, str]] = {
    "missing": "this field is needed",
    "int_type": "must be a whole number{given}",
    "int_parsing": "must be a whole number{given}",
    "int_from_float": "must be a whole number{given}",
    "int_parsing_size": "must be a whole number{given}",
    "greater_than_equal": "must be at least {ge:,}{given}",
    "less_than_equal": "must be at most {le:,}{given}",
    "string_type": "must be text{given}",
    "tuple_type": "must be a list [ … ]{given}",
    "list_type": "must be a list [ … ]{given}",
    "model_type": "must be an object {{ … }}{given}",
    "model_attributes_type": "must be an object {{ … }}{given}",
    "dict_type": "must be an object {{ … }}{given}",
    "string_too_short": "must not be empty",
    "string_too_long": "may have {max_length} characters at most",
    "too_short": "needs at least one entry",
    "too_long": "may have {max_length} entries at most",
    "string_pattern_mismatch": "begins with a letter and goes on with letters, digits, _ . and -{given}",
}
"""By pydantic's type of error. `{given}`: the value; the other fields are those of the error's context."""


def _error_message(detail: ErrorDetails, context: Mapping[str, Any]) -> str:
    """Return a message that says what to write instead."""
    given = f", not {_show_value(detail['input'])}"
    if detail["type"] in ("literal_error", "enum"):
        return _choices_message(detail["input"], str(context["expected"]), given)
    template = _MESSAGES.get(detail["type"])
    if template is None:
        return detail["msg"].removeprefix("Value error, ")
    return template.format_map({**context, "given": given})


def _choices_message(value: Any, expected: str, given: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    close = get_close_matches(value, choices, 1) if isinstance(value, str) else []
    meant = f": did you mean {close[0]!r}?" if close else ""
    return f"must be one of {', '.join(choices)}{given}{meant}"


def _show_value(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = str(value)  # an integer past 64 bits
    return text if len(text) <= 60 else text[:59] + "…"
