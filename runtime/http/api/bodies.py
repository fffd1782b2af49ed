"""Validates request bodies against pydantic models."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from breadcrumbs.runtime.breadcrumb.validation import to_complaints
from breadcrumbs.runtime.errors import InvalidInput

_BodyModel = TypeVar("_BodyModel", bound=BaseModel)


def parse_body(model: type[_BodyModel], document: object, *, error: str = "invalid body") -> _BodyModel:
    """Return the validated body. Raises `InvalidInput` with the path of each invalid field."""
    try:
        return model.model_validate(document)
    except ValidationError as found:
        raise InvalidInput(error, complaints=to_complaints(found, model)) from None
