"""Parses config documents. Reports all errors at once, with line, column and a correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from breadcrumbs.context_builder.config import ERROR_PATH, ContextConfig, find_trigger_cycle
from breadcrumbs.runtime.breadcrumb.field_messages import error_message
from breadcrumbs.runtime.breadcrumb.json_positions import DocumentPath, LocatedJson, NotJson
from breadcrumbs.runtime.breadcrumb.nearest_names import field_names, nearest_name
from breadcrumbs.runtime.errors import BreadcrumbsError

MAX_BYTES: Final = 1 << 20
"""Maximum size of a config file."""
MAX_COMPLAINTS: Final = 20
"""Maximum number of errors that are reported."""


@dataclass(frozen=True, slots=True)
class ConfigComplaint:
    """One error in the text of a config."""

    where: str
    """Path in the document, such as `sources.0.fetch.limit`. Empty for errors of the whole text."""
    line: int
    column: int
    message: str


class ConfigError(BreadcrumbsError):
    """A config is invalid. Contains the line and column of every error."""

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
    """One error in a parsed document, by its path instead of its line."""

    path: DocumentPath
    message: str
    at_key: bool = False
    """The error is in the name of the field, not in its value."""

    @property
    def where(self) -> str:
        return ".".join(str(part) for part in self.path)


def parse_configs(raw: bytes, *, name: str = "config") -> tuple[ContextConfig, ...]:
    """Parse a config document, or raise a `ConfigError` with all errors."""
    if len(raw) > MAX_BYTES:
        too_large = f"the config is too large: it can have at most {MAX_BYTES} bytes"
        raise ConfigError(name, [ConfigComplaint("", 1, 1, too_large)])
    try:
        text = LocatedJson(raw)
    except NotJson as error:
        raise ConfigError(
            name, [ConfigComplaint("", *error.location, f"not JSON: {error.message}")]
        ) from None
    complaints = [
        ConfigComplaint(
            Fault(path, "").where, *second, f"duplicate field: it is already set in line {first.line}"
        )
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
    """Return the configs of a document and its errors.

    The document is one config or a list of them.
    """
    many = isinstance(document, list)
    entries: list[Any] = document if many else [document]
    if not entries:
        return (), [Fault((), "the list is empty: add at least one config")]
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
    """Return the errors between configs that are valid on their own."""
    seen: dict[str, int] = {}
    faults: list[Fault] = []
    for number, config in enumerate(configs):
        first = seen.setdefault(config.consumer_id, number)
        if first != number:
            faults.append(
                Fault(
                    (number, "consumer_id"),
                    f"{config.consumer_id!r} already has a config: entry {first} of the list",
                )
            )
    if not faults and (cycle := find_trigger_cycle(configs)):
        names = " → ".join(config.consumer_id for config in (*cycle, cycle[0]))
        faults.append(
            Fault(
                (configs.index(cycle[0]), "update_triggers"),
                f"the contexts of these consumers would trigger each other endlessly: {names}",
            )
        )
    return faults


def check_config(document: Any) -> tuple[ContextConfig | None, list[Fault]]:
    """Return a config and no errors, or None and the errors."""
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "$schema"}
    try:
        return ContextConfig.model_validate(document), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [_make_fault(detail) for detail in details if not _is_consequence(detail)]


def _is_consequence(detail: ErrorDetails) -> bool:
    """Return whether an error only follows from others.

    pydantic also reports a list as too short if all its entries are invalid.
    """
    return detail["type"] == "too_short" and bool(detail["input"])


def _make_fault(detail: ErrorDetails) -> Fault:
    context: Mapping[str, Any] = detail.get("ctx", {})
    path: DocumentPath = (*detail["loc"], *context.get(ERROR_PATH, ()))
    unknown = detail["type"] == "extra_forbidden"
    message = _unknown_field_message(path) if unknown else error_message(detail, context)
    return Fault(path, message, at_key=unknown)


def _unknown_field_message(path: DocumentPath) -> str:
    allowed = field_names(path[:-1], ContextConfig)
    if (close := nearest_name(str(path[-1]), allowed)) is not None:
        return f"unknown field: did you mean {close!r}?"
    return f"unknown field, expected one of: {', '.join(allowed)}"
