"""HTTP operations that explain and preview contexts.

They hide breadcrumbs that the token may not see.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired
from uuid import UUID

import anyio
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

# Types of the replies, for the OpenAPI document. The values come from `explanation.py`.

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

MAX_SECONDS_PER_TURN: Final = 10.0
"""Time limit of a preview, and of a test that has not finished a turn."""


@_closed
class SourceView(TypedDict):
    """A source, and how many breadcrumbs it found."""

    key: str
    schema_name: NotRequired[str]
    any_tags: NotRequired[list[str]]
    all_tags: NotRequired[list[str]]
    method: Literal["recent", "latest", "event_data"]
    limit: NotRequired[int]
    max_tokens: NotRequired[Annotated[int, Field(description="Size limit of one breadcrumb.")]]
    key_limit: NotRequired[Annotated[int, Field(description="Limit of all sources with this key together.")]]
    keep: NotRequired[Annotated[int, Field(description="The stepped window is cut to this number.")]]
    count: NotRequired[
        Annotated[
            Count,
            Field(
                description="Breadcrumbs of the session up to the trigger. Decides the start of a stepped window."
            ),
        ]
    ]
    scope: NotRequired[Scope]
    shared: NotRequired[
        Annotated[bool, Field(description="The source also finds breadcrumbs that belong to no session.")]
    ]
    found: Count
    more: NotRequired[
        Annotated[
            bool,
            Field(
                description="The source matches older breadcrumbs, which its limit left out. Only on the first page."
            ),
        ]
    ]


@_closed
class CutView(TypedDict):
    """How the texts of a breadcrumb were cut."""

    kept: Annotated[Count, Field(description="Maximum number of characters of each text.")]
    of: Annotated[Count, Field(description="Characters of the longest text before the cut.")]


@_closed
class ItemView(TypedDict):
    """A breadcrumb in a context, in the order of the prompt."""

    source: Annotated[str, Field(description="Key of the source. `trigger` if no source found it.")]
    number: NotRequired[Annotated[Count, Field(description="Index of the source in `sources`.")]]
    place: ItemPlace
    rank: Annotated[Count, Field(description="Position in the results of the source. 0 is the newest.")]
    tokens: Count
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]
    schema_name: NotRequired[str]
    session_id: NotRequired[
        Annotated[
            str, Field(description="Session of the breadcrumb, if it is not the session of the context.")
        ]
    ]
    created_at: NotRequired[Time]
    title: NotRequired[str]
    excerpt: NotRequired[str]
    matched: NotRequired[
        Annotated[list[str], Field(description="Tags of the source that the breadcrumb has.")]
    ]
    is_trigger: NotRequired[bool]
    cut: NotRequired[
        Annotated[CutView, Field(description="Present if `max_tokens` of the source cut its texts.")]
    ]
    gone: NotRequired[Annotated[bool, Field(description="The breadcrumb was deleted or has expired.")]]
    hidden: NotRequired[Annotated[bool, Field(description="This token may not see the breadcrumb.")]]


@_closed
class LeftOutView(TypedDict):
    """A breadcrumb that a source found, but that is not in the context."""

    source: str
    number: NotRequired[Count]
    reason: Reason
    tokens: NotRequired[
        Annotated[
            Count,
            Field(
                description="Size of the breadcrumb. Present if it or its question did not fit into the budget."
            ),
        ]
    ]
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
    as_of: Annotated[Time, Field(description="Breadcrumbs written after this time are not included.")]
    config: Annotated[str, Field(description="Hash of the config that the context was built with.")]
    tokens: Count
    budget: Count
    counted_by: Annotated[str, Field(description="`o200k`, or `estimate` if no tokenizer is installed.")]
    sources: list[SourceView]
    items: list[ItemView]
    left_out: list[LeftOutView]
    left_out_besides: Annotated[
        Count, Field(description="Number of left-out breadcrumbs that are not listed in `left_out`.")
    ]
    unread_schemas: NotRequired[
        Annotated[
            list[str],
            Field(
                description="Schemas of messages, answers or attached pages that the session has, but no source reads."
            ),
        ]
    ]
    notes: list[str]


@_closed
class BreakItemView(TypedDict):
    """Item at which two contexts differ. Empty if one of them ends there."""

    source: NotRequired[str]
    place: NotRequired[ItemPlace]
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]
    schema_name: NotRequired[str]
    title: NotRequired[str]
    gone: NotRequired[bool]
    hidden: NotRequired[bool]


@_closed
class BreakView(TypedDict):
    """First difference between two contexts."""

    item: Annotated[BreakItemView, Field(description="Item of this context.")]
    before: Annotated[BreakItemView, Field(description="Item of the previous context at the same position.")]


@_closed
class ReuseView(TypedDict):
    """The beginning of a context that repeats the previous one, without system prompt and tools."""

    previous_version: VersionNumber
    items: Annotated[Count, Field(description="Number of equal items at the beginning.")]
    bytes: Annotated[Count, Field(description="Size of these items.")]
    of_bytes: Annotated[Count, Field(description="Size of all items.")]
    percent: Annotated[float, Field(ge=0, le=100)]
    broken: NotRequired[
        Annotated[BreakView, Field(description="Missing if this context begins with the whole previous one.")]
    ]


@_closed
class PartView(TypedDict):
    """A part of a prompt."""

    place: ItemPlace
    key: str
    items: list[dict[str, Any]]


@_closed
class ExplanationView(_Explained):
    """Explanation of a stored context."""

    context_id: Id
    version: VersionNumber
    made_at: Time
    reuse: NotRequired[
        Annotated[
            ReuseView,
            Field(description="The part that repeats the previous context. Only on the first page."),
        ]
    ]
    parts: NotRequired[
        Annotated[
            list[PartView], Field(description="Content that the model was shown. Only with `parts=true`.")
        ]
    ]
    parts_as_shown: NotRequired[
        Annotated[
            bool,
            Field(
                description="Whether `parts` is complete. False if items were deleted or this token may not see them. "
                "Missing if the explanation has several pages."
            ),
        ]
    ]
    next_cursor: NotRequired[
        Annotated[str, Field(description="Cursor of the next page. Missing on the last page.")]
    ]


@_closed
class PreviewView(_Explained):
    """Explanation and content of a context that was not stored."""

    parts: list[PartView]


_PARTS: Final = TypeAdapter(list[PartView])


class PreviewRequest(BaseModel):
    """Session and config of a preview."""

    model_config = ConfigDict(extra="forbid")

    session_id: Annotated[str, Field(min_length=1, max_length=248)]
    config: ContextConfig | Annotated[list[ContextConfig], Field(min_length=1)] = Field(
        description="The content of a config file: one config, or a list of them."
    )
    consumer_id: str | None = Field(
        None, description="Consumer of the config to use. Required if there are several configs."
    )
    trigger_id: Annotated[str, Field(json_schema_extra={"format": "uuid"})] | None = Field(
        None,
        description="Breadcrumb of the session to build the context for. Default: the newest one that the config "
        "reacts to.",
    )


class _PreviewBody(BaseModel):
    """A `PreviewRequest` with an unchecked config. `choose_config` checks it and reports its errors."""

    model_config = ConfigDict(extra="forbid")

    session_id: str
    config: Any
    consumer_id: str | None = None
    trigger_id: str | None = None


# Operations


@routes.operation(
    id="explainContext",
    method="GET",
    path="/contexts/{id}/explain",
    summary="Explain a context",
    description=(
        "Returns each item with its source, its place and its tokens, and each left-out breadcrumb with the reason. "
        "`id` is the id of the context breadcrumb (`agent.context.v1`). If the breadcrumbs are large, a page ends at "
        "the byte limit of a response and has a `next_cursor`. The pages contain first all items, then the left-out "
        "breadcrumbs."
    ),
    parameters=(
        ID,
        Parameter(
            "version",
            "query",
            "Version of the context. Default: the newest.",
            {"type": "integer", "minimum": 1},
        ),
        Parameter(
            "parts",
            "query",
            "`true` also returns the content that the model was shown.",
            {"type": "boolean"},
        ),
        Parameter("cursor", "query", "`next_cursor` of the previous page."),
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
    """Return the version and the start index that a cursor encodes."""
    if cursor is None:
        return version, 0
    number, _, start = cursor.partition(".")
    is_valid = all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (number, start))
    if not is_valid or int(number) == 0:
        raise InvalidCursor(
            "this is not a cursor of an explanation: use next_cursor of the previous page", where="cursor"
        )
    if version not in (None, int(number)):
        raise InvalidCursor(
            "this cursor belongs to another version of the context: leave version out", where="cursor"
        )
    return int(number), int(start)


def _shown_parts(explained: Explanation, rebuilt: RebuiltContext) -> dict[str, Any]:
    """Return the parts that the model was shown.

    Items that the reader may not see are removed.
    """
    try:
        parts = _PARTS.validate_python(rebuilt.parts)
    except ValidationError:  # clients can post breadcrumbs that look like contexts
        raise NotFound(f"breadcrumb {rebuilt.context_id} is not a context of the context builder") from None
    visible = {item.id for item in explained.items if not (item.hidden or item.gone)}
    shown: list[dict[str, Any]] = [
        {"place": part["place"], "key": part["key"], "items": items}
        for part in parts
        if (items := [item for item in part["items"] if item.get("id") in visible])
    ]
    document: dict[str, Any] = {"parts": shown}
    if rebuilt.same is not None:
        document["parts_as_shown"] = rebuilt.same and len(visible) == len(explained.items)
    return document


@routes.operation(
    id="previewContext",
    method="POST",
    path="/contexts/preview",
    summary="Preview a context",
    description=(
        "Builds the context for the newest breadcrumb of the session that the config reacts to, or for a given one. "
        "Uses only breadcrumbs that existed when the stored context for it was built. Nothing is written. Breadcrumbs "
        "that the token may not see are treated as missing."
    ),
    body=Body(PreviewRequest, _EXAMPLE),
    successes=(SuccessReply(200, "The preview.", PreviewView),),
    may_fail=(NOT_FOUND,),
)
async def preview_context(call: HttpCall) -> Reply:
    principal = call.principal
    request = parse_body(_PreviewBody, await call.json(), error="invalid preview request")
    check_session_id(request.session_id)
    await _check_session(call, request.session_id)
    wanted = PreviewInput(
        principal.owner_id,
        request.session_id,
        choose_config(request.config, request.consumer_id),
        None if request.trigger_id is None else _parse_trigger_id(request.trigger_id),
        may_see=partial(policy.may_read, principal),
        conceals_gone=principal.is_narrowed,
    )
    async with call.services.searches.hold(principal.owner_id, principal):
        with anyio.move_on_after(MAX_SECONDS_PER_TURN):
            built = await preview(call.services.store, wanted)
            return Reply.json(built.explanation.as_dict() | {"parts": built.parts})
    raise takes_too_long()


async def _check_session(call: HttpCall, session: str) -> None:
    """Raise `NotFound` if a narrowed token may not see the session."""
    principal = call.principal
    if principal.is_narrowed:
        existing = await Sessions(call.services.store).belonging(principal.owner_id, session)
        if existing is None or not policy.may_see_session(principal, session, existing.user):
            raise NotFound(f"session {session!r} not found")


def takes_too_long() -> InvalidInput:
    """Return the error for a config with which one turn takes too long."""
    return InvalidInput(
        f"one turn takes more than {MAX_SECONDS_PER_TURN:g} s with this config: lower the limits of its sources",
        where="config",
    )


def _parse_version(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise InvalidInput("version must be a whole number of at least 1", where="version")
    return int(text)


def _parse_trigger_id(text: str) -> UUID:
    return parse_id(text, what="trigger_id")


def choose_config(document: Any, consumer: str | None) -> ContextConfig:
    """Return the config of a consumer from the content of a config file. Raise `InvalidInput` if it is not valid."""
    configs, faults = check_document(document)
    if faults:
        complaints = [
            Complaint(f"config.{fault.where}".rstrip("."), fault.message) for fault in faults[:MAX_COMPLAINTS]
        ]
        raise InvalidInput("the config is invalid", complaints=complaints)
    names = ", ".join(config.consumer_id for config in configs)
    if consumer is None:
        if len(configs) > 1:
            raise InvalidInput(f"choose one of the consumers {names}", where="consumer_id")
        return configs[0]
    for config in configs:
        if config.consumer_id == consumer:
            return config
    raise InvalidInput(f"no config of this consumer, expected one of: {names}", where="consumer_id")
