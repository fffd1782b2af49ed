"""Config files that context builders publish, so that other processes can show which config is in force.

A record contains the last valid text and the errors of the current file. The text of an invalid file is not published,
because it can be anything. Config breadcrumbs are not published: every process can read them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import orjson
import structlog

from breadcrumbs.context_builder.config_checks import ConfigComplaint
from breadcrumbs.context_builder.config_file import content_tag
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.published_configs import (
    MAX_RECORD_BYTES,
    RECORD_SECONDS,
    publish_config,
    read_published_configs,
    withdraw_config,
)
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.context_builder")

_CHECK_SECONDS: Final = 0.5
_RENEW_SECONDS: Final = RECORD_SECONDS / 3


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """The config file that some context builders use."""

    name: str
    """Name of the file, without its folder."""
    tag: str
    """Hash of the last valid text, as in the ETag of the file."""
    text: str | None
    """The last valid text. None if it is too large to be published."""
    complaints: tuple[ConfigComplaint, ...] = ()
    """Errors in the current content of the file."""

    def encode(self) -> bytes:
        """Return the record that a worker publishes."""
        document = {
            "name": self.name,
            "tag": self.tag,
            "text": self.text,
            "complaints": [[one.where, one.line, one.column, one.message] for one in self.complaints],
        }
        return orjson.dumps(document)

    @classmethod
    def decode(cls, record: bytes) -> PublishedConfig | None:
        """Return a published config, or None if another version of this program wrote it in another form."""
        try:
            document: dict[str, Any] = orjson.loads(record)
            complaints = tuple(ConfigComplaint(*entry) for entry in document["complaints"])
            return cls(document["name"], document["tag"], document["text"], complaints)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


@asynccontextmanager
async def publishing(store: Store, configs: ConfigsInForce, worker: str) -> AsyncIterator[None]:
    """Publish the config file of a context builder while the block runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_publish_changes, store, configs, worker)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
            with anyio.move_on_after(1, shield=True):
                try:
                    await withdraw_config(store, worker)
                except StoreError:
                    pass  # the record expires by itself


async def _publish_changes(store: Store, configs: ConfigsInForce, worker: str) -> None:
    """Publish the config after each change, and renew the record before it expires."""
    last, renewed_at = b"", 0.0
    while True:
        record = _record_of(configs)
        if record != last or time.monotonic() - renewed_at > _RENEW_SECONDS:
            try:
                await publish_config(store, worker, record)
                last, renewed_at = record, time.monotonic()
            except StoreError as error:
                _log.debug("publishing the context config failed", error=str(error))
        await anyio.sleep(_CHECK_SECONDS)


def _record_of(configs: ConfigsInForce) -> bytes:
    content, refused = configs.valid_content, configs.refused
    complaints = () if refused is None else tuple(refused.complaints)
    name = "" if configs.path is None else configs.path.name
    one = PublishedConfig(name, content_tag(content), content.decode("utf-8"), complaints)
    record = one.encode()
    if len(record) > MAX_RECORD_BYTES:
        record = PublishedConfig(name, one.tag, None, complaints).encode()
    return record


async def published_configs(store: Store, kind: str) -> list[tuple[PublishedConfig, int]]:
    """Return the config files of the living context builders, each with the number of its builders.

    The most frequent one comes first.
    """
    records = [PublishedConfig.decode(record) for record in await read_published_configs(store, kind)]
    return count_equal([record for record in records if record is not None])


def count_equal(records: Sequence[PublishedConfig]) -> list[tuple[PublishedConfig, int]]:
    """Return the different records with their numbers, the most frequent one first."""
    counts: dict[PublishedConfig, int] = {}
    for record in records:
        counts[record] = counts.get(record, 0) + 1
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0].tag))
