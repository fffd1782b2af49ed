"""Spans `retrieval` of the context builder, with the attributes of the GenAI semantic conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from breadcrumbs.context_builder.assembly import Assembled
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.workers.turn_spans import TurnSpan

if TYPE_CHECKING:
    from breadcrumbs.runtime.telemetry.spans import Spans

_FRAMEWORK: Final = "breadcrumbs"


def retrieval_span(consumer: str, trigger: Breadcrumb, start_ns: int | None = None) -> TurnSpan:
    """Return the span of a context.

    `consumer`: the consumer of the context config. Empty: the sources of an agent without a context config.
    """
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": _FRAMEWORK,
        "breadcrumbs.owner.id": str(trigger.owner_id),
        "breadcrumbs.message.id": str(trigger.id),
    }
    if consumer:
        attributes["gen_ai.data_source.id"] = consumer
    if trigger.session_id is not None:
        attributes["gen_ai.conversation.id"] = trigger.session_id
    return TurnSpan(f"retrieval {consumer}" if consumer else "retrieval", attributes, start_ns=start_ns)


def describe_retrieval(spans: Spans, trigger: Breadcrumb, assembled: Assembled) -> None:
    """Add the result of a retrieval to the current span."""
    result: dict[str, Any] = {
        "breadcrumbs.context.items": len(assembled.items),
        "breadcrumbs.context.left_out": len(assembled.left_out),
        "breadcrumbs.context.tokens": assembled.tokens,
    }
    if spans.content:
        documents = [{"id": str(item.crumb.id)} for item in assembled.items]
        result["gen_ai.retrieval.documents"] = orjson.dumps(documents).decode()
        result["gen_ai.retrieval.query.text"] = plain_text(trigger.context)
    spans.describe(result)
