"""The event stream in the OpenAPI document; event_stream.py serves it."""

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
        summary="Follow what happens",
        description=(
            "Server-sent events: one unnamed message per write, `event: ping` at the beginning and while "
            "nothing happens. All filters must hold. Send the `id:` of the last event as Last-Event-ID, as "
            "EventSource does by itself, and nothing is lost; `event: gap` says where too much time has "
            "passed for that. A client that does not read is disconnected. A stream ends with its token. "
            "`event: undecided` names a breadcrumb that the conditions of the stream would cost too much on. A "
            "token has a limited number of streams."
        ),
        handle=None,
        parameters=(
            Parameter("schema_name", "query", "Has this schema.", _TAGS, False, "agent.response.v1"),
            Parameter("tag", "query", "Carries this tag. Repeat it: all must match.", _TAG, True),
            Parameter("tags", "query", "The same as `tag`.", _TAG, True),
            Parameter(
                "all_tags", "query", "Carries all of these tags. A JSON array also works.", _TAGS, True
            ),
            Parameter(
                "any_tags", "query", "Carries at least one of these. A JSON array also works.", _TAGS, True
            ),
            Parameter("session_id", "query", "Belongs to this session.", {"type": "string", "minLength": 1}),
            Parameter("filters", "query", "A selector as JSON, with `context_match` if need be."),
            Parameter("agent_id", "query", "What any of this agent's saved selectors matches.", UUID_SCHEMA),
            Parameter(
                "selector_id", "query", "What any of these saved selectors matches.", UUID_SCHEMA, True
            ),
            Parameter("last_event_id", "query", "The same as the header Last-Event-ID."),
            Parameter("token", "query", "A token, because EventSource cannot send headers."),
            Parameter("access_token", "query", "The same as `token`."),
            Parameter("Last-Event-ID", "header", "Where the last stream ended."),
        ),
        successes=(SuccessReply(200, "The stream.", media_type="text/event-stream"),),
        may_fail=(NOT_FOUND,),
    ),
)
