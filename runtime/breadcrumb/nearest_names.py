"""Finds the known name that is most similar to an unknown one, for errors and warnings about misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel

_MAX_COMPARED: Final = 64
"""Characters of an unknown name that are compared with the known ones."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if none is similar."""
    close = get_close_matches(name[:_MAX_COMPARED], list(known), 1)
    return close[0] if close else None


def field_names(path: Sequence[str | int], model: type[BaseModel]) -> list[str]:
    """Return the field names of the model at a path. Parts of the path that are no fields are indexes."""
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first pydantic model in a type annotation, such as `Source` in `tuple[Source, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := model_in(inner)) is not None), None)
