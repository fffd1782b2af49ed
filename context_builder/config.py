"""The config of the context builder. It can be edited while the builder runs.

One config describes the contexts of one consumer (an agent): which breadcrumbs trigger a new context, which sources
it is built from, and how many tokens it can have. `config/context-builder-config.json` contains one config or a list
of them. A `context.config.v1` breadcrumb contains one config in the same form. Unknown fields are rejected, because
a misspelt filter must not show the model more than intended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from breadcrumbs.context_builder.stepped_windows import SteppedWindow
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.retrieval.sources import COUNTABLE, Source, SourceKey, SourceTags
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, ATTACHMENT_SCHEMAS, INTERNAL_SCHEMAS
from breadcrumbs.runtime.store.archive import SHORT_DIGEST, digest_of

CONSUMER: Final = "consumer:"
"""Prefix of the tag that names the consumer of a context."""
ERROR_PATH: Final = "at"
"""Key in the `ctx` of a pydantic error. Its value is the path below the location that pydantic reports."""


class _ConfigModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exclude(_ConfigModel):
    """Breadcrumbs that a context never contains, even if a source finds them."""

    schema_names: Annotated[tuple[SchemaName, ...], Field(max_length=256)] = Field(
        (), description="Leave out breadcrumbs with one of these schemas."
    )
    tags: SourceTags = Field((), description="Leave out breadcrumbs with at least one of these tags.")


class Output(_ConfigModel):
    """The breadcrumb that stores a context."""

    schema_name: SchemaName = Field(AGENT_CONTEXT, description="Schema of the context. Agents react to it.")
    tags: Annotated[tuple[Tag, ...], Field(max_length=32)] = Field(
        ("agent:context",),
        description="Tags of the context. The tag consumer:<consumer_id> and the inherited tags of the trigger are "
        "added.",
    )
    ttl_seconds: Annotated[int, Field(ge=1, le=3_153_600_000, strict=True)] | None = Field(
        3600,
        description="Seconds until the context is reduced to references, counted from its last change. null: never.",
    )


class Formatting(_ConfigModel):
    """Size limit of a context."""

    max_tokens: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] = Field(
        4000,
        description="Maximum number of tokens. The trigger is always included. The conversation is added next, newest "
        "first, then shared items, then items of other sessions.",
    )
    keep_tokens: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] | None = Field(
        None,
        description="Stepped budget: a conversation beyond max_tokens is cut to this many tokens, so that prompt "
        "caches can be used. Shared items are then added before the conversation. Default: with each new message "
        "beyond max_tokens, the oldest ones are dropped.",
    )

    @model_validator(mode="after")
    def _check_keep_tokens(self) -> Formatting:
        if self.keep_tokens is not None and self.keep_tokens >= self.max_tokens:
            message = f"must be less than max_tokens ({self.max_tokens}), not {self.keep_tokens}"
            raise _error("keep_tokens", message, "keep_tokens")
        return self


class KeyLimit(_ConfigModel):
    """Limit of one key: how many breadcrumbs all sources with this key contribute together."""

    key: SourceKey = Field(description="Key of the sources that share the limit.")
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        description="Maximum number of breadcrumbs of all sources with this key together, including the trigger. "
        "The newest are kept. An answer whose question is left out is left out too."
    )
    keep: Annotated[int, Field(ge=1, le=999, strict=True)] | None = Field(
        None,
        description="Stepped window: the key grows up to limit and is then cut to keep, so that prompt caches can be "
        "used. All its sources need the method recent, a schema_name, no tags, the scope current and no own limit. "
        "Default: with each new breadcrumb beyond limit, the oldest one is dropped.",
    )

    @model_validator(mode="after")
    def _check_keep(self) -> KeyLimit:
        if self.keep is not None and self.keep >= self.limit:
            message = f"must be less than limit ({self.limit}), not {self.keep}"
            raise _error("limit_keep", message, "keep")
        return self


def _check_not_empty(trigger: Selector) -> Selector:
    if trigger.is_empty:
        raise PydanticCustomError("everything", "this trigger matches everything: add a schema_name or tags")
    return trigger


def _add_schema_field(schema: dict[str, Any]) -> None:
    # Editors find the schema through `$schema`. The key is removed before a config is validated.
    reference = {"type": "string", "description": "Path or URL of this JSON Schema, for editors."}
    schema["properties"] = {"$schema": reference} | schema["properties"]


def _hashed_source(source: Source) -> dict[str, Any]:
    """Return the fields of a source that its config's hash covers."""
    document: dict[str, Any] = source.model_dump(mode="json")
    # A source without a field keeps the hash that it had before the field existed.
    if source.max_tokens is None:
        del document["max_tokens"]
    if source.fetch.keep is None:
        del document["fetch"]["keep"]
    return document


