"""HTTP operation that returns the recording of a session, for a test case."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.proofs.recording import NotRecordable, record_session
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count
from breadcrumbs.runtime.http.routes.session_views import SESSION_ID, named_session

routes: Final = Routes("Sessions")


@with_config(extra="forbid")
class RecordingView(TypedDict):
    """A recorded conversation."""

    recording: Annotated[Count, Field(description="Number of the format.")]
    session: str
    agents: Annotated[dict[str, Any], Field(description="Agent definitions of that time, by agent_id.")]
    configs: Annotated[dict[str, Any], Field(description="Context configs of that time, by consumer.")]
    notes: NotRequired[list[str]]
    shared: NotRequired[
        Annotated[list[dict[str, Any]], Field(description="Breadcrumbs from outside of the session.")]
    ]
    tools: Annotated[dict[str, Any], Field(description="Schemas of the tools, by agent_id.")]
    turns: Annotated[
        list[dict[str, Any]], Field(description="Messages with prompts, replies and answers of each agent.")
    ]


@routes.operation(
    id="recordSession",
    method="GET",
    path="/sessions/{id}/recording",
    summary="Get the recording of a session",
    description=(
        "Returns the messages of a session with the complete prompts, the replies of the models, the tool results and "
        "the answers, for a test case: `crumb sessions export-test` writes it into a file. Replies with 404 if the "
        "session does not exist, has no answer with a receipt, or if a prompt cannot be rebuilt; the detail says why."
    ),
    parameters=(
        SESSION_ID,
        Parameter(
            "until", "query", "Id of an answer. The recording ends after its message.", {"type": "string"}
        ),
    ),
    successes=(SuccessReply(200, "The recording.", RecordingView),),
)
async def get_recording(call: HttpCall) -> Reply:
    principal, session, store = call.principal, named_session(call), call.services.store
    given = call.query().get("until")
    until = None if given is None else parse_id(given, what="until")
    may_read = partial(policy.may_read, principal)
    try:
        recording = await record_session(store, principal.owner_id, session, until=until, may_read=may_read)
    except NotRecordable as error:
        raise NotFound(str(error)) from None
    return Reply.json(recording)
