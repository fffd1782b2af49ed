"""The config of the context builder. People edit it while the builder runs.

One config describes one consumer (an agent): which events make a new context, where its parts come from, and how much
of it fits. `config/context-builder-config.json` (one config, or a list of them) and `context.config.v1` breadcrumbs
have the same form. Unknown fields are refused: a misspelt filter must not show the model more than intended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.retrieval.sources import Source, SourceTags
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT

CONSUMER: Final = "consumer:"
ERROR_PATH: Final = "at"
"""Key in the context of an error: the path of the wrong value, below the path that pydantic reports."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exclude(_Part):
    """What never enters a context, whatever the sources find."""

    schema_names: Annotated[tuple[SchemaName, ...], Field(max_length=256)] = Field(
        (), description="Breadcrumbs of these schemas"
    )
    tags: SourceTags = Field((), description="Breadcrumbs with any of these tags")


class Output(_Part):
    """The breadcrumb that a context becomes."""

    schema_name: SchemaName = Field(AGENT_CONTEXT, description="What agents wait for")
    tags: Annotated[tuple[Tag, ...], Field(max_length=32)] = Field(
        ("agent:context",), description="Besides consumer:… and what is inherited from the trigger"
    )
    ttl_seconds: Annotated[int, Field(ge=1, le=3_153_600_000, strict=True)] | None = Field(
        3600, description="For how long it is kept after its last change; null: for ever"
    )


class Formatting(_Part):
    """How much of what was found fits."""

    max_tokens: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = Field(
        4000,
        description="The newest parts of the conversation come first, then the rest; the trigger is always in",
    )


def _check_not_empty(trigger: Selector) -> Selector:
    if trigger.is_empty:
        raise PydanticCustomError(
            "everything", "this matches everything: name a schema_name or tags to react to"
        )
    return trigger


def _add_schema_field(schema: dict[str, Any]) -> None:
    # `$schema` tells an editor where this schema is. It is removed before a config is validated.
    schema["properties"] = {"$schema": {"type": "string"}} | schema["properties"]


class ContextConfig(_Part):
    """What one consumer's contexts are made of."""

    model_config = ConfigDict(json_schema_extra=_add_schema_field)

    consumer_id: Annotated[Tag, Field(max_length=200)] = Field(
        description="Whose contexts these are: agents wait for consumer:<consumer_id>"
    )
    update_triggers: Annotated[
        tuple[Annotated[Selector, AfterValidator(_check_not_empty)], ...], Field(min_length=1, max_length=64)
    ] = Field(description="What makes a new context: a breadcrumb that matches one of these")
    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=64)] = Field(
        description="Where its parts come from; sources with the same key make up one part"
    )
    exclude: Exclude = Exclude()
    output: Output = Output()
    formatting: Formatting = Formatting()

    @model_validator(mode="after")
    def _check_triggers_and_tags(self) -> ContextConfig:
        for number, tag in enumerate(self.output.tags):
            if tag.startswith(SESSION):
                raise _error(
                    "output_session",
                    "a context is in the session of its trigger: leave session tags out",
                    "output", "tags", number,
                )  # fmt: skip
            if tag.startswith(CONSUMER) and tag != self.consumer_tag:
                raise _error(
                    "output_consumer",
                    f"this would also be a context for {tag[len(CONSUMER) :]}: one config, one consumer",
                    "output", "tags", number,
                )  # fmt: skip
        for number, trigger in enumerate(self.update_triggers):
            if self.may_trigger(trigger):
                raise _error(
                    "triggers_itself",
                    "this matches the contexts that this very config makes, so it would trigger itself: "
                    "name the schema_name to react to",
                    "update_triggers", number,
                )  # fmt: skip
        return self

    @property
    def consumer_tag(self) -> str:
        return CONSUMER + self.consumer_id

    @cached_property
    def digest(self) -> str:
        """Identifies the config in its contexts."""
        return sha256(canonical(self.model_dump(mode="json"))).hexdigest()[:16]

    def makes(self, schema_name: str | None, tags: Sequence[str]) -> bool:
        """Whether a breadcrumb is a context of this config."""
        return schema_name == self.output.schema_name and self.consumer_tag in tags

    def reacts_to(self, crumb: Breadcrumb) -> bool:
        """Whether a breadcrumb matches one of the update triggers."""
        return any(selector.matches(crumb) for selector in self.update_triggers)

    def may_trigger(self, trigger: Selector) -> bool:
        """Whether a context of this config can match a selector. A context inherits tags of its trigger."""
        inherited = inherited_tags([*(trigger.all_tags or ()), *(trigger.any_tags or ())])
        tags = [*self.output.tags, self.consumer_tag, *inherited]
        return trigger.matches_meta(self.output.schema_name, tags, trigger.session_id)


def _error(kind: str, message: str, *at: str | int) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message, ERROR_PATH: at})


def find_trigger_cycle(configs: Sequence[ContextConfig]) -> list[ContextConfig]:
    """Return configs whose contexts trigger each other in a cycle, or an empty list."""
    following = {
        number: [
            other
            for other, reacting in enumerate(configs)
            if other != number and any(config.may_trigger(trigger) for trigger in reacting.update_triggers)
        ]
        for number, config in enumerate(configs)
    }
    ended: set[int] = set()

    def walk(path: list[int]) -> list[int]:
        for following_one in following[path[-1]]:
            if following_one in path:
                return path[path.index(following_one) :]
            if following_one not in ended and (cycle := walk([*path, following_one])):
                return cycle
        ended.add(path[-1])
        return []

    for number in following:
        if number not in ended and (cycle := walk([number])):
            return [configs[member] for member in cycle]
    return []


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file, for editors."""
    one = ContextConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions = one.pop("$defs", {})
    definitions["ContextConfig"] = one
    definitions["Selector"]["minProperties"] = 1
    reference = {"$ref": "#/$defs/ContextConfig"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Breadcrumbs context builder config",
        "description": "One config, or a list of configs with a consumer_id each.",
        "anyOf": [reference, {"type": "array", "items": reference, "minItems": 1}],
        "$defs": definitions,
    }


def publish(path: Path = Path("config/context-builder-config.schema.json")) -> None:
    """Write the JSON Schema to the file that editors read."""
    path.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", "utf-8")
