"""Converts pydantic's errors to complaints for API clients and to lines for startup errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import ValidationError

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


def to_complaints(error: ValidationError) -> list[Complaint]:
    """Return one complaint per pydantic error, up to 20."""
    return [_complaint(detail) for detail in list(validation_details(error))[:_MAX_COMPLAINTS]]


def error_lines(error: ValidationError, *, prefix: tuple[str, ...] = ()) -> str:
    """Return one indented line per error. `prefix` is prepended to each path."""
    return "\n".join(
        f"  {'.'.join((*prefix, *detail.path))}: {detail.message}" for detail in validation_details(error)
    )


def _complaint(detail: ValidationDetail) -> Complaint:
    message = detail.message
    if detail.kind == "extra_forbidden":
        message = (
            "this field is set by the store: omit it"
            if detail.where in _STORE_FIELDS
            else "unknown field: put your own data into `context`"
        )
    return Complaint(detail.where, message)
