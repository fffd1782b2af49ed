"""HTTP operation that replays an answer with the models of the server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, with_config
from typing_extensions import TypedDict

from breadcrumbs.agents.definition import AgentDefinition, definition_fields
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import MAX_COMPLAINTS, check_document
from breadcrumbs.context_builder.referenced import Reader
from breadcrumbs.proofs.replay import (
    MAX_TIMES,
    Changes,
    NotReplayable,
    Replayed,
    ReplayPrompt,
    prepare,
    replay_document,
    replay_once,
)
from breadcrumbs.proofs.replay_models import ReplayModels
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb.validation import to_complaints
from breadcrumbs.runtime.errors import Complaint, InvalidInput, NotFound, RateLimited, StartupError
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import ID, Body, Operation, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_REPLAYABLE, ClientDisconnected, problem
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id

MAX_SECONDS: Final = 300.0
"""Time limit of one request."""
_MAX_AT_ONCE: Final = 4
_ADVICE: Final = "Run the command where the models are configured: crumb replay"

_closed = with_config(extra="forbid")


@_closed
class OriginalToolCall(TypedDict):
    """A tool call of the original turn with a stored response."""

    step: Annotated[str, Field(description="Number of the model call and of the tool call in it.")]
    name: str
    arguments: str


@_closed
class ReplayedToolCall(OriginalToolCall):
    """A tool call of a replay."""

    result: Annotated[
        Literal["stored", "missing"],
        Field(
            description="`missing`: the original turn has no response for this call. The model got an error."
        ),
    ]


class _Figures(TypedDict):
    """Figures of an answer, summed over its model calls."""

    model: str
    calls: Annotated[Count, Field(description="Number of model calls.")]
    duration_ms: Count
    first_token_ms: NotRequired[Count]
    finish_reason: NotRequired[str]
    input_tokens: NotRequired[Count]
    output_tokens: NotRequired[Count]
    cached_tokens: NotRequired[Count]
    reasoning_tokens: NotRequired[Count]
    cost: NotRequired[
        Annotated[float, Field(description="Only with a price of the model in `models.prices`.")]
    ]


@_closed
class OriginalView(_Figures):
    """The original answer."""

    text: str
    tool_calls: NotRequired[list[OriginalToolCall]]


@_closed
class ReplayedView(_Figures):
    """The result of one replay."""

    text: NotRequired[str]
    same: NotRequired[Annotated[bool, Field(description="The text is that of the original answer.")]]
    same_request: NotRequired[
        Annotated[bool, Field(description="The first request is byte for byte that of the original answer.")]
    ]
    error: NotRequired[Annotated[str, Field(description="Reason why there is no answer.")]]
    tool_calls: NotRequired[list[ReplayedToolCall]]


@_closed
class ReplayView(TypedDict):
    """An answer and its replays."""

    answer_id: Id
    agent_id: str
    session_id: NotRequired[str]
    config: NotRequired[Annotated[str, Field(description="Hash of the context config that was used.")]]
    original: OriginalView
    replays: list[ReplayedView]
    notes: list[str]


class ReplayRequest(BaseModel):
    """Changes to the original turn. Without them, the same request is sent again."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=300)] | None = Field(
        None, description="One of the models of `GET /models`. Default: the model of the answer"
    )
    config: ContextConfig | Annotated[list[ContextConfig], Field(min_length=1)] | None = Field(
        None, description="The content of a config file: one config, or a list of them"
    )
    agent: dict[str, Any] | None = Field(None, description="An agent definition")
    times: Annotated[int, Field(ge=1, le=MAX_TIMES)] = Field(1, description="Number of replays")


