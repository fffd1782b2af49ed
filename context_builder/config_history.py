"""History of the context configs of an owner: the configs that were in force, from the archive, and rollback.

The archive keeps a config with all its values. Readers get the shortest config with the same digest, which can be saved
as a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, check_config, parse_configs
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.archive import SHORT_DIGEST, Archive, LogEntry
from breadcrumbs.runtime.store.store import Store

MIN_PREFIX: Final = 4
"""Number of digits of a digest that a reader must give at least."""

_DIGEST: Final = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class PastConfig:
    """A config that is or was in force."""

    digest: str
    """SHA-256 of the archived config, 64 hexadecimal digits."""
    kept_at: int
    consumer_id: str
    document: dict[str, Any]
    """The shortest config with this digest."""
    is_valid: bool
    """False if this version of Breadcrumbs no longer accepts the config."""


async def read_log(store: Store, owner: UUID) -> list[LogEntry]:
    """Return when which config came into force, the newest entry first."""
    return await Archive(store).log(owner, "config")


async def find_config(store: Store, owner: UUID, prefix: str) -> PastConfig:
    """Return a config by the beginning of its digest.

    Raise `InvalidInput` if several begin with it, and `NotFound` if none does.
    """
    prefix = prefix.lower()
    if not _DIGEST.fullmatch(prefix) or len(prefix) < MIN_PREFIX:
        raise InvalidInput(
            f"a digest has {MIN_PREFIX} to 64 hexadecimal digits: list them with crumb config log",
            where="digest",
        )
    archive = Archive(store)
    short = prefix[:SHORT_DIGEST]
    matching = sorted(
        {entry.digest for entry in await archive.log(owner, "config") if entry.digest.startswith(short)}
    )
    if len(matching) > 1:
        raise InvalidInput(f"several configs begin with {prefix}: {', '.join(matching[:5])}", where="digest")
    found = (
        await archive.get(owner, prefix if len(prefix) > SHORT_DIGEST else matching[0], "config")
        if matching
        else None
    )
    if found is None:
        raise NotFound(f"no config with the digest {prefix} was in force: list them with crumb config log")
    config, _ = check_config(found.document)
    document = found.document if config is None else shortest(config)
    return PastConfig(
        found.digest, found.kept_at, str(found.document.get("consumer_id", "")), document, config is not None
    )


def shortest(config: ContextConfig) -> dict[str, Any]:
    """Return the config without values that are defaults, if that does not change its digest."""
    short = config.model_dump(mode="json", exclude_defaults=True)
    for candidate in (_without_key_limits(short, config), short):
        again, _ = check_config(candidate)
        if again is not None and again.digest == config.digest:
            return candidate
    return config.archived_document()


def _without_key_limits(short: dict[str, Any], config: ContextConfig) -> dict[str, Any]:
    """Return a config without the limits of sources that are the limit of their key."""
    sources = []
    for source in short["sources"]:
        fetch = dict(source.get("fetch", {}))
        if fetch.get("limit") == config.key_limits.get(source["key"]):
            fetch.pop("limit", None)
        rest = {key: value for key, value in source.items() if key != "fetch"}
        sources.append(rest | ({"fetch": fetch} if fetch else {}))
    return short | {"sources": sources}


def replaced_in_text(raw: bytes, config: dict[str, Any]) -> bytes:
    """Return the text of a config file in which a config replaces the one of the same consumer.

    Other configs in the file stay. The layout of the file is not kept.
    """
    try:
        parse_configs(raw)
    except ConfigError as error:
        raise InvalidInput(
            f"the config file has errors, correct it first: {error.complaints[0].message}"
        ) from None
    current = orjson.loads(raw)
    if isinstance(current, list):
        entries: Any = [_replacement(entry, config) for entry in current]
        if not any(entry is config or entry.get("consumer_id") == config["consumer_id"] for entry in entries):
            entries.append(config)
    else:
        entries = _replacement(current, config)
    return orjson.dumps(entries, option=orjson.OPT_INDENT_2) + b"\n"


def _replacement(entry: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    if entry["consumer_id"] != config["consumer_id"]:
        return entry
    # An editor finds the schema by this key. It is no part of the config.
    return ({"$schema": entry["$schema"]} if "$schema" in entry else {}) | config


def digests_in_force(configs: Iterable[ContextConfig]) -> dict[str, str]:
    """Return the digest in force by consumer."""
    return {config.consumer_id: config.digest for config in configs}
