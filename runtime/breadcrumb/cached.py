"""A property that is found out once per object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):
    """As `functools.cached_property`, without its lock: that costs more than most of what is remembered here."""

    def __init__(self, find_out: Callable[[Any], T]) -> None:
        self._find_out = find_out
        self._name = find_out.__name__
        self.__doc__ = find_out.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # Found in the object's own dictionary from now on: Python does not come here again.
        found = instance.__dict__[self._name] = self._find_out(instance)
        return found
