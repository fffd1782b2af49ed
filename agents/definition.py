"""Agent definitions, from `agent.def.v1` breadcrumbs and from the files in `agents/definitions/`.

The format is that of RCRT, so a definition written for RCRT runs here. Unknown fields of a definition are kept, and
`definition_checks.py` warns about them. Unknown fields of `subscriptions`, of a selector and of `emits` are errors:
without a misspelt one, the agent would match or show more than intended.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from breadcrumbs.agents.models.output_schema import OutputSchema
from breadcrumbs.agents.tools.external import ExternalToolDefinition
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.retrieval.sources import COUNTABLE, Fetch, Source
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, AGENT_RESPONSE

WhenBusy = Literal["queue", "interrupt", "reject", "merge"]
"""Reaction to a new trigger in a session while the agent is busy there.

`queue` answers later, in order. `interrupt` cancels the earlier turns. `reject` writes an error. `merge` answers all
waiting messages with one answer.
"""
# The pattern has no `{1,200}`: pydantic would need 170 ms at each start to compile it.
AppName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.-]+$")]

ModelName = Annotated[str, Field(max_length=300)]


def _check_list(models: tuple[str, ...]) -> tuple[str, ...]:
    for number, name in enumerate(models):
        if name.strip() in (earlier.strip() for earlier in models[:number]):
            raise PydanticCustomError("repeated", f"[{number}] repeats the model {name!r}: remove it")
        if not name.strip():
            raise PydanticCustomError("empty", f"[{number}] is empty: name a model")
    return models


FallbackList = Annotated[
    tuple[ModelName, ...], Field(min_length=1, max_length=8), AfterValidator(_check_list)
]
"""Models in the order in which they are called."""

HookNames = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=64)], ...], Field(max_length=16)]

_MODEL_FIELDS = (
    *("system_prompt", "model", "temperature", "max_tokens", "tools", "external_tools"),
    *("parallel_tool_calls", "output_schema"),
)

ERROR_PATH = "at"
"""Key in the context of a pydantic error: the path of the field, if a validator of the whole definition failed."""

CONSUMER = "consumer:"
"""Prefix of the tag that names the consumer of a context."""


class AgentSelector(Selector):
    """A selector of an agent definition. It starts a turn, or adds to the prompt."""

    role: Literal["trigger", "context"] = Field(
        "trigger",
        description="`trigger`: a matching breadcrumb starts a turn. `context`: it is added to the prompt",
    )
    key: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Name of the part of the prompt, for the role `context`"
    )
    fetch: Fetch | None = Field(
        None, description="How many breadcrumbs to add, and from which sessions. For the role `context`"
    )

    comment: str | None = Field(None, description="A note for people. It has no effect")

    @model_validator(mode="after")
    def _check_keep(self) -> AgentSelector:
        if self.fetch is None or self.fetch.keep is None:
            return self
        if self.schema_name is None or self.any_tags or self.all_tags or self.fetch.scope != "current":
            raise ValueError(f"fetch.keep needs {COUNTABLE}, because the breadcrumbs are counted")
        return self

    @property
    def consumer_id(self) -> str | None:
        """The consumer whose contexts this selector matches, or None."""
        if self.schema_name != AGENT_CONTEXT:
            return None
        tags = (*(self.all_tags or ()), *(self.any_tags or ()))
        return next((tag[len(CONSUMER) :] for tag in tags if tag.startswith(CONSUMER)), None)


class AgentSelectors(BaseModel):
    """The `subscriptions` of an agent definition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    selectors: Annotated[tuple[AgentSelector, ...], Field(max_length=64)] = Field(
        (), description="At least one selector has the role `trigger`"
    )


class Emits(BaseModel):
    """Schema and tags of an answer, unless the model chooses its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_name: SchemaName = Field(AGENT_RESPONSE, description="Schema of the answer")
    tags: Annotated[tuple[Tag, ...], Field(max_length=32)] = Field(
        ("agent:response", "chat:output"),
        description="Tags of the answer. The inherited tags of the trigger are added",
    )


class AgentHooks(BaseModel):
    """The hooks of an agent, in the order in which they run.

    An unknown stage is an error, because its checks would be skipped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    before_model: HookNames = Field((), description="Hooks that get the prompt before each model call")
    before_answer: HookNames = Field(
        (), description="Hooks that get the answer before it is shown and stored"
    )


