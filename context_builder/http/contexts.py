"""Explain and preview over HTTP. Whoever asks is shown nothing that their token may not see."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from breadcrumbs.context_builder.assembly import ItemPlace, Reason
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import MAX_COMPLAINTS, check_document
from breadcrumbs.context_builder.explain import PageLimits, explain
from breadcrumbs.context_builder.explanation import Explanation
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.rebuild import RebuiltContext, rebuild
from breadcrumbs.context_builder.referenced import Reader
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.session_rule import check_session_id
from breadcrumbs.runtime.errors import Complaint, InvalidCursor, InvalidInput, NotFound
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.listing import read_flag
from breadcrumbs.runtime.http.api.operations import ID, Body, Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import INVALID_CURSOR, NOT_FOUND
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time, VersionNumber
from breadcrumbs.runtime.retrieval.sources import Scope
from breadcrumbs.runtime.sessions.sessions import Sessions

# What the answers look like: for the OpenAPI document. `explanation.py` has the values.

_closed = with_config(extra="forbid")


_EXAMPLE: Final = {
    "session_id": "abc",
    "config": {
        "consumer_id": "default-chat-assistant",
        "update_triggers": [{"schema_name": "user.message.v1"}],
        "sources": [
            {
                "key": "conversation",
                "schema_name": "user.message.v1",
                "fetch": {"method": "recent", "limit": 3},
            }
        ],
    },
}

routes = Routes("Contexts")


@_closed
class SourceView(TypedDict):
    """What a source was asked for, and how much it found."""

    key: str
    schema_name: NotRequired[str]
    any_tags: NotRequired[list[str]]
    all_tags: NotRequired[list[str]]
    method: Literal["recent", "latest", "event_data"]
    limit: NotRequired[int]
    scope: NotRequired[Scope]
    shared: NotRequired[Annotated[bool, Field(description="Also finds what belongs to no session")]]
    found: Count


@_closed
class ItemView(TypedDict):
    """A breadcrumb in a context, in the order of the prompt."""

    source: Annotated[str, Field(description="Key of the source; `trigger` where no source found it")]
    number: NotRequired[Annotated[Count, Field(description="Which of the sources it was")]]
    place: ItemPlace
    rank: Annotated[Count, Field(description="0: the newest that the source found")]
    tokens: Count
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]
    schema_name: NotRequired[str]
    session_id: NotRequired[Annotated[str, Field(description="Where it is not the context's own")]]
    created_at: NotRequired[Time]
    title: NotRequired[str]
    excerpt: NotRequired[str]
    matched: NotRequired[Annotated[list[str], Field(description="Tags of the source that it carries")]]
    is_trigger: NotRequired[bool]
    gone: NotRequired[Annotated[bool, Field(description="Deleted or expired since")]]
    hidden: NotRequired[Annotated[bool, Field(description="Not for this token")]]


@_closed
class LeftOutView(TypedDict):
    """A breadcrumb that was found and left out."""

    source: str
    number: NotRequired[Count]
    reason: Reason
    tokens: NotRequired[Annotated[Count, Field(description="What it would have taken")]]
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]
    schema_name: NotRequired[str]
    created_at: NotRequired[Time]
    title: NotRequired[str]
    gone: NotRequired[bool]
    hidden: NotRequired[bool]


class _Explained(TypedDict):
    consumer_id: str
    session_id: NotRequired[str]
    trigger_id: Id
    trigger_version: VersionNumber
    as_of: Annotated[Time, Field(description="What was written later is not in it")]
    config: Annotated[str, Field(description="Digest of the config that it was made by")]
    tokens: Count
    budget: Count
    counted_by: Annotated[str, Field(description="`o200k`, or `estimate` where no tokenizer is installed")]
    sources: list[SourceView]
    items: list[ItemView]
    left_out: list[LeftOutView]
    left_out_besides: Annotated[Count, Field(description="How many more were left out")]
    notes: list[str]


@_closed
class PartView(TypedDict):
    """A part of a prompt."""

    place: ItemPlace
    key: str
    items: list[dict[str, Any]]


@_closed
class ExplanationView(_Explained):
    """Why a context is as it is."""

    context_id: Id
    version: VersionNumber
    made_at: Time
    parts: NotRequired[Annotated[list[PartView], Field(description="What the model was shown, on request")]]
    parts_as_shown: NotRequired[
        Annotated[
            bool,
            Field(
                description="False: something is gone since, or not for this token. Not known on a page of many"
            ),
        ]
    ]
    next_cursor: NotRequired[
        Annotated[str, Field(description="There are more items: the cursor of the next page")]
    ]


@_closed
class PreviewView(_Explained):
    """What a model would see."""

    parts: list[PartView]


_PARTS: Final = TypeAdapter(list[PartView])


class PreviewRequest(BaseModel):
    """Which session to look at, with which config."""

    model_config = ConfigDict(extra="forbid")

    session_id: Annotated[str, Field(min_length=1, max_length=248)]
    config: ContextConfig | Annotated[list[ContextConfig], Field(min_length=1)] = Field(
        description="One config, or a list of them: the content of a config file"
    )
    consumer_id: str | None = Field(None, description="Which of several configs")
    trigger_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None, description="For this breadcrumb of the session; none: the newest that the config reacts to"
    )


class _PreviewBody(BaseModel):
    """A `PreviewRequest` whose config is not checked yet. `_choose_config` reports its errors."""

    model_config = ConfigDict(extra="forbid")

    session_id: str
    config: Any
    consumer_id: str | None = None
    trigger_id: str | None = None


# What they do


@routes.operation(
    id="explainContext",
    method="GET",
    path="/contexts/{id}/explain",
    summary="Why a context is as it is",
    description=(
        "Every item with its source, its tokens and where it comes from; everything that was left out, and "
        "why. `id` is that of the context's breadcrumb (`agent.context.v1`). Where the breadcrumbs behind it are "
        "large, a page ends at the byte budget of a response and has a `next_cursor`: first come all items, then "
        "what was left out."
    ),
    parameters=(
        ID,
        Parameter(
            "version",
            "query",
            "An older version; the newest if left out.",
            {"type": "integer", "minimum": 1},
        ),
        Parameter(
            "parts",
            "query",
            "`true`: also the very content that the model was shown.",
            {"type": "boolean"},
        ),
        Parameter("cursor", "query", "The next page: `next_cursor` of the last one."),
    ),
    successes=(SuccessReply(200, "The explanation.", ExplanationView),),
    may_fail=(INVALID_CURSOR,),
)
async def explain_context(call: HttpCall) -> Reply:
    principal, id, query = call.principal, call.path_id(), call.query()
    version, with_parts = _parse_version(query.get("version")), read_flag(query, "parts")
    version, start = _parse_cursor(query.get("cursor"), version)
    store = call.services.store
    context = await store.get(principal.owner_id, id, count_read=False)
    policy.check_readable(principal, context)
    if version is not None and version != context.version:
        policy.check_readable(principal, await store.get_version(principal.owner_id, id, version))
    explained = await explain(
        store,
        principal.owner_id,
        id,
        version,
        reader=Reader(partial(policy.may_read, principal), conceals_gone=principal.is_narrowed),
        page=PageLimits(start, call.services.settings.max_response_bytes),
    )
    document = explained.as_dict()
    if explained.next_start is not None:
        document["next_cursor"] = f"{explained.version}.{explained.next_start}"
    if with_parts:
        page = slice(start, start + len(explained.items))
        rebuilt = await rebuild(store, principal.owner_id, id, explained.version, only=page)
        document |= _shown_parts(explained, rebuilt)
    return Reply.json(document)


def _parse_cursor(cursor: str | None, version: int | None) -> tuple[int | None, int]:
    """Return the version and the start of the page that a cursor names."""
    if cursor is None:
        return version, 0
    of, _, start = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (of, start)) or int(of) == 0:
        raise InvalidCursor(
            "this is not a cursor of an explanation: take it from next_cursor", where="cursor"
        )
    if version not in (None, int(of)):
        raise InvalidCursor("this cursor is for another version of the context", where="cursor")
    return int(of), int(start)


def _shown_parts(explained: Explanation, rebuilt: RebuiltContext) -> dict[str, Any]:
    """Return the parts that the model was shown, without the items that this reader may not see."""
    try:
        parts = _PARTS.validate_python(rebuilt.parts)
    except ValidationError:  # anybody may post a breadcrumb that looks like a context
        raise NotFound(f"breadcrumb {rebuilt.context_id} is no context, or not one of ours") from None
    told = {item.id for item in explained.items if not (item.hidden or item.gone)}
    shown: list[dict[str, Any]] = [
        {"place": part["place"], "key": part["key"], "items": items}
        for part in parts
        if (items := [item for item in part["items"] if item.get("id") in told])
    ]
    document: dict[str, Any] = {"parts": shown}
    if rebuilt.same is not None:
        document["parts_as_shown"] = rebuilt.same and len(told) == len(explained.items)
    return document


@routes.operation(
    id="previewContext",
    method="POST",
    path="/contexts/preview",
    summary="What a model would see with another config",
    description=(
        "For the newest breadcrumb of the session that the config reacts to, or for a given one, from what "
        "was there when its context was made. Nothing is written. What the token may not see is as if it "
        "were not there."
    ),
    body=Body(PreviewRequest, _EXAMPLE),
    successes=(SuccessReply(200, "The explanation, and what would be shown.", PreviewView),),
    may_fail=(NOT_FOUND,),
)
async def preview_context(call: HttpCall) -> Reply:
    principal = call.principal
    asked = parse_body(_PreviewBody, await call.json(), error="this is no request for a preview")
    check_session_id(asked.session_id)
    await _check_session(call, asked.session_id)
    wanted = PreviewInput(
        principal.owner_id,
        asked.session_id,
        _choose_config(asked),
        None if asked.trigger_id is None else _parse_trigger_id(asked.trigger_id),
        may_see=partial(policy.may_read, principal),
    )
    made = await preview(call.services.store, wanted, hints=call.services.hints)
    return Reply.json(made.explanation.as_dict() | {"parts": made.parts})


async def _check_session(call: HttpCall, session: str) -> None:
    """Check that the session exists for a narrowed token."""
    principal = call.principal
    if principal.is_narrowed:
        held = await Sessions(call.services.store).belonging(principal.owner_id, session)
        if held is None or not policy.may_see_session(principal, session, held.user):
            raise NotFound(f"there is no session {session!r}")


def _parse_version(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise InvalidInput("version must be a whole number from 1", where="version")
    return int(text)


def _parse_trigger_id(text: str) -> UUID:
    return parse_id(text, what="trigger_id")


def _choose_config(asked: _PreviewBody) -> ContextConfig:
    configs, faults = check_document(asked.config)
    if faults:
        complaints = [
            Complaint(f"config.{fault.where}".rstrip("."), fault.message) for fault in faults[:MAX_COMPLAINTS]
        ]
        raise InvalidInput("the config cannot be used", complaints=complaints)
    names = ", ".join(config.consumer_id for config in configs)
    if asked.consumer_id is None:
        if len(configs) > 1:
            raise InvalidInput(f"there are configs of {names}: say which one", where="consumer_id")
        return configs[0]
    for config in configs:
        if config.consumer_id == asked.consumer_id:
            return config
    raise InvalidInput(f"there is no config of this consumer, but of {names}", where="consumer_id")
