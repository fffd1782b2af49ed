"""Values that are computed once per object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, Self, TypeVar, overload

A = TypeVar("A")
T = TypeVar("T")


class cached_attribute(Generic[T]):
    """Property that caches its value in the object. Like `functools.cached_property`, but without a lock."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # From now on, attribute lookup finds the value in the dictionary of the object.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class Attached(Generic[T]):
    """A value that a layer attaches to objects of a class that does not know it. It lives as long as the object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get(self, instance: object) -> T | None:
        """Return the value of an object, or None if it has none."""
        return instance.__dict__.get(self._name)

    def set(self, instance: object, value: T) -> None:
        instance.__dict__[self._name] = value


def once_per_object(compute: Callable[[A], T]) -> Callable[[A], T]:
    """Return a function of one object that keeps its result in the object.

    For values of a layer that the class of the object does not know. The object must not change.
    """
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def get(instance: A) -> T:
        values = instance.__dict__
        if name in values:
            kept: T = values[name]
            return kept
        value = values[name] = compute(instance)
        return value

    return get
