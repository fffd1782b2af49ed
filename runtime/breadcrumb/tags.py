"""What a result inherits from its trigger: the runtime carries sessions along, never the model."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_INHERITED = ("session", "user", "workspace", "conversation", "extension")

# RCRT marks a user's message with this tag; it says what the trigger is, not whose.
_NOT_INHERITED = frozenset(("user:message",))


def inherited_tags(trigger_tags: Sequence[str], namespaces: Sequence[str] = DEFAULT_INHERITED) -> list[str]:
    """The trigger's tags in the namespaces that are passed on, in their order."""
    return [
        tag
        for tag in trigger_tags
        if tag not in _NOT_INHERITED and tag.partition(":")[0] in namespaces and ":" in tag
    ]


def without_session(tags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tags that a model or a tool returned, split into those it may set and session tags, which it may not."""
    kept = [tag for tag in tags if not tag.startswith("session:")]
    return kept, [tag for tag in tags if tag.startswith("session:")]
