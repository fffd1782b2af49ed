"""HTTP operation that tests a changed context config on past turns.

It hides breadcrumbs and sessions that the token may not see. One call tests a limited number of turns.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

import anyio
from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_tests import (
    ContextTester,
    ContextTestReport,
    ContextTestRequest,
    Position,
)
from breadcrumbs.context_builder.http import contexts
from breadcrumbs.context_builder.http.contexts import choose_config
from breadcrumbs.context_builder.old_configs import OldConfigs
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, parse_time
from breadcrumbs.runtime.breadcrumb.session_rule import check_session_id
from breadcrumbs.runtime.errors import InvalidCursor, NotFound
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Body, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import INVALID_CURSOR, NOT_FOUND
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id, VersionNumber
from breadcrumbs.runtime.sessions.sessions import Sessions

MAX_TURNS: Final = 500
DEFAULT_TURNS: Final = 100
MAX_SECONDS: Final = 2.0
"""A call ends early after this time, with a cursor."""

_closed = with_config(extra="forbid")

routes = Routes("Contexts")

_EXAMPLE: Final = {
    "config": {
        "consumer_id": "default-chat-assistant",
        "update_triggers": [{"schema_name": "user.message.v1"}],
        "sources": [
            {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 3}},
        ],
    },
    "limit": 100,
}


@_closed
class CountPair(TypedDict):
    """A number with the old and with the changed config."""

    old: Count
    new: Count


@_closed
class SharePair(TypedDict):
    """A share from 0 to 1, with the old and with the changed config."""

    old: float
    new: float


@_closed
class SourceChangeView(TypedDict):
    """Number of items that changed, by the key of their source."""

    key: str
    added: Count
    removed: Count


@_closed
class ChangedItemView(TypedDict):
    """An item that only one of the two prompts contains."""

    source: str
    id: Id


@_closed
class ChangedTurnView(TypedDict):
    """A turn whose prompt the changed config would have changed."""

    session_id: str | None
    trigger_id: Id
    context_id: Id
    context_version: VersionNumber
    tokens: Annotated[list[Count], Field(description="With the old and with the changed config.")]
    added: list[ChangedItemView]
    removed: list[ChangedItemView]


@_closed
class CrossingView(TypedDict):
    """An item that the changed config would have taken from another session or user."""

    trigger_id: Id
    session_id: str | None
    item_id: Id
    source: str
    boundary: Literal["session", "user"]
    origin: Annotated[str, Field(description="The other session or user.")]


@_closed
class ContextTestView(TypedDict):
    """Result of a test, for the turns of this call."""

    turns: Annotated[Count, Field(description="Number of turns that were tested.")]
    changed: Annotated[Count, Field(description="Number of turns whose prompt would have been different.")]
    skipped: Annotated[dict[str, Count], Field(description="Turns that could not be tested, by reason.")]
    turns_with_gone_items: Annotated[
        Count, Field(description="Turns whose stored context has items that no longer exist.")
    ]
    sources: list[SourceChangeView]
    tokens: CountPair
    prompt_bytes: Annotated[CountPair, Field(description="Size of the prompts that have a previous one.")]
    repeated_bytes: Annotated[
        CountPair, Field(description="Bytes of these prompts that repeat the beginning of the previous one.")
    ]
    prefix_reuse: SharePair | None
    boundary_crossings: Count
    crossings: Annotated[list[CrossingView], Field(description="At most 100 of them.")]
    changed_turns: Annotated[list[ChangedTurnView], Field(description="At most 100 of them.")]
    total: Annotated[
        Count,
        Field(
            description="Number of stored contexts. It is at least the number of turns. Very many are not all counted."
        ),
    ]
    next_cursor: NotRequired[Annotated[str, Field(description="Missing on the last page.")]]


class TestContextRequest(BaseModel):
    """A changed config, and the turns to test it on."""

    model_config = ConfigDict(extra="forbid")

    config: ContextConfig | Annotated[list[ContextConfig], Field(min_length=1)] = Field(
        description="The content of a config file: one config, or a list of them."
    )
    consumer_id: str | None = Field(
        None, description="Consumer of the config to test. Required if there are several configs."
    )
    session_id: Annotated[str, Field(min_length=1, max_length=248)] | None = Field(
        None, description="Only turns of this session. Default: of all sessions that the token may see."
    )
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = Field(
        None, description="Only turns since this time."
    )
    sample: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = Field(
        None, description="About this many turns, spread evenly. Default: all."
    )
    limit: Annotated[int, Field(ge=1, le=MAX_TURNS, strict=True)] = Field(
        DEFAULT_TURNS, description="Maximum number of turns of this call."
    )
    cursor: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="`next_cursor` of the previous call with the same request."
    )


class _TestBody(TestContextRequest):
    """A `TestContextRequest` with an unchecked config. `choose_config` checks it and reports its errors."""

    config: Any


@routes.operation(
    id="testContextConfig",
    method="POST",
    path="/contexts/test",
    summary="Test a changed config on past turns",
    description=(
        "Assembles the contexts of past turns again, with the config of that time and with the changed one, from the "
        "versions of that time. Reports which prompts would have been different. No model is called and nothing is "
        "written. Breadcrumbs that the token may not see are treated as missing. A call ends after `limit` turns or "
        "two seconds. A config with which one turn takes more than ten seconds is refused."
    ),
    body=Body(TestContextRequest, _EXAMPLE),
    successes=(SuccessReply(200, "The result.", ContextTestView),),
    may_fail=(NOT_FOUND, INVALID_CURSOR),
)
async def run_context_test(call: HttpCall) -> Reply:
    body = parse_body(_TestBody, await call.json(), error="invalid test request")
    request = await _make_request(call, body)
    store = call.services.store
    old = OldConfigs(store, request.owner_id)
    tester = ContextTester(store, request, old.get)
    async with call.services.searches.hold(request.owner_id, call.principal):
        report, ended = await _run(tester, body.limit)
        total = await tester.count_turns(seconds=MAX_SECONDS)
    document = report.as_dict() | {"total": max(total, report.turns)}
    if not ended:
        document["next_cursor"] = str(report.position)
    return Reply.json(document)


async def _run(tester: ContextTester, limit: int) -> tuple[ContextTestReport, bool]:
    """Test turns until a limit. Return whether all were tested."""
    report = ContextTestReport()
    deadline = time.monotonic() + MAX_SECONDS
    with anyio.move_on_after(contexts.MAX_SECONDS_PER_TURN):
        async for result in tester.run():
            report.add(result)
            if report.turns + report.skipped.total() >= limit or time.monotonic() > deadline:
                return report, False
        return report, True
    if report.position is None:
        raise contexts.takes_too_long()
    return report, False


async def _make_request(call: HttpCall, body: _TestBody) -> ContextTestRequest:
    principal = call.principal
    session = body.session_id if body.session_id is not None else principal.session_id
    if session is not None:
        check_session_id(session)
        existing = await Sessions(call.services.store).belonging(principal.owner_id, session)
        if existing is None or not policy.may_see_session(principal, session, existing.user):
            raise NotFound(f"session {session!r} not found")
    return ContextTestRequest(
        principal.owner_id,
        choose_config(body.config, body.consumer_id),
        session,
        0 if body.since is None else parse_time(body.since, where="since"),
        body.sample,
        partial(policy.may_read, principal),
        partial(_may_see_session, call) if principal.is_narrowed else None,
        _parse_cursor(body.cursor),
        in_thread=True,
    )


async def _may_see_session(call: HttpCall, context: Breadcrumb) -> bool:
    session = context.session_id
    if session is None or not policy.may_see(call.principal, context):
        return False
    existing = await Sessions(call.services.store).belonging(call.principal.owner_id, session)
    return existing is not None and policy.may_see_session(call.principal, session, existing.user)


def _parse_cursor(text: str | None) -> Position | None:
    try:
        return None if text is None else Position.parse(text)
    except ValueError:
        raise InvalidCursor("this cursor is not valid: start again without one") from None
