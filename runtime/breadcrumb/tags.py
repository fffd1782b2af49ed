"""Tags that a result inherits from its trigger.

The runtime copies the session tag to the result. A model cannot set it.
"""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_INHERITED = ("session", "user", "workspace", "conversation", "extension")

# RCRT marks a user's message with this tag. It describes the trigger and does not name a user.
_NOT_INHERITED = frozenset(("user:message",))


def inherited_tags(trigger_tags: Sequence[str], namespaces: Sequence[str] = DEFAULT_INHERITED) -> list[str]:
    """Return the trigger's tags in the given namespaces, in their order."""
    return [
        tag
        for tag in trigger_tags
        if tag not in _NOT_INHERITED and tag.partition(":")[0] in namespaces and ":" in tag
    ]


def without_session(tags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split tags into allowed tags and session tags.

    The tags come from a model or a tool, which may not set the session.
    """
    kept = [tag for tag in tags if not tag.startswith("session:")]
    return kept, [tag for tag in tags if tag.startswith("session:")]
