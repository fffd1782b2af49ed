"""Converts pydantic's errors to complaints for API clients and to lines for startup errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel, ValidationError

from breadcrumbs.runtime.breadcrumb.nearest_names import field_names, nearest_name
from breadcrumbs.runtime.errors import Complaint

_MAX_COMPLAINTS: Final = 20
_STORE_FIELDS: Final = frozenset((
    "id", "owner_id", "version", "created_at", "updated_at", "created_by", "updated_by", "checksum", "size_bytes",
))  # fmt: skip


class ValidationDetail(NamedTuple):
    """One pydantic error."""

    path: tuple[str, ...]
    message: str
    kind: str

    @property
    def where(self) -> str:
        return ".".join(self.path)


def validation_details(error: ValidationError) -> Iterator[ValidationDetail]:
    """Yield pydantic's errors, without the prefix that it adds to messages of validators."""
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        yield ValidationDetail(tuple(str(part) for part in detail["loc"]), message, detail["type"])


def to_complaints(error: ValidationError, model: type[BaseModel] | None = None) -> list[Complaint]:
    """Return one complaint per pydantic error, up to 20. With the model, an unknown field gets a suggestion."""
    return [_complaint(detail, model) for detail in list(validation_details(error))[:_MAX_COMPLAINTS]]


def error_lines(
    error: ValidationError, *, prefix: tuple[str, ...] = (), model: type[BaseModel] | None = None
) -> str:
    """Return one indented line per error. `prefix` is prepended to each path. For `model`, see `to_complaints`."""
    lines = []
    for detail in validation_details(error):
        message = detail.message
        if model is not None and detail.kind == "extra_forbidden":
            message = unknown_field(detail.path, model)
        where = ".".join((*prefix, *detail.path))
        lines.append(f"  {where}: {message}" if where else f"  {message}")
    return "\n".join(lines)


def unknown_field(path: Sequence[str], model: type[BaseModel]) -> str:
    """Return the message for an unknown field: the field that was probably meant, and all valid fields."""
    valid = field_names(path[:-1], model)
    close = nearest_name(path[-1], valid)
    suggestion = ";" if close is None else f": did you mean {close!r}?"
    return f"unknown field{suggestion} use one of {', '.join(valid)}"


def _complaint(detail: ValidationDetail, model: type[BaseModel] | None) -> Complaint:
    message = detail.message
    if detail.kind == "extra_forbidden":
        message = _unknown_field_message(detail, model)
    return Complaint(detail.where, message)


def _unknown_field_message(detail: ValidationDetail, model: type[BaseModel] | None) -> str:
    if model is not None and "context" not in model.model_fields:
        return unknown_field(detail.path, model)
    if detail.where in _STORE_FIELDS:
        return "this field is set by the store: omit it"
    return "unknown field: put your own data into `context`"