class ContextConfig(_ConfigModel):
    """Description of the contexts of one consumer."""

    model_config = ConfigDict(json_schema_extra=_add_schema_field)

    consumer_id: Annotated[Tag, Field(max_length=200)] = Field(
        description="Name of the consumer. Its contexts have the tag consumer:<consumer_id>, which its agent reacts to."
    )
    update_triggers: Annotated[
        tuple[Annotated[Selector, AfterValidator(_check_not_empty)], ...], Field(min_length=1, max_length=64)
    ] = Field(description="Selectors. A breadcrumb that matches one of them triggers a new context.")
    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=64)] = Field(
        description="Breadcrumbs to fetch. Sources with the same key fill the same part of the context."
    )
    limits: Annotated[tuple[KeyLimit, ...], Field(max_length=64)] = Field(
        (), description="Limits per key. Each limit counts for all sources with the same key together."
    )
    exclude: Exclude = Exclude()
    output: Output = Output()
    formatting: Formatting = Formatting()

    @model_validator(mode="after")
    def _check_limits(self) -> ContextConfig:
        keys, seen = {source.key for source in self.sources}, set[str]()
        for number, entry in enumerate(self.limits):
            if entry.key not in keys:
                names = ", ".join(sorted(keys))
                message = f"no source has the key {entry.key!r}, expected one of: {names}"
                raise _error("limit_key", message, "limits", number, "key")
            if entry.key in seen:
                raise _error("limit_twice", f"{entry.key!r} already has a limit", "limits", number, "key")
            seen.add(entry.key)
            if entry.keep is not None and (problem := self._find_uncounted(entry)):
                raise _error("limit_keep", problem, "limits", number, "keep")
        return self

    def _find_uncounted(self, limit: KeyLimit) -> str:
        """Return why the breadcrumbs of a key cannot be counted, or an empty text.

        Archived configs name the effective limit of each source. It is the limit of the key, so it is accepted.
        """
        for number, source in enumerate(self.sources):
            if source.key != limit.key:
                continue
            if not source.is_countable:
                return f"sources.{number} needs the method recent, {COUNTABLE}, because its breadcrumbs are counted"
            if "limit" in source.fetch.model_fields_set and source.fetch.limit != limit.limit:
                return f"sources.{number} has its own limit: remove it, because the window counts for the whole key"
        return ""

    @model_validator(mode="after")
    def _check_triggers_and_tags(self) -> ContextConfig:
        for number, tag in enumerate(self.output.tags):
            if tag.startswith(SESSION):
                raise _error(
                    "output_session",
                    "a context belongs to the session of its trigger: remove session tags",
                    "output", "tags", number,
                )  # fmt: skip
            if tag.startswith(CONSUMER) and tag != self.consumer_tag:
                raise _error(
                    "output_consumer",
                    f"a config has one consumer: remove the tag of the other consumer {tag[len(CONSUMER) :]}",
                    "output", "tags", number,
                )  # fmt: skip
        for number, trigger in enumerate(self.update_triggers):
            if self.may_trigger(trigger):
                raise _error(
                    "triggers_itself",
                    "this matches the contexts of this config, so the config would trigger itself: "
                    "add the schema_name to react to",
                    "update_triggers", number,
                )  # fmt: skip
        return self

    @property
    def consumer_tag(self) -> str:
        return CONSUMER + self.consumer_id

    @cached_property
    def digest(self) -> str:
        """Hash of the config: the beginning of the digest of its archived document.

        Each context stores the hash of its config.
        """
        return digest_of(self.archived_document())[:SHORT_DIGEST]

    def archived_document(self) -> dict[str, Any]:
        """Return the document that the archive keeps. It contains every value, also the defaults."""
        document = self.model_dump(mode="json")
        if not self.limits:
            del document["limits"]  # configs without limits keep the hash that they had before limits existed
        for part in (document["formatting"], *document.get("limits", ())):
            for name in ("keep", "keep_tokens"):
                if part.get(name, 0) is None:
                    del part[name]
        # The effective limit of a source depends on whether its own limit is set. The dump does not contain that.
        document["sources"] = [_hashed_source(source) for source in self.full_sources]
        return document

    @cached_property
    def key_limits(self) -> dict[str, int]:
        """Limits by key."""
        return {entry.key: entry.limit for entry in self.limits}

    @cached_property
    def excluded_tags(self) -> frozenset[str]:
        """Tags of breadcrumbs that a context never contains."""
        return frozenset(self.exclude.tags)

    @cached_property
    def visible_schemas(self) -> frozenset[str]:
        """Schemas of the sources that nothing excludes. Empty if tags are excluded."""
        hidden = {*self.exclude.schema_names, *INTERNAL_SCHEMAS, self.output.schema_name}
        visible = {
            name for name in self.source_schemas if name not in hidden and not name.startswith("system.")
        }
        return frozenset(() if self.exclude.tags else visible)

    @cached_property
    def source_schemas(self) -> frozenset[str]:
        """Schemas that the sources name."""
        return frozenset(source.schema_name for source in self.sources if source.schema_name is not None)

    @cached_property
    def plain_sources(self) -> frozenset[int | None]:
        """Indexes of the sources without tags and without a limit of tokens."""
        return frozenset(
            number
            for number, source in enumerate(self.sources)
            if source.max_tokens is None and not (source.any_tags or source.all_tags)
        )

    @cached_property
    def conversation_sources(self) -> frozenset[int]:
        """Indexes of the sources that find messages of the session, with all their text and each by only one source."""
        schemas = Counter(source.schema_name for source in self.sources)
        return frozenset(
            number
            for number, source in enumerate(self.sources)
            if source.is_countable
            and source.max_tokens is None
            and source.schema_name in self.visible_schemas - ATTACHMENT_SCHEMAS
            and schemas[source.schema_name] == 1
        )

    @cached_property
    def part_order(self) -> dict[str, int]:
        """Index of the first source of each key."""
        order: dict[str, int] = {}
        for number, source in enumerate(self.sources):
            order.setdefault(source.key, number)
        return order

    @cached_property
    def described_sources(self) -> tuple[dict[str, Any], ...]:
        """The sources as explanations describe them. Must not be modified."""
        return tuple(
            _describe_source(source, self.key_limits.get(source.key), self.kept.get(number))
            for number, source in enumerate(self.full_sources)
        )

    @cached_property
    def stepped_windows(self) -> tuple[SteppedWindow, ...]:
        """The stepped windows of keys and of single sources. A source is in at most one of them."""
        windows = []
        steps = {entry.key: entry for entry in self.limits if entry.keep is not None}
        for key, entry in steps.items():
            numbers = frozenset(n for n, source in enumerate(self.sources) if source.key == key)
            windows.append(SteppedWindow(numbers, entry.limit, entry.keep or 0))
        for number, source in enumerate(self.sources):
            if source.fetch.keep is not None and source.key not in steps:
                windows.append(SteppedWindow(frozenset((number,)), source.fetch.limit, source.fetch.keep))
        return tuple(windows)

    @cached_property
    def kept(self) -> dict[int, int]:
        """`keep` of the stepped windows, by index of the source."""
        return {number: window.keep for window in self.stepped_windows for number in window.numbers}

    @cached_property
    def counted_sources(self) -> frozenset[int]:
        """Indexes of the sources whose breadcrumbs are counted, for the stepped windows."""
        return frozenset(number for window in self.stepped_windows for number in window.numbers)

    @cached_property
    def full_sources(self) -> tuple[Source, ...]:
        """The sources with their effective limits.

        A source without its own limit can fill the whole limit of its key.
        """
        return tuple(
            _with_limit(
                source, self.key_limits.get(source.key), replaces="limit" not in source.fetch.model_fields_set
            )
            for source in self.sources
        )

    @cached_property
    def first_sources(self) -> tuple[Source, ...]:
        """The sources with the limits of the first read.

        Sources that share a limit first read about an equal share of it, so a limit per key costs no more than a limit
        per source. `key_limits.sources_to_extend` tells which sources must then be read further.
        """
        sharing = Counter(source.key for source in self.sources if source.fetch.method == "recent")
        shares = {key: -(-limit // max(1, sharing[key])) + 1 for key, limit in self.key_limits.items()}
        return tuple(_with_limit(source, shares.get(source.key)) for source in self.full_sources)

    def produces(self, schema_name: str | None, tags: Sequence[str]) -> bool:
        """Return whether a breadcrumb is a context of this config."""
        return schema_name == self.output.schema_name and self.consumer_tag in tags

    def reacts_to(self, crumb: Breadcrumb) -> bool:
        """Return whether a breadcrumb matches one of the update triggers."""
        return any(selector.matches(crumb) for selector in self.update_triggers)

    def may_trigger(self, trigger: Selector) -> bool:
        """Return whether a context of this config can match a trigger.

        A context inherits tags from the breadcrumb that triggered it, so the tags of the selector count too.
        """
        inherited = inherited_tags([*(trigger.all_tags or ()), *(trigger.any_tags or ())])
        tags = [*self.output.tags, self.consumer_tag, *inherited]
        return trigger.matches_meta(self.output.schema_name, tags, trigger.session_id)


def _describe_source(source: Source, key_limit: int | None, keep: int | None) -> dict[str, Any]:
    described: dict[str, Any] = {"key": source.key}
    if source.schema_name is not None:
        described["schema_name"] = source.schema_name
    if source.any_tags:
        described["any_tags"] = list(source.any_tags)
    if source.all_tags:
        described["all_tags"] = list(source.all_tags)
    described["method"] = source.fetch.method
    optional = {
        "limit": source.fetch.limit if source.fetch.method == "recent" else None,
        "max_tokens": source.max_tokens,
        "key_limit": key_limit,
        "keep": keep,
        "scope": source.fetch.scope if source.fetch.method != "event_data" else None,
    }
    described |= {name: value for name, value in optional.items() if value is not None}
    if source.fetch.includes_shared:
        described["shared"] = True
    return described


def _with_limit(source: Source, limit: int | None, *, replaces: bool = False) -> Source:
    """Return a source with a smaller limit, or with any limit if it `replaces` the one of the source."""
    if limit is None or source.fetch.method != "recent" or not (replaces or limit < source.fetch.limit):
        return source
    return source.model_copy(update={"fetch": source.fetch.model_copy(update={"limit": limit})})


def _error(kind: str, message: str, *at: str | int) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message, ERROR_PATH: at})


def find_trigger_cycle(configs: Sequence[ContextConfig]) -> list[ContextConfig]:
    """Return configs whose contexts trigger each other in a cycle, or an empty list."""
    successors = {
        number: [
            other
            for other, reacting in enumerate(configs)
            if other != number and any(config.may_trigger(trigger) for trigger in reacting.update_triggers)
        ]
        for number, config in enumerate(configs)
    }
    finished: set[int] = set()

    def walk(path: list[int]) -> list[int]:
        for successor in successors[path[-1]]:
            if successor in path:
                return path[path.index(successor) :]
            if successor not in finished and (cycle := walk([*path, successor])):
                return cycle
        finished.add(path[-1])
        return []

    for number in successors:
        if number not in finished and (cycle := walk([number])):
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
        "description": "One config, or a list of configs with different consumer_ids.",
        "anyOf": [reference, {"type": "array", "items": reference, "minItems": 1}],
        "$defs": definitions,
    }


def publish(path: Path = Path("config/context-builder-config.schema.json")) -> None:
    """Write the JSON Schema to its file in `config/`.

    Run this after each change of the config classes.
    """
    path.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", "utf-8")
