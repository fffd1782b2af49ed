"""From a document to configs, or to everything that is wrong with it: where, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from breadcrumbs.context_builder.config import AT, ContextConfig, ring_of
from breadcrumbs.context_builder.json_positions import NotJson, Path, PlacedJson
from breadcrumbs.runtime.errors import BreadcrumbsError

MAX_BYTES: Final = 1 << 20
MOST_COMPLAINTS: Final = 20


@dataclass(frozen=True, slots=True)
class ConfigComplaint:
    """One thing that is wrong in a config file."""

    where: str
    """Path in the document, such as `sources.0.fetch.limit`."""
    line: int
    column: int
    message: str


class ConfigError(BreadcrumbsError):
    """A config that cannot be used, with every complaint at its place."""

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
    """One thing that is wrong in a document."""

    path: Path
    message: str
    at_key: bool = False
    """It is the name of the field that is wrong, not its value."""

    @property
    def where(self) -> str:
        return ".".join(str(part) for part in self.path)


def parse_configs(raw: bytes, *, name: str = "config") -> tuple[ContextConfig, ...]:
    """Read a config document, or say line by line what is wrong with it."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(name, [ConfigComplaint("", 1, 1, f"a config has at most {MAX_BYTES} bytes")])
    try:
        text = PlacedJson(raw)
    except NotJson as error:
        raise ConfigError(name, [ConfigComplaint("", *error.place, f"not JSON: {error.message}")]) from None
    complaints = [
        ConfigComplaint(Fault(path, "").where, *second, f"this field stands in line {first.line} already")
        for path, first, second in text.twice
    ]
    configs, faults = check_document(text.value)
    complaints += [
        ConfigComplaint(fault.where, *text.place_of(fault.path, key=fault.at_key), fault.message)
        for fault in faults
    ]
    if complaints:
        complaints.sort(key=lambda complaint: (complaint.line, complaint.column))
        raise ConfigError(name, complaints[:MOST_COMPLAINTS])
    return configs


def check_document(document: Any) -> tuple[tuple[ContextConfig, ...], list[Fault]]:
    """The configs in a document (one, or a list of them), or what is wrong with them."""
    many = isinstance(document, list)
    entries: list[Any] = document if many else [document]
    if not entries:
        return (), [Fault((), "the list is empty: write at least one config")]
    configs: list[ContextConfig] = []
    faults: list[Fault] = []
    for number, entry in enumerate(entries):
        config, wrong = check_config(entry)
        prefix: Path = (number,) if many else ()
        faults += [Fault((*prefix, *fault.path), fault.message, fault.at_key) for fault in wrong]
        if config is not None:
            configs.append(config)
    if not faults:
        faults = _together(configs)
    return tuple(configs), faults


def _together(configs: Sequence[ContextConfig]) -> list[Fault]:
    """What is wrong with configs that are right one by one."""
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
    if not faults and (ring := ring_of(configs)):
        names = " → ".join(config.consumer_id for config in (*ring, ring[0]))
        faults.append(
            Fault(
                (configs.index(ring[0]), "update_triggers"),
                f"the contexts of these would trigger each other for ever: {names}",
            )
        )
    return faults


def check_config(document: Any) -> tuple[ContextConfig | None, list[Fault]]:
    """One config, or what is wrong with it."""
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "$schema"}
    try:
        return ContextConfig.model_validate(document), []
    except ValidationError as error:
        return None, [_fault(detail) for detail in error.errors(include_url=False) if not _is_echo(detail)]


def _is_echo(detail: ErrorDetails) -> bool:
    """pydantic calls a list too short whose entries are all wrong; that they are wrong is said already."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _fault(detail: ErrorDetails) -> Fault:
    context: Mapping[str, Any] = detail.get("ctx", {})
    path: Path = (*detail["loc"], *context.get(AT, ()))
    unknown = detail["type"] == "extra_forbidden"
    return Fault(path, _unknown_field(path) if unknown else _worded(detail, context), at_key=unknown)


def _unknown_field(path: Path) -> str:
    known = _fields_at(path[:-1])
    if close := get_close_matches(str(path[-1]), known, 1):
        return f"there is no such field: did you mean {close[0]!r}?"
    return f"there is no such field; here are {', '.join(known)}"


def _fields_at(path: Path) -> list[str]:
    """The fields of the part of a config that a path leads to."""
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


def _worded(detail: ErrorDetails, context: Mapping[str, Any]) -> str:
    """pydantic's finding in words that say what to write instead."""
    given = detail["input"]
    not_that = f", not {_shown(given)}"
    match detail["type"]:
        case "missing":
            return "this field is needed"
        case "literal_error" | "enum":
            choices = [
                choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")
            ]
            close = get_close_matches(given, choices, 1) if isinstance(given, str) else []
            meant = f": did you mean {close[0]!r}?" if close else ""
            return f"must be one of {', '.join(choices)}{not_that}{meant}"
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return f"must be a whole number{not_that}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:,}{not_that}"
        case "less_than_equal":
            return f"must be at most {context['le']:,}{not_that}"
        case "string_type":
            return f"must be text{not_that}"
        case "tuple_type" | "list_type":
            return f"must be a list [ … ]{not_that}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be an object {{ … }}{not_that}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"may have {context['max_length']} characters at most"
        case "too_short":
            return "needs at least one entry"
        case "too_long":
            return f"may have {context['max_length']} entries at most"
        case "string_pattern_mismatch":
            return f"begins with a letter and goes on with letters, digits, _ . and -{not_that}"
    return detail["msg"].removeprefix("Value error, ")


def _shown(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = str(value)  # an integer past 64 bits
    return text if len(text) <= 60 else text[:59] + "…"
