"""Warnings about settings of a config that are valid but have no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import MAX_COMPLAINTS, ConfigComplaint, Fault
from breadcrumbs.runtime.breadcrumb.json_positions import DocumentPath, LocatedJson
from breadcrumbs.runtime.breadcrumb.nearest_names import nearest_name
from breadcrumbs.runtime.schema_names import INTERNAL_SCHEMAS

WILDCARDS: Final = "*?"


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names that exist in a store, to compare a config with. None: unknown."""

    schemas: frozenset[str] | None = None
    """Schemas of the breadcrumbs of the owner."""
    consumers: frozenset[str] | None = None
    """Consumers whose contexts an agent reads."""


NOTHING_KNOWN: Final = KnownNames()


def locate_warnings(
    raw: bytes, configs: Sequence[ContextConfig], known: KnownNames = NOTHING_KNOWN
) -> list[ConfigComplaint]:
    """Return the warnings about a valid config text, in the order of the text. At most 20 are returned."""
    found: list[Fault] = []
    for number, config in enumerate(configs):
        found += [Fault((number, *fault.path), fault.message) for fault in find_warnings(config, known)]
    if not found:
        return []
    text = LocatedJson(raw)
    if not isinstance(text.value, list):
        found = [Fault(fault.path[1:], fault.message) for fault in found]
    warnings = [
        ConfigComplaint(fault.where, *text.locate(fault.path, key=False), fault.message) for fault in found
    ]
    return sorted(warnings, key=lambda warning: (warning.line, warning.column))[:MAX_COMPLAINTS]


def find_warnings(config: ContextConfig, known: KnownNames = NOTHING_KNOWN) -> Iterator[Fault]:
    """Yield the settings of a config that have no effect."""
    for check in _CHECKS:
        yield from check(config, known)


Check: TypeAlias = Callable[[ContextConfig, KnownNames], Iterator[Fault]]


def _unused_limits(config: ContextConfig, known: KnownNames) -> Iterator[Fault]:
    for number, source in enumerate(config.sources):
        if "limit" not in source.fetch.model_fields_set:
            continue
        path: DocumentPath = ("sources", number, "fetch", "limit")
        key_limit = config.key_limits.get(source.key)
        if source.fetch.method != "recent":
            message = f"no effect: the method {source.fetch.method} returns one breadcrumb. Use recent to get several"
            yield Fault(path, message)
        elif key_limit is not None and source.fetch.limit > key_limit:
            yield Fault(path, f"no effect: limits allows only {key_limit} for the key {source.key!r}")


def _unused_keeps(config: ContextConfig, known: KnownNames) -> Iterator[Fault]:
    keeps = {entry.key: entry.keep for entry in config.limits}
    for number, source in enumerate(config.sources):
        if source.fetch.keep is None or source.key not in keeps:
            continue
        path: DocumentPath = ("sources", number, "fetch", "keep")
        if keeps[source.key] is not None:
            yield Fault(path, f"no effect: limits has a keep for the key {source.key!r}")
        elif source.fetch.limit >= config.key_limits[source.key]:
            yield Fault(
                path,
                f"no effect: the limit of the key {source.key!r} drops the oldest first. Set keep in limits",
            )
    keep_tokens = config.formatting.keep_tokens
    if keep_tokens is not None and not any(source.fetch.scope == "current" for source in config.sources):
        yield Fault(
            ("formatting", "keep_tokens"), "no effect: no source reads the conversation of the session"
        )


def _wildcards(config: ContextConfig, known: KnownNames) -> Iterator[Fault]:
    for path, name in _named_schemas(config):
        if any(character in name for character in WILDCARDS):
            yield Fault(
                path, f"matches nothing: schema names have no wildcards, and no schema is called {name!r}"
            )
    for path, tag in _named_tags(config):
        if any(character in tag for character in WILDCARDS):
            yield Fault(path, f"matches nothing: tags have no wildcards, and {tag!r} is not a usual tag")


def _named_schemas(config: ContextConfig) -> Iterator[tuple[DocumentPath, str]]:
    for number, trigger in enumerate(config.update_triggers):
        if trigger.schema_name is not None:
            yield ("update_triggers", number, "schema_name"), trigger.schema_name
    for number, source in enumerate(config.sources):
        if source.schema_name is not None:
            yield ("sources", number, "schema_name"), source.schema_name
    for number, name in enumerate(config.exclude.schema_names):
        yield ("exclude", "schema_names", number), name


def _named_tags(config: ContextConfig) -> Iterator[tuple[DocumentPath, str]]:
    lists: list[tuple[DocumentPath, Sequence[str]]] = [(("exclude", "tags"), config.exclude.tags)]
    for number, trigger in enumerate(config.update_triggers):
        lists.append((("update_triggers", number, "any_tags"), trigger.any_tags or ()))
        lists.append((("update_triggers", number, "all_tags"), trigger.all_tags or ()))
    for number, source in enumerate(config.sources):
        lists.append((("sources", number, "any_tags"), source.any_tags))
        lists.append((("sources", number, "all_tags"), source.all_tags))
    for path, tags in lists:
        for number, tag in enumerate(tags):
            yield (*path, number), tag


def _unused_excludes(config: ContextConfig, known: KnownNames) -> Iterator[Fault]:
    for number, name in enumerate(config.exclude.schema_names):
        path: DocumentPath = ("exclude", "schema_names", number)
        if any(character in name for character in WILDCARDS):
            continue  # reported as a wildcard
        if name in INTERNAL_SCHEMAS:
            yield Fault(path, "no effect: internal breadcrumbs are never included")
        elif known.schemas is not None and name not in known.schemas:
            yield Fault(path, f"no effect yet: no breadcrumb has this schema{_suggest(name, known.schemas)}")


def _unread_consumer(config: ContextConfig, known: KnownNames) -> Iterator[Fault]:
    if known.consumers is not None and config.consumer_id not in known.consumers:
        advice = _suggest(config.consumer_id, known.consumers)
        if not advice and known.consumers:
            advice = f". Agents read the contexts of {', '.join(sorted(known.consumers)[:5])}"
        yield Fault(("consumer_id",), f"no agent of this server reads the contexts of this consumer{advice}")


def _suggest(name: str, existing: frozenset[str]) -> str:
    close = nearest_name(name, existing)
    return "" if close is None else f". Did you mean {close!r}?"


_CHECKS: Final[tuple[Check, ...]] = (
    _unread_consumer,
    _unused_limits,
    _unused_keeps,
    _wildcards,
    _unused_excludes,
)
