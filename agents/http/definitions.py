"""HTTP operations on agent definitions: list the agents in force, check a definition, try one.

Definitions are breadcrumbs, so they are written like all others (`POST /breadcrumbs`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, Protocol, TypeAlias
from uuid import UUID

import anyio
from pydantic import BaseModel, ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from breadcrumbs.agents.addressees import answers_users
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import (
    NOTHING_KNOWN,
    CheckedDefinition,
    KnownNames,
    check_definition,
    check_text,
    is_breadcrumb,
)
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.prices import Price
from breadcrumbs.agents.tools import Toolbox
from breadcrumbs.agents.trial import Trial, TrialInputs, run_trial
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.errors import InvalidInput, RateLimited, StartupError, StoreError
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Body, Operation, SuccessReply
from breadcrumbs.runtime.http.api.problems import ClientDisconnected
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time
from breadcrumbs.runtime.schema_names import AGENT_ERROR
from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.store import Store

MAX_SECONDS: Final = 120.0
"""Time limit of one trial."""
_MAX_AT_ONCE: Final = 4
_MAX_TEXT: Final = 1 << 20
_MAX_MESSAGE: Final = 100_000
_RECENT_ERRORS: Final = 100
"""Number of errors that are searched for the last one of each agent."""
_MAX_ERROR: Final = 300

_closed = with_config(extra="forbid")

Source: TypeAlias = Literal["file", "breadcrumb", "program"]


@_closed
class ProblemView(TypedDict):
    """One error or warning about a definition."""

    where: Annotated[str, Field(description="Path in the definition. Empty: the whole definition.")]
    pointer: Annotated[str, Field(description="The same path as a JSON pointer (RFC 6901).")]
    message: str
    line: NotRequired[Annotated[int, Field(ge=1, description="Line in the text.")]]
    column: NotRequired[Annotated[int, Field(ge=1)]]


@_closed
class CheckedView(TypedDict):
    """Result of a check."""

    ok: bool
    agent_id: NotRequired[str]
    answers_users: NotRequired[
        Annotated[bool, Field(description="Whether it answers messages without additional tags.")]
    ]
    errors: Annotated[list[ProblemView], Field(description="The definition cannot be used.")]
    warnings: Annotated[
        list[ProblemView],
        Field(description="Fields without effect, unknown tools and models, cycles of triggers."),
    ]


@_closed
class TriedToolCall(TypedDict):
    """A tool call of a trial."""

    name: str
    arguments: str
    ran: Annotated[bool, Field(description="Whether the tool was run. Only built-in tools are.")]
    output: NotRequired[Any]
    error: NotRequired[str]


@_closed
class TrialView(TypedDict):
    """Result of a trial."""

    model: str
    answer: NotRequired[str]
    error: NotRequired[Annotated[str, Field(description="Reason why there is no answer.")]]
    calls: Annotated[Count, Field(description="Number of model calls.")]
    duration_ms: Count
    input_tokens: NotRequired[Count]
    output_tokens: NotRequired[Count]
    cached_tokens: NotRequired[Count]
    reasoning_tokens: NotRequired[Count]
    cost: NotRequired[
        Annotated[float, Field(description="Only with a price of the model in `models.prices`.")]
    ]
    tool_calls: list[TriedToolCall]
    warnings: list[ProblemView]


@_closed
class ErrorView(TypedDict):
    """The last error of an agent."""

    id: Id
    error: str
    created_at: Time
    session_id: NotRequired[str]


@_closed
class AgentView(TypedDict):
    """An agent in force."""

    agent_id: str
    source: Annotated[
        Source,
        Field(
            description="`file`: the installation. `breadcrumb`: an `agent.def.v1`. `program`: a user's program."
        ),
    ]
    description: NotRequired[str]
    model: NotRequired[Annotated[str, Field(description="The model that its definition names.")]]
    tools: list[str]
    answers_users: Annotated[bool, Field(description="Whether it answers messages without additional tags.")]
    fallback: Annotated[bool, Field(description="Leaves messages to other agents that match.")]
    running: Annotated[bool, Field(description="Whether a process that runs it is alive.")]
    breadcrumb_id: NotRequired[Id]
    definition: NotRequired[
        Annotated[
            dict[str, Any], Field(description="Only for agents of breadcrumbs that the token may read.")
        ]
    ]
    problem: NotRequired[
        Annotated[str, Field(description="Why the newest version of its breadcrumb is not used.")]
    ]
    last_error: NotRequired[ErrorView]


@_closed
class UnusableView(TypedDict):
    """An `agent.def.v1` of which no version can be used."""

    breadcrumb_id: Id
    title: str
    problem: str


@_closed
class AgentsView(TypedDict):
    """The agents in force for this owner."""

    agents: list[AgentView]
    unusable: list[UnusableView]
    answering: Annotated[Answering, Field(description="The rule for messages that several agents match.")]


class _Definition(BaseModel):
    """A definition as text or as an object."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=_MAX_TEXT)] | None = Field(
        None, description="The text of a definition. Errors then have a line and a column"
    )
    definition: dict[str, Any] | None = Field(None, description="The definition as an object")

    @model_validator(mode="after")
    def _check_one_form(self) -> _Definition:
        if (self.text is None) == (self.definition is None):
            raise ValueError("send either text or definition")
        return self

    def check(self, known: KnownNames) -> CheckedDefinition:
        if self.text is not None:
            return check_text(self.text.encode(), known)
        given = self.definition or {}
        if not is_breadcrumb(given):
            return check_definition(given, known)
        checked = check_definition(given["context"], known)
        return CheckedDefinition(
            checked.definition,
            tuple(error.below("context") for error in checked.errors),
            tuple(warning.below("context") for warning in checked.warnings),
        )


