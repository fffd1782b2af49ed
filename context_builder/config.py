"""The context builder's config: what people edit while it runs.

One config describes one consumer (an agent): which events make a new context, where its parts come from,
and how much of it fits. The same shape is used in `config/context-builder-config.json` (one config, or a
list of them) and in `context.config.v1` breadcrumbs. Unknown fields are refused: a misspelt filter must not
silently show the model more than was meant.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.breadcrumb import SchemaName, Tag
from breadcrumbs.runtime.edge import canonical
from breadcrumbs.runtime.selectors import Selector
from breadcrumbs.runtime.sources import Source, Tags


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exclude(_Part):
    """What never enters a context, whatever the sources find."""

    schema_names: Annotated[tuple[SchemaName, ...], Field(max_length=256)] = ()
    tags: Tags = ()


class Output(_Part):
    """The breadcrumb that a context becomes."""

    schema_name: SchemaName = "agent.context.v1"
    tags: Tags = ("agent:context",)
    ttl_seconds: Annotated[int, Field(ge=1, le=3_153_600_000)] | None = 3600


class Formatting(_Part):
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 4000


class ContextConfig(_Part):
    """What one consumer's contexts are made of."""

    consumer_id: Annotated[Tag, Field(max_length=200)]
    update_triggers: Annotated[tuple[Selector, ...], Field(min_length=1, max_length=64)]
    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=64)]
    exclude: Exclude = Exclude()
    output: Output = Output()
    formatting: Formatting = Formatting()

    @model_validator(mode="after")
    def _can_work(self) -> ContextConfig:
        for number, trigger in enumerate(self.update_triggers):
            if trigger.is_empty:
                raise ValueError(
                    f"update_triggers[{number}] matches everything: name a schema_name or tags to react to"
                )
            if trigger.matches_meta(self.output.schema_name, [*self.output.tags, self.consumer_tag], None):
                raise ValueError(
                    f"update_triggers[{number}] matches the contexts this config makes: it would trigger itself"
                )
        return self

    @property
    def consumer_tag(self) -> str:
        return f"consumer:{self.consumer_id}"

    @cached_property
    def digest(self) -> str:
        """Names this very config in the contexts made by it."""
        return sha256(canonical(self.model_dump(mode="json"))).hexdigest()[:16]


def json_schema() -> dict[str, Any]:
    """For editors: completion and checking while one types."""
    one = ContextConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions = one.pop("$defs", {})
    definitions["ContextConfig"] = one
    reference = {"$ref": "#/$defs/ContextConfig"}
    with_schema = {"$schema": {"type": "string"}}
    one["properties"] = with_schema | one["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Breadcrumbs context builder config",
        "description": "One config, or a list of configs with a consumer_id each.",
        "anyOf": [reference, {"type": "array", "items": reference, "minItems": 1}],
        "$defs": definitions,
    }
