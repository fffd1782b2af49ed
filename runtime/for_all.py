"""What an owner lays down for all sessions and users: configs, agents, schema definitions."""

from __future__ import annotations

from typing import Literal

from breadcrumbs.runtime.breadcrumb import SESSION, USER, Breadcrumb


def restriction(crumb: Breadcrumb) -> Literal["narrowed", "hidden"] | None:
    """Why a breadcrumb does not speak for all.

    A token that is narrowed to a session or a user leaves its mark on all it writes. What it writes must not decide
    what is shown or answered in other sessions, nor widen what is shown in its own. And what is private or secret
    must not show through what others get to see because of it.
    """
    if any(tag.startswith((SESSION, USER)) for tag in crumb.tags):
        return "narrowed"
    return "hidden" if crumb.visibility == "private" or crumb.sensitivity == "secret" else None
