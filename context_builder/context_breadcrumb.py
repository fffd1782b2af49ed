"""The breadcrumb that stores a context: its id, its tags and its content."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from breadcrumbs.context_builder.config import CONSUMER, ContextConfig
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAGS, SESSION
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.breadcrumb.ttl import TtlConfig
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import ADDRESSEE, ROOT, USER_MESSAGE
from breadcrumbs.runtime.store.placement import derive_id_beside
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed

MAX_HOPS: Final = 16
"""Default of the maximum length of a chain in which contexts trigger contexts of other consumers."""


def context_id(store: Store, config: ContextConfig, trigger: Breadcrumb | Event) -> UUID:
    """Return the id of the context of a trigger.

    The id depends on the consumer and the session. For a trigger without a session, it depends on the consumer and the
    trigger.
    """
    scope = (
        ("session", trigger.session_id) if trigger.session_id is not None else ("trigger", str(trigger.id))
    )
    return derive_id_beside(store, trigger, "context", str(trigger.owner_id), config.consumer_id, *scope)


def context_breadcrumb(
    config: ContextConfig,
    trigger: Breadcrumb,
    parts: list[dict[str, Any]],
    explanation: dict[str, Any],
    *,
    as_of: int,
    inherited: tuple[str, ...],
) -> BreadcrumbCreate:
    """Return the breadcrumb that stores a context."""
    context: dict[str, Any] = {
        "consumer_id": config.consumer_id,
        "trigger_id": str(trigger.id),
        "trigger_version": trigger.version,
        "trigger_created": trigger.created,
        ROOT: root_of(trigger),
        "as_of": as_of,
        "as_of_time": times.to_text(as_of),
        "config": config.digest,
        "parts": parts,
        "explain": explanation,
    }
    if trigger.schema_name != USER_MESSAGE:
        # The agent that was chosen for a session answers only contexts of users' messages.
        context["trigger_schema_name"] = trigger.schema_name
    elif ADDRESSEE in trigger.context:
        context[ADDRESSEE] = trigger.context[ADDRESSEE]
    if hops := _count_hops(trigger):
        context["hops"] = hops
    # Without validation: the fields come from a valid config, and the tags from a stored breadcrumb.
    new = BreadcrumbCreate.model_construct(
        schema_name=config.output.schema_name,
        title=f"Context for {config.consumer_id}",
        tags=_context_tags(config, inherited_tags(trigger.tags, inherited)),
        context=context,
    )
    if config.output.ttl_seconds is not None:
        new.ttl_type, new.ttl_config = "duration", _duration(config.output.ttl_seconds)
    return new


@lru_cache(64)
def _duration(seconds: int) -> TtlConfig:
    return TtlConfig(duration_seconds=seconds)


def _context_tags(config: ContextConfig, inherited: Sequence[str]) -> list[str]:
    tags = list(dict.fromkeys([*config.output.tags, config.consumer_tag, *inherited]))
    if len(tags) > MAX_TAGS:  # drop inherited tags, but keep the session
        tags = sorted(tags, key=lambda tag: not tag.startswith(SESSION))[:MAX_TAGS]
    return tags


def _count_hops(trigger: Breadcrumb) -> int:
    """Count the agents and contexts that led to a trigger."""
    hops = trigger.context.get("hops")
    hops = hops if isinstance(hops, int) else 0
    if any(tag.startswith(CONSUMER) for tag in trigger.tags):
        hops += 1
    return hops


def check_hops(trigger: Breadcrumb, limit: int) -> None:
    """Raise `TurnFailed` above the limit, which stops configs that trigger each other."""
    if (hops := _count_hops(trigger)) > limit:
        raise TurnFailed(
            f"stopped after contexts triggered each other {hops} times in a row: check update_triggers"
        )
