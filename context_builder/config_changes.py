"""Names the differences between two versions of a config file, for the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from breadcrumbs.context_builder.config import ContextConfig


def describe_changes(old: Iterable[ContextConfig], new: Iterable[ContextConfig]) -> dict[str, Any]:
    """Return the consumers that were added and removed, and the changed fields of the others.

    Fields are named and their values are not, because a config can contain texts for models.
    """
    before = {config.consumer_id: config for config in old}
    after = {config.consumer_id: config for config in new}
    changed = {
        consumer: fields
        for consumer in before.keys() & after.keys()
        if (fields := _changed_fields(before[consumer], after[consumer]))
    }
    found = {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": dict(sorted(changed.items())),
    }
    return {name: value for name, value in found.items() if value}


def _changed_fields(old: ContextConfig, new: ContextConfig) -> list[str]:
    """Return the names of the fields that differ, such as `sources` or `formatting.max_tokens`."""
    before, after = old.model_dump(), new.model_dump()
    names: list[str] = []
    for name, value in after.items():
        if before[name] == value:
            continue
        if isinstance(value, dict) and isinstance(before[name], dict):
            inner = value.keys() | before[name].keys()
            names += [f"{name}.{key}" for key in sorted(inner) if before[name].get(key) != value.get(key)]
        else:
            names.append(name)
    return names