class AdkTarget(BaseModel):
    """The server and app of an agent of the kind `adk`. The settings have the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: Annotated[str, Field(min_length=1, max_length=300)] | None = Field(
        None, description="Name of a server in the settings. Default: the only server"
    )
    app: AppName | None = Field(
        None, description="An app of that server. Default: the server's app in the settings"
    )


class AgentDefinition(BaseModel):
    """An agent: its triggers, its model or ADK app, its prompt and its tools."""

    model_config = ConfigDict(extra="allow", frozen=True)

    agent_id: Annotated[Tag, Field(max_length=200)] = Field(
        description="Name of the agent, unique in a store"
    )
    description: str | None = Field(None, description="A sentence for people. Models do not see it")
    kind: Literal["model", "adk"] = Field(
        "model", description="`model`: the agent calls a model. `adk`: an app on an ADK server answers"
    )
    adk: AdkTarget | None = Field(None, description="Server and app, only for the kind `adk`")
    system_prompt: Annotated[str, Field(max_length=200_000)] = Field(
        "", description="The system message of each model call"
    )
    model: ModelName | FallbackList | None = Field(
        None,
        description="offline, openai:…, openrouter:…, ollama:…. Default: the model of the settings. A list of at most "
        "8 models is a fallback list: if a model fails, the next one is called",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Sampling temperature. Default: that of the model's server"
    )
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Maximum length of a reply of the model. Default: that of the model's server"
    )
    tools: Annotated[tuple[str, ...], Field(max_length=128)] = Field(
        (), description="Names of the tools that the agent may use"
    )
    external_tools: Annotated[tuple[ExternalToolDefinition, ...], Field(max_length=64)] = Field(
        (), description="Tools that another process runs, with the schemas of their parameters"
    )
    parallel_tool_calls: bool | None = Field(
        None,
        description="Whether a reply may call several tools at once. Default: that of the model's server. `false` also "
        "runs the calls of a reply one after the other",
    )
    output_schema: OutputSchema | None = Field(
        None, description="JSON Schema that the answer must match, or a pydantic model in Python"
    )
    hooks: AgentHooks | None = Field(
        None, description="Python hooks that check or change prompts and answers"
    )
    subscriptions: AgentSelectors = Field(
        AgentSelectors(), description="The breadcrumbs that the agent reacts to"
    )
    emits: Emits = Field(Emits(), description="Schema and tags of the answer")
    answers_users: bool | None = Field(
        None,
        description="Whether what the agent writes is the answer to a user's message. `false`: it works beside the "
        "agent that answers, and no rule for answers applies to it. Default: true if `emits.schema_name` is "
        "`agent.response.v1`",
    )
    when_busy: WhenBusy = Field(
        "queue",
        description="Reaction to a new trigger while the agent is busy in the session. `queue`: answer later, in "
        "order. `interrupt`: cancel the earlier turns. `reject`: write an error. `merge`: answer all waiting "
        "messages at once",
    )
    max_steps: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Maximum number of model calls in a turn"
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        300.0, description="Time limit of an attempt, in seconds"
    )
    hop_limit: Annotated[int, Field(ge=1, le=64)] = Field(
        5, description="Maximum number of times in a row that agents can trigger each other"
    )

    @model_validator(mode="after")
    def _check_triggers(self) -> AgentDefinition:
        if not self.triggers:
            message = "at least one selector with the role 'trigger' is needed"
            raise _error(message, "subscriptions", "selectors")
        for number, selector in enumerate(self.subscriptions.selectors):
            if selector.role == "trigger" and selector.is_empty:
                message = "a trigger without conditions would match the agent's own answers: add a condition"
                raise _error(message, "subscriptions", "selectors", number)
        return self

    @model_validator(mode="after")
    def _check_external_tools(self) -> AgentDefinition:
        names = [*self.tools, *(tool.name for tool in self.external_tools)]
        if self.external_tools and len(names) != len(set(names)):
            raise ValueError("a name occurs twice in tools and external_tools: change or remove one")
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> AgentDefinition:
        if self.kind == "adk":
            unused = [name for name in _MODEL_FIELDS if getattr(self, name) not in (None, "", ())]
            if unused:
                raise _error(f"an ADK app has its own {', '.join(unused)}: remove them", unused[0])
            if self.hooks is not None and self.hooks.before_model:
                raise _error("an ADK app calls its model itself: remove hooks.before_model", "hooks")
        elif self.adk is not None:
            raise _error('adk needs "kind": "adk"', "adk")
        return self

    @property
    def is_answering(self) -> bool:
        """Whether what the agent writes about a user's message is the answer to it."""
        if self.answers_users is not None:
            return self.answers_users
        return self.emits.schema_name == AGENT_RESPONSE

    @cached_property
    def triggers(self) -> tuple[AgentSelector, ...]:
        """The selectors that start a turn. Every event is compared with them."""
        return tuple(s for s in self.subscriptions.selectors if s.role == "trigger")

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the definition names, in the order in which they are called."""
        if self.model is None:
            return ()
        return (self.model,) if isinstance(self.model, str) else self.model

    @property
    def contexts(self) -> tuple[AgentSelector, ...]:
        """The selectors that add to the prompt."""
        return tuple(s for s in self.subscriptions.selectors if s.role == "context")

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the prompt, for triggers that are not contexts."""
        return tuple(
            Source(
                key=selector.key or f"source{number}",
                schema_name=selector.schema_name,
                any_tags=selector.any_tags or (),
                all_tags=selector.all_tags or (),
                fetch=selector.fetch or Fetch(),
            )
            for number, selector in enumerate(self.contexts)
        )

    def recalls(self, message: Breadcrumb) -> bool:
        """Return whether the prompt for a later message includes this one.

        Only for agents whose triggers are not contexts. A context has its own sources.
        """
        if self.kind == "adk":
            return True  # the session on the ADK server contains the whole conversation
        return any(
            (selector.fetch or Fetch()).method == "recent" and selector.matches(message)
            for selector in self.contexts
        )

    @property
    def consumers(self) -> set[str]:
        """The consumers whose contexts trigger the agent."""
        return {trigger.consumer_id for trigger in self.triggers if trigger.consumer_id is not None}


def _error(message: str, *at: str | int) -> PydanticCustomError:
    """Return an error of a validator. `at` is the path of the field."""
    return PydanticCustomError("definition", "{message}", {"message": message, ERROR_PATH: at})


def definition_fields(context: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition. RCRT's fields for the model are converted to `model`."""
    fields = {key: value for key, value in context.items() if value is not None}
    if "model" not in fields:
        config = fields.get("llm_config", {})
        if isinstance(config, dict) and isinstance(config.get("model"), str):
            fields["model"] = config["model"]
        elif isinstance(fields.get("llm_config_id"), str):
            fields["model"] = fields["llm_config_id"]  # an alias in the settings maps it to a model
    return fields