class _Body(BaseModel):
    """A `ReplayRequest` with an unchecked config, whose errors are reported with their places."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    config: Any = None
    agent: dict[str, Any] | None = None
    times: Annotated[int, Field(ge=1, le=MAX_TIMES, strict=True)] = 1


class ReplayRoutes:
    """The operation on the models of one server. Instead of models, there can be the reason why it has none."""

    def __init__(self, models: ReplayModels | str) -> None:
        self._models = models
        self._running = 0

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="replayAnswer",
                method="POST",
                path="/breadcrumbs/{id}/replay",
                group="Contexts",
                summary="Replay an answer",
                description=(
                    "Calls a model of this server again with the prompt of an answer, optionally with another model, "
                    "context config or agent definition. Tool calls get the responses that the original turn stored. "
                    "No tool runs, and nothing is written. Replies with 404 if the breadcrumb is not an answer with a "
                    "receipt, and with 409 if it cannot be replayed. A failure of the model is in `error` of the "
                    f"replay, and no further ones follow. A request takes at most {MAX_SECONDS:g} s."
                ),
                handle=self.replay,
                parameters=(ID,),
                body=Body(ReplayRequest, {"times": 1}, required=False),
                successes=(SuccessReply(200, "Both answers.", ReplayView),),
                may_fail=(NOT_REPLAYABLE,),
            ),
        )

    async def replay(self, call: HttpCall) -> Reply:
        wanted = parse_body(_Body, await call.optional_json(), error="invalid replay request")
        changes = Changes(_parse_configs(wanted.config), _parse_agent(wanted.agent))
        principal, id = call.principal, call.path_id()
        store = call.services.store
        answer = await store.get(principal.owner_id, id, count_read=False)
        policy.check_readable(principal, answer)
        models = self._models
        if isinstance(models, str):
            return problem(NOT_REPLAYABLE, f"{models}. {_ADVICE}")
        reader = Reader(partial(policy.may_read, principal), conceals_gone=principal.is_narrowed)
        try:
            prompt = await prepare(store, answer, changes, models.tool_specs, reader)
            model = models.choose(prompt, wanted.model, changes)
        except NotReplayable as error:
            return _refused(error)
        except StartupError as error:
            return problem(NOT_REPLAYABLE, f"{error}. {_ADVICE}")
        return Reply.json(
            replay_document(prompt, await self._run(call, prompt, model, wanted.times), models.prices)
        )

    async def _run(self, call: HttpCall, prompt: ReplayPrompt, model: Any, times: int) -> list[Replayed]:
        if self._running >= _MAX_AT_ONCE:
            raise RateLimited(
                f"this server makes at most {_MAX_AT_ONCE} replays at once: try again later",
                5,
                limit=_MAX_AT_ONCE,
            )
        self._running += 1
        try:
            return await _replays(call, prompt, model, times)
        finally:
            self._running -= 1


async def _replays(call: HttpCall, prompt: ReplayPrompt, model: Any, times: int) -> list[Replayed]:
    """Replay until the first failure. Stop if the client disconnects."""
    done: list[Replayed] = []
    disconnected = False
    end = anyio.current_time() + min(MAX_SECONDS, call.principal.seconds_left)

    async def cancel_on_disconnect() -> None:
        nonlocal disconnected
        await call.until_disconnected()
        disconnected = True
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_on_disconnect)
        while len(done) < times and not (done and done[-1].error):
            seconds = max(0.0, end - anyio.current_time())
            done.append(await replay_once(prompt, model, seconds=seconds))
        tasks.cancel_scope.cancel()
    if disconnected:
        raise ClientDisconnected
    return done


def _refused(error: NotReplayable) -> Reply:
    if any(missing.kind == "receipt" for missing in error.missing):
        raise NotFound(str(error))
    missing = [one.as_dict() for one in error.missing]
    return problem(NOT_REPLAYABLE, str(error), members={"missing": missing} if missing else None)


def _parse_configs(document: Any) -> tuple[ContextConfig, ...]:
    if document is None:
        return ()
    configs, faults = check_document(document)
    if faults:
        complaints = [
            Complaint(f"config.{fault.where}".rstrip("."), fault.message) for fault in faults[:MAX_COMPLAINTS]
        ]
        raise InvalidInput("the config is invalid", complaints=complaints)
    return configs


def _parse_agent(document: dict[str, Any] | None) -> AgentDefinition | None:
    if document is None:
        return None
    if isinstance(context := document.get("context"), dict):  # a whole breadcrumb
        document = context
    try:
        return AgentDefinition.model_validate(definition_fields(document))
    except ValidationError as error:
        complaints = [
            Complaint(f"agent.{found.where}".rstrip("."), found.message)
            for found in to_complaints(error, AgentDefinition)
        ]
        raise InvalidInput("the agent definition is invalid", complaints=complaints) from None
