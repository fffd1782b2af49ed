"""HTTP operation that shows the receipt of an answer, with the complete prompt."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.agents.models.windows import windows_in
from breadcrumbs.context_builder.assembly import ItemPlace
from breadcrumbs.context_builder.referenced import Reader
from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt
from breadcrumbs.proofs.requests import NotRebuildable, load_receipt
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.listing import read_flag
from breadcrumbs.runtime.http.api.operations import ID, Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time, VersionNumber

_closed = with_config(extra="forbid")

Digest = Annotated[str, Field(description="SHA-256, 64 hexadecimal digits.")]

routes: Final = Routes("Contexts")


@_closed
class CallView(TypedDict):
    """One model call of an answer."""

    request: Annotated[Digest, Field(description="SHA-256 of the body of the request.")]
    attempts: Annotated[Count, Field(description="Number of requests until a response arrived.")]
    response_id: NotRequired[str]
    model: NotRequired[
        Annotated[str, Field(description="Name in the response, if it differs from the request.")]
    ]
    finish_reason: NotRequired[str]
    input_tokens: NotRequired[Count]
    output_tokens: NotRequired[Count]
    cached_tokens: NotRequired[Count]
    reasoning_tokens: NotRequired[Count]
    first_token_ms: NotRequired[Count]
    duration_ms: NotRequired[Count]
    tool_requests: NotRequired[
        Annotated[list[Id], Field(description="The tool requests (`tool.request.v1`) of the reply.")]
    ]
    step_id: NotRequired[
        Annotated[Id, Field(description="The stored reply (`agent.step.v1`), if it called tools.")]
    ]
    tools: NotRequired[Annotated[list[str], Field(description="Names of the tools that the reply called.")]]
    replayed: NotRequired[
        Annotated[
            bool,
            Field(
                description="An earlier attempt of the turn made this call. Its stored reply was used again."
            ),
        ]
    ]


@_closed
class PromptItemView(TypedDict):
    """An item of the prompt."""

    source: str
    place: ItemPlace
    tokens: Count
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]
    schema_name: NotRequired[str]
    created_at: NotRequired[Time]
    content: NotRequired[Annotated[dict[str, Any], Field(description="Content that the model was shown.")]]
    content_omitted: NotRequired[
        Annotated[bool, Field(description="The prompt is larger than the byte limit of a response.")]
    ]
    gone: NotRequired[Annotated[bool, Field(description="The breadcrumb was deleted or has expired.")]]
    hidden: NotRequired[Annotated[bool, Field(description="This token may not see the breadcrumb.")]]


@_closed
class PromptDigests(TypedDict):
    """Digests of the parts of a setup."""

    system_prompt: Digest
    tools: Digest
    parameters: Digest


@_closed
class PromptView(TypedDict):
    """The complete prompt of the first request."""

    items: list[PromptItemView]
    digests: PromptDigests
    system_prompt: NotRequired[str]
    tools: NotRequired[Annotated[list[dict[str, Any]], Field(description="Schemas of the tools.")]]
    setup_hidden: NotRequired[
        Annotated[bool, Field(description="A narrowed token does not see the system prompt and the tools.")]
    ]


@_closed
class PromptTokens(TypedDict):
    """Tokens of the prompt of the first request."""

    system_prompt: Count
    tools: Count
    items: Count
    total: Count
    counted_by: str
    budget: NotRequired[
        Annotated[Count, Field(description="Budget of the context config. It covers items only.")]
    ]
    window: NotRequired[
        Annotated[Count, Field(description="Context window of the model. Missing if it is unknown.")]
    ]


@_closed
class MissingView(TypedDict):
    """Something that is needed to rebuild a request and was deleted."""

    kind: Literal["receipt", "answer", "setup", "context", "item", "schema definition", "tool call", "step"]
    reason: str
    id: NotRequired[str]
    version: NotRequired[VersionNumber]


@_closed
class DifferenceView(TypedDict):
    """The first difference between a rebuilt request and its receipt."""

    where: str
    cause: str


@_closed
class VerificationView(TypedDict):
    """Result of a verification."""

    outcome: Literal["equal", "different", "not rebuildable"]
    requests: Annotated[Count, Field(description="Number of requests that were compared.")]
    edited: NotRequired[
        Annotated[bool, Field(description="The text was edited since. The proof is about the first version.")]
    ]
    difference: NotRequired[DifferenceView]
    missing: NotRequired[list[MissingView]]


@_closed
class ReceiptDigests(TypedDict):
    """Digests of a receipt."""

    setup: str
    context: str


@_closed
class ReceiptView(TypedDict):
    """The receipt of an answer, with the complete prompt."""

    answer_id: Id
    session_id: NotRequired[str]
    copy_of: NotRequired[Annotated[Id, Field(description="The original answer, if a fork copied it.")]]
    context_id: NotRequired[Id]
    context_version: NotRequired[VersionNumber]
    agent_id: NotRequired[str]
    kind: NotRequired[Literal["model", "function", "adk"]]
    model: NotRequired[str]
    provider: NotRequired[str]
    config: NotRequired[Annotated[str, Field(description="Hash of the context config.")]]
    definition: NotRequired[Annotated[str, Field(description="Digest of the agent definition.")]]
    agent: NotRequired[
        Annotated[
            dict[str, Any],
            Field(description="The agent definition of that time, without the URL of the model's server."),
        ]
    ]
    software: NotRequired[Annotated[str, Field(description="Version of Breadcrumbs that made the request.")]]
    parameters: NotRequired[dict[str, Any]]
    digests: ReceiptDigests
    calls: list[CallView]
    duration_ms: Count
    attempt: Annotated[Count, Field(description="Attempt of the turn that made this answer.")]
    prompt: NotRequired[PromptView]
    tokens: NotRequired[PromptTokens]
    missing: NotRequired[list[MissingView]]
    verification: NotRequired[Annotated[VerificationView, Field(description="Only with `verify=true`.")]]


@routes.operation(
    id="getReceipt",
    method="GET",
    path="/breadcrumbs/{id}/receipt",
    summary="Get the receipt of an answer",
    description=(
        "Returns the model calls of an answer with their tokens, times and digests, and the complete prompt: system "
        "prompt, tools and items, counted against the window of the model. What was deleted is in `missing`. With "
        "`verify=true`, the requests are rebuilt and compared with the digests. Replies with 404 if the breadcrumb is "
        "not an answer with a receipt."
    ),
    parameters=(
        ID,
        Parameter("verify", "query", "`true` also verifies the requests.", {"type": "boolean"}),
    ),
    successes=(SuccessReply(200, "The receipt.", ReceiptView),),
)
async def get_receipt(call: HttpCall) -> Reply:
    principal, id, services = call.principal, call.path_id(), call.services
    verifies = read_flag(call.query(), "verify")
    store, settings = services.store, services.settings
    answer = await store.get(principal.owner_id, id, count_read=False)
    policy.check_readable(principal, answer)
    try:
        receipt = await load_receipt(store, principal.owner_id, id)
    except NotRebuildable as error:
        raise NotFound(error.missing.reason) from None
    if not policy.may_read(principal, receipt.answer):
        raise NotFound(f"answer {id} was copied by a fork, and this token may not see the original answer")
    options = ViewOptions(
        reader=Reader(partial(policy.may_read, principal), conceals_gone=principal.is_narrowed),
        shows_setup=not principal.is_narrowed,
        verifies=verifies,
        windows=windows_in(settings.models),
        max_bytes=settings.max_response_bytes,
    )
    return Reply.json(await view_receipt(store, answer, receipt, options))
