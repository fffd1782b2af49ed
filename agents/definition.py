"""The definition of an agent, in `agent.def.v1` breadcrumbs and in the files of `agents/definitions/`.

The format is that of RCRT, so a definition written for RCRT runs here. Unknown fields are kept and ignored. Triggers
and filters are strict all the same: a misspelt one must not match more than was meant.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.retrieval.sources import Fetch, Source
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, AGENT_RESPONSE

WhenBusy = Literal["queue", "interrupt", "reject", "merge"]
AppName = Annotated[str, Field(pattern=r"^[\w.-]{1,200}$")]

_OF_A_MODEL = ("system_prompt", "model", "temperature", "max_tokens", "tools")

CONSUMER = "consumer:"


class AgentSelector(Selector):
    """A selector of an agent definition. It starts a turn, or adds to the prompt."""

    role: Literal["trigger", "context"] = "trigger"
    key: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    fetch: Fetch | None = None

    @property
    def consumer_id(self) -> str | None:
        """The consumer whose contexts this waits for."""
        if self.schema_name != AGENT_CONTEXT:
            return None
        tags = (*(self.all_tags or ()), *(self.any_tags or ()))
        return next((tag[len(CONSUMER) :] for tag in tags if tag.startswith(CONSUMER)), None)


class AgentSelectors(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    selectors: Annotated[tuple[AgentSelector, ...], Field(max_length=64)] = ()


class Emits(BaseModel):
    """What an answer becomes where the model does not say."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_name: SchemaName = AGENT_RESPONSE
    tags: Annotated[tuple[Tag, ...], Field(max_length=32)] = ("agent:response", "chat:output")


class AdkTarget(BaseModel):
    """The server and app of an agent of the kind `adk`. The settings hold the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: Annotated[str, Field(min_length=1, max_length=300)] | None = Field(
        None, description="A server of the settings by its name; none: the only one"
    )
    app: AppName | None = Field(None, description="An app of that server; none: the one of the settings")


class AgentDefinition(BaseModel):
    """Who answers, to what, with which model and which tools."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    agent_id: Annotated[Tag, Field(max_length=200)]
    description: str | None = None
    kind: Literal["model", "adk"] = Field(
        "model", description="Who thinks: a model that is called from here, or an app on an ADK server"
    )
    adk: AdkTarget | None = None
    system_prompt: Annotated[str, Field(max_length=200_000)] = ""
    model: Annotated[str, Field(max_length=300)] | None = Field(
        None, description="offline, openai:…, openrouter:…, ollama:…; none: the one of the settings"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    tools: Annotated[tuple[str, ...], Field(max_length=128)] = ()
    subscriptions: AgentSelectors = AgentSelectors()
    emits: Emits = Emits()
    when_busy: WhenBusy = "queue"
    max_steps: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Rounds of model and tools in a turn"
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    hop_limit: Annotated[int, Field(ge=1, le=64)] = Field(
        5, description="How often agents may trigger each other before they are stopped"
    )

    @model_validator(mode="after")
    def _can_start(self) -> AgentDefinition:
        if not self.triggers:
            raise ValueError("subscriptions.selectors needs at least one with role 'trigger'")
        for trigger in self.triggers:
            if trigger.is_empty:
                raise ValueError("a trigger that matches everything would answer its own answers: narrow it")
        return self

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> AgentDefinition:
        if self.kind == "adk":
            there = [name for name in _OF_A_MODEL if getattr(self, name) not in (None, "", ())]
            if there:
                raise ValueError(f"an ADK app has its own {', '.join(there)}: leave them out")
        elif self.adk is not None:
            raise ValueError('adk is for agents with "kind": "adk"')
        return self

    @property
    def triggers(self) -> tuple[AgentSelector, ...]:
        return tuple(s for s in self.subscriptions.selectors if s.role == "trigger")

    @property
    def contexts(self) -> tuple[AgentSelector, ...]:
        return tuple(s for s in self.subscriptions.selectors if s.role == "context")

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where a prompt's parts come from when the trigger is not a ready-made context."""
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
        """Whether it would be shown this message, when it answers a later one without a ready-made context."""
        if self.kind == "adk":
            return True  # it keeps the conversation in mind
        return any(
            (selector.fetch or Fetch()).method == "recent" and selector.matches(message)
            for selector in self.contexts
        )

    @property
    def consumers(self) -> set[str]:
        return {trigger.consumer_id for trigger in self.triggers if trigger.consumer_id is not None}


def definition_fields(context: dict[str, Any]) -> dict[str, Any]:
    """RCRT spells some things differently; bring them into one form."""
    fields = {key: value for key, value in context.items() if value is not None}
    if "model" not in fields:
        named = fields.get("llm_config", {})
        if isinstance(named, dict) and isinstance(named.get("model"), str):
            fields["model"] = named["model"]
        elif isinstance(fields.get("llm_config_id"), str):
            fields["model"] = fields["llm_config_id"]  # an alias in the settings says which model that is
    return fields