class CheckRequest(_Definition):
    """The definition to check."""


class TrialRequest(_Definition):
    """The definition to try, and the message that it answers."""

    message: Annotated[str, Field(min_length=1, max_length=_MAX_MESSAGE)]


# Services


@dataclass(frozen=True, slots=True)
class AgentInForce:
    """An agent in force, from any source."""

    agent_id: str
    source: Source
    tools: tuple[str, ...]
    answers_users: bool
    fallback: bool
    running: bool
    description: str | None = None
    model: str | None = None
    crumb: Breadcrumb | None = None
    """The breadcrumb of its definition."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AgentOverview:
    """All agents in force for an owner, and the definitions that cannot be used."""

    agents: Sequence[AgentInForce]
    unusable: Sequence[tuple[Breadcrumb, str]]
    answering: Answering


class TrialModels(Protocol):
    """The models and tools of a process."""

    @property
    def prices(self) -> Mapping[str, Price]: ...

    def resolve(self, spec: str | None) -> Model:
        """Return a model that any client may name. Raise `InvalidInput` or `StartupError`."""
        ...

    def toolbox(self) -> Toolbox: ...


LoadOverview: TypeAlias = Callable[[UUID], Awaitable[AgentOverview]]
LoadKnownNames: TypeAlias = Callable[[UUID], Awaitable[KnownNames]]


@dataclass(frozen=True, slots=True)
class DefinitionServices:
    """Functions that the composition provides."""

    load_overview: LoadOverview
    load_known: LoadKnownNames
    models: TrialModels | str
    """The models for trials, or the reason why this process has none."""


# Operations


class DefinitionRoutes:
    """Operations on the agent definitions of one server."""

    def __init__(self, services: DefinitionServices) -> None:
        self._services = services
        self._running = 0

    async def list_agents(self, call: HttpCall) -> Reply:
        principal = call.principal
        overview = await self._services.load_overview(principal.owner_id)
        errors = await _last_errors(call.services.store, principal)
        document: AgentsView = {
            "agents": [_agent_view(agent, principal, errors) for agent in overview.agents],
            "unusable": [
                {"breadcrumb_id": str(crumb.id), "title": crumb.title, "problem": problem}
                for crumb, problem in overview.unusable
                if policy.may_read(principal, crumb)
            ],
            "answering": overview.answering,
        }
        return Reply.json(document)

    async def check(self, call: HttpCall) -> Reply:
        wanted = parse_body(CheckRequest, await call.json())
        checked = wanted.check(await self._known_names(call))
        return Reply.json(_checked_view(checked))

    async def try_definition(self, call: HttpCall) -> Reply:
        wanted = parse_body(TrialRequest, await call.json())
        checked = wanted.check(await self._known_names(call))
        definition = checked.definition
        if definition is None:
            complaints = [error.as_complaint() for error in checked.errors]
            raise InvalidInput(f"the definition cannot be used: {checked.reason}", complaints=complaints)
        trial = await self._run(call, self._inputs(definition, wanted.message, call.principal))
        models = self._services.models
        prices = {} if isinstance(models, str) else models.prices
        warnings = [warning.as_dict() for warning in checked.warnings]
        return Reply.json(trial.as_dict(prices) | {"warnings": warnings})

    def _inputs(self, definition: AgentDefinition, message: str, principal: Principal) -> TrialInputs:
        models = self._services.models
        if isinstance(models, str):
            raise InvalidInput(f"{models}: use crumb agents try where the models are configured")
        if definition.kind == "adk":
            raise InvalidInput("an agent on an ADK server cannot be tried here", where="kind")
        try:
            model = models.resolve(next(iter(definition.models), None))  # the first of a fallback list
        except StartupError as error:
            raise InvalidInput(str(error), where="model") from None
        return TrialInputs(
            definition, message, model, models.toolbox().allowed(definition.tools), principal.owner_id
        )

    async def _run(self, call: HttpCall, inputs: TrialInputs) -> Trial:
        if self._running >= _MAX_AT_ONCE:
            raise RateLimited(
                f"this server makes at most {_MAX_AT_ONCE} trials at once: try again later",
                5,
                limit=_MAX_AT_ONCE,
            )
        self._running += 1
        try:
            return await _until_disconnected(call, inputs)
        finally:
            self._running -= 1

    async def _known_names(self, call: HttpCall) -> KnownNames:
        """Return the names in the store. A narrowed token must not learn which names other sessions use."""
        if call.principal.is_narrowed:
            return NOTHING_KNOWN
        try:
            return await self._services.load_known(call.principal.owner_id)
        except StoreError:
            return NOTHING_KNOWN  # the definition can still be checked

    @property
    def operations(self) -> tuple[Operation, ...]:
        example = {
            "definition": {
                "agent_id": "poet",
                "system_prompt": "Answer in verse.",
                "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]},
            }
        }
        return (
            Operation(
                id="listAgentsInForce",
                method="GET",
                path="/agents/in-force",
                group="Agents",
                summary="List the agents in force",
                description=(
                    "All agents of this owner: those of the installation, of `agent.def.v1` breadcrumbs and of user "
                    "programs, with their source, model, tools and last error. Definitions that cannot be used are "
                    "listed in `unusable`."
                ),
                handle=self.list_agents,
                successes=(SuccessReply(200, "The agents.", AgentsView),),
            ),
            Operation(
                id="checkAgentDefinition",
                method="POST",
                path="/agents/check",
                group="Agents",
                summary="Check an agent definition",
                description=(
                    "Returns all errors and warnings with their positions. Warnings are about unknown fields, tools, "
                    "models and schemas, and about agents that trigger each other. Nothing is written."
                ),
                handle=self.check,
                body=Body(CheckRequest, example),
                successes=(SuccessReply(200, "The result of the check.", CheckedView),),
            ),
            Operation(
                id="agentDefinitionSchema",
                method="GET",
                path="/agents/definition/schema",
                group="Agents",
                summary="Get the JSON Schema of an agent definition",
                description="Editors use it for completion and validation.",
                handle=definition_schema,
                uses_store="no",
                successes=(SuccessReply(200, "The schema.", dict[str, Any]),),
            ),
            Operation(
                id="tryAgentDefinition",
                method="POST",
                path="/agents/try",
                group="Agents",
                summary="Try an agent definition",
                description=(
                    "Calls the model of a definition with a message and returns the answer, the tool calls and the "
                    "tokens. There is no session, and nothing is stored. Only built-in tools run. It takes at most "
                    f"{MAX_SECONDS:g} s. It costs money, so it requires the role curator."
                ),
                handle=self.try_definition,
                body=Body(TrialRequest, {**example, "message": "Hello!"}),
                successes=(SuccessReply(200, "The answer, or the reason why there is none.", TrialView),),
            ),
        )


async def definition_schema(call: HttpCall) -> Reply:
    return Reply.json(AgentDefinition.model_json_schema())


def _checked_view(checked: CheckedDefinition) -> dict[str, Any]:
    definition = checked.definition
    document: dict[str, Any] = {"ok": definition is not None}
    if definition is not None:
        document |= {"agent_id": definition.agent_id, "answers_users": answers_users(definition)}
    return document | {
        "errors": [error.as_dict() for error in checked.errors],
        "warnings": [warning.as_dict() for warning in checked.warnings],
    }


async def _until_disconnected(call: HttpCall, inputs: TrialInputs) -> Trial:
    """Run a trial. Stop if the client disconnects."""
    found: list[Trial] = []

    async def cancel_on_disconnect() -> None:
        await call.until_disconnected()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_on_disconnect)
        found.append(await run_trial(inputs, seconds=min(MAX_SECONDS, call.principal.seconds_left)))
        tasks.cancel_scope.cancel()
    if not found:
        raise ClientDisconnected
    return found[0]


async def _last_errors(store: Store, principal: Principal) -> dict[str, Breadcrumb]:
    """Return the last error of each agent, among the newest errors that the principal may see."""
    query = Query(schema_name=AGENT_ERROR, limit=_RECENT_ERRORS, max_bytes=1 << 20)
    page = await store.list(principal.owner_id, policy.restrict_query(principal, query))
    found: dict[str, Breadcrumb] = {}
    for crumb in page.items:
        name = crumb.context.get("agent_id")
        if isinstance(name, str) and policy.may_read(principal, crumb):
            found.setdefault(name, crumb)
    return found


def _agent_view(agent: AgentInForce, principal: Principal, errors: Mapping[str, Breadcrumb]) -> AgentView:
    view: AgentView = {
        "agent_id": agent.agent_id,
        "source": agent.source,
        "tools": list(agent.tools),
        "answers_users": agent.answers_users,
        "fallback": agent.fallback,
        "running": agent.running,
    }
    if agent.description:
        view["description"] = agent.description
    if agent.model is not None:
        view["model"] = agent.model
    crumb = agent.crumb
    if crumb is not None and policy.may_read(principal, crumb):
        view["breadcrumb_id"] = str(crumb.id)
        view["definition"] = crumb.context
        if agent.problem:
            view["problem"] = agent.problem
    if (error := errors.get(agent.agent_id)) is not None:
        view["last_error"] = _error_view(error)
    return view


def _error_view(crumb: Breadcrumb) -> ErrorView:
    view: ErrorView = {
        "id": str(crumb.id),
        "error": shorten_line(str(crumb.context.get("error", "")))[:_MAX_ERROR],
        "created_at": crumb.created_at,
    }
    if crumb.session_id is not None:
        view["session_id"] = crumb.session_id
    return view
