"""Declares the operation of the event stream. `event_stream.py` serves it."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.http.api.operations import UUID_SCHEMA, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_FOUND

_TAG: Final = {"type": "string", "minLength": 1, "maxLength": 256}
_TAGS: Final = {"type": "string", "minLength": 1}

OPERATIONS: Final = (
    Operation(
        id="streamEvents",
        method="GET",
        path="/events/stream",
        group="Events",
        summary="Stream events",
        description=(
            "Server-sent events. Each write is one event without a name. `event: ping` is the first event and is "
            "also sent while the stream is idle. All filters must match. To resume without loss, send the `id:` of "
            "the last event as Last-Event-ID, as EventSource does. `event: gap` follows the first ping if events "
            "after that position are no longer stored. `event: undecided` contains a breadcrumb whose conditions are "
            "too expensive to evaluate. A client that does not read is disconnected. A stream ends when its token "
            "expires. The number of open streams per token is limited."
        ),
        handle=None,
        parameters=(
            Parameter("schema_name", "query", "Has this schema name.", _TAGS, False, "agent.response.v1"),
            Parameter("tag", "query", "Has this tag. If repeated, all tags must match.", _TAG, True),
            Parameter("tags", "query", "Same as `tag`.", _TAG, True),
            Parameter(
                "all_tags", "query", "Has all of these tags. A value can also be a JSON array.", _TAGS, True
            ),
            Parameter(
                "any_tags", "query", "Has one of these tags. A value can also be a JSON array.", _TAGS, True
            ),
            Parameter("session_id", "query", "Belongs to this session.", {"type": "string", "minLength": 1}),
            Parameter("filters", "query", "A selector as JSON. It can contain `context_match`."),
            Parameter("agent_id", "query", "Matches one of the saved selectors of this agent.", UUID_SCHEMA),
            Parameter("selector_id", "query", "Matches one of these saved selectors.", UUID_SCHEMA, True),
            Parameter("last_event_id", "query", "Same as the header Last-Event-ID."),
            Parameter("token", "query", "The token, for EventSource, which cannot send headers."),
            Parameter("access_token", "query", "Same as `token`."),
            Parameter("Last-Event-ID", "header", "The `id:` of the last received event."),
        ),
        successes=(SuccessReply(200, "The event stream.", media_type="text/event-stream"),),
        may_fail=(NOT_FOUND,),
    ),
)
