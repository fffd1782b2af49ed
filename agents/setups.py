"""Setups: the facts that are equal for all turns of an agent until its definition, model or config changes.

A setup contains the model, the dialect, the parameters, the system prompt and the tools. It is stored once, in the
archive of the owner, and receipts name it by its digest. Together with the items of a context it determines the bytes
of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import orjson
import structlog

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Dialect, ToolSpec
from breadcrumbs.agents.models.chat_format import tool_json
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.store_calls import log_store_error
from breadcrumbs.runtime.version import VERSION
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE

_log = structlog.get_logger("breadcrumbs.agents")

_MAX_REMEMBERED: Final = 4_096
"""Maximum number of setups that a process remembers. Above it, all are forgotten and written again when used."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts of a turn that the setup document contains."""

    definition: AgentDefinition
    kind: str
    """`model`, `function` or `adk`."""
    model: str | None = None
    """Name of the model."""
    dialect: Dialect | None = None
    tools: tuple[ToolSpec, ...] = ()
    config: str | None = None
    """Digest of the context config. None for an agent without one."""

    def document(self, owner: UUID, agent: str) -> dict[str, Any]:
        """Return the document to archive. `agent` is the digest of the definition."""
        definition, dialect = self.definition, self.dialect
        document: dict[str, Any] = {
            "agent_id": definition.agent_id,
            "kind": self.kind,
            "agent": agent,
            "software": VERSION,
        }
        if self.config is not None:
            document["config"] = self.config
        if self.model is not None:
            document |= {"model": public_name(self.model), "provider": provider_of(self.model)}
        if dialect is not None:
            document["dialect"] = {
                "model": dialect.model,
                "stream": dialect.stream,
                "omit": list(dialect.omit),
            }
            # The key of the prompt cache is derived from the owner. An import can change the owner of the answer.
            document["owner_id"] = str(owner)
            document["system_prompt"] = definition.system_prompt
            document["parameters"] = parameters_of(definition)
            # As text: the archive sorts the keys of objects, and their order is part of the request.
            document["tools"] = orjson.dumps([tool_json(tool) for tool in self.tools]).decode()
            if definition.output_schema is not None:
                document["output_schema"] = orjson.dumps(definition.output_schema).decode()
        if definition.adk is not None:
            document["adk"] = definition.adk.model_dump(mode="json", exclude_none=True)
        return document


def parameters_of(definition: AgentDefinition) -> dict[str, Any]:
    """Return the parameters of the model calls that a definition sets."""
    given = {
        "temperature": definition.temperature,
        "max_tokens": definition.max_tokens,
        "parallel_tool_calls": definition.parallel_tool_calls,
    }
    return {name: value for name, value in given.items() if value is not None}


def provider_of(model: str) -> str:
    """Return the provider in the name of a model. The URL of a server is not shown."""
    return "custom" if "://" in model else model.partition(":")[0]


def definition_document(definition: AgentDefinition) -> dict[str, Any]:
    """Return a definition as the archive stores it."""
    return definition.model_dump(mode="json", exclude_none=True)


class Setups:
    """Archives setups, and remembers those that it has archived."""

    def __init__(self, store: Store) -> None:
        self._archive = Archive(store)
        self._digests: dict[tuple[Any, ...], tuple[Setup, bytes]] = {}

    async def digest(self, owner: UUID, setup: Setup) -> bytes:
        """Return the digest of a setup. Archive it at the first use.

        If the store is unavailable, the setup is archived by a later turn. The answer must not be lost.
        """
        key = (owner, setup.definition.agent_id, setup.model, setup.dialect, setup.config)
        known = self._digests.get(key)
        if known is not None and known[0] == setup and self._is_kept(owner, known[1]):
            return known[1]
        definition = definition_document(setup.definition)
        document = setup.document(owner, sha256(canonical(definition)).hexdigest())
        digest = sha256(canonical(document)).digest()
        try:
            await gather(
                self._archive.keep(owner, "agent", definition), self._archive.keep(owner, "setup", document)
            )
        except STORE_UNAVAILABLE as error:
            agent = setup.definition.agent_id
            log_store_error(_log, "store unavailable, setup not archived", error, agent=agent)
            return digest
        if len(self._digests) >= _MAX_REMEMBERED:
            self._digests.clear()
        self._digests[key] = (setup, digest)
        return digest

    def _is_kept(self, owner: UUID, digest: bytes) -> bool:
        return self._archive.is_kept(owner, "setup", digest.hex())
