"""HTTP operations on the history of context configs: list it, read a past config, roll back to it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, parse_configs
from breadcrumbs.context_builder.config_file import ChangedMeanwhile, ConfigFile
from breadcrumbs.context_builder.config_history import (
    MIN_PREFIX,
    PastConfig,
    digests_in_force,
    find_config,
    read_log,
    replaced_in_text,
)
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce, own_configs
from breadcrumbs.context_builder.published_configs import published_configs
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.errors import Forbidden, InvalidInput
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Body, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_FOUND, QUOTA_EXCEEDED, VERSION_MISMATCH, HttpProblem
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Id, Time, VersionNumber
from breadcrumbs.runtime.schema_names import CONTEXT_CONFIG
from breadcrumbs.runtime.store.options import UpdateOptions
from breadcrumbs.runtime.workers.definitions import PostedDefinition

_closed = with_config(extra="forbid")

Digest = Annotated[str, Field(description="SHA-256 of the config, or its first 16 digits.")]


@_closed
class LogEntryView(TypedDict):
    """A config that came into force."""

    digest: Annotated[
        str, Field(description="The first 16 digits. Contexts built with the config store them.")
    ]
    at: Time
    consumer_id: str
    source: Annotated[str, Field(description="The config file, or the id and version of the breadcrumb.")]
    in_force: Annotated[bool, Field(description="The newest entry of the config that is in force now.")]


@_closed
class ConfigLogView(TypedDict):
    """The configs that were in force."""

    entries: Annotated[list[LogEntryView], Field(description="The newest first.")]


@_closed
class PastConfigView(TypedDict):
    """A config that is or was in force."""

    digest: Annotated[str, Field(description="SHA-256 of the config, 64 hexadecimal digits.")]
    consumer_id: str
    kept_at: Annotated[Time, Field(description="Time when it was first used.")]
    in_force: bool
    valid: Annotated[bool, Field(description="Whether this version of Breadcrumbs accepts the config.")]
    config: Annotated[dict[str, Any], Field(description="The shortest config with this digest.")]


@_closed
class RolledBackView(TypedDict):
    """Result of a rollback."""

    ok: Literal[True]
    digest: Digest
    consumer_id: str
    origin: Annotated[
        Literal["file", "breadcrumb", "none"],
        Field(description="What was written. `none`: the config is in force already."),
    ]
    id: NotRequired[Id]
    version: NotRequired[VersionNumber]


class RollbackRequest(BaseModel):
    """The config to roll back to."""

    model_config = ConfigDict(extra="forbid")

    digest: Annotated[str, Field(min_length=MIN_PREFIX, max_length=64)]


class ConfigHistoryRoutes:
    """Operations on the history of the configs of one server."""

    def __init__(self, configs: ConfigsInForce, file: ConfigFile | None) -> None:
        self._configs = configs
        self._file = file

    async def log(self, call: HttpCall) -> Reply:
        owner, store = call.principal.owner_id, call.services.store
        current = digests_in_force(await self._in_force(call))
        shows_paths = self._file is not None and not self._file.locked
        shows_paths = shows_paths and policy.may_edit_config_file(call.principal)
        seen: set[str] = set()
        entries: list[LogEntryView] = []
        for entry in await read_log(store, owner):
            in_force = entry.name not in seen and current.get(entry.name) == entry.digest
            if in_force:
                seen.add(entry.name)
            entries.append(
                {
                    "digest": entry.digest,
                    "at": times.to_text(entry.at),
                    "consumer_id": entry.name,
                    "source": entry.source if shows_paths else _without_folder(entry.source),
                    "in_force": in_force,
                }
            )
        return Reply.json({"entries": entries})

    async def show(self, call: HttpCall) -> Reply:
        past = await find_config(
            call.services.store, call.principal.owner_id, call.scope["path_params"]["digest"]
        )
        return Reply.json(
            {
                "digest": past.digest,
                "consumer_id": past.consumer_id,
                "kept_at": times.to_text(past.kept_at),
                "in_force": await self._is_in_force(call, past),
                "valid": past.is_valid,
                "config": past.document,
            }
        )

    async def roll_back(self, call: HttpCall) -> Reply:
        wanted = parse_body(RollbackRequest, await call.json(), error="send the digest of a config")
        past = await find_config(call.services.store, call.principal.owner_id, wanted.digest)
        if not past.is_valid:
            raise InvalidInput(
                "this version of Breadcrumbs does not accept the config: edit a copy of it", where="digest"
            )
        own = await own_configs(call.services.store, call.principal.owner_id)
        current = next(
            (
                entry
                for entry in own
                if entry.in_force and entry.definition and entry.definition.consumer_id == past.consumer_id
            ),
            None,
        )
        reply: dict[str, Any] = {"ok": True, "digest": past.digest, "consumer_id": past.consumer_id}
        if await self._is_in_force(call, past) and not (current is not None and current.problem):
            return Reply.json(reply | {"origin": "none"})
        if current is not None:
            return Reply.json(reply | await self._update_breadcrumb(call, past, current))
        if await self._is_in_file(call, past.consumer_id):
            await self._write_file(past)
            return Reply.json(reply | {"origin": "file"})
        return Reply.json(reply | await self._create_breadcrumb(call, past))

    async def _in_force(self, call: HttpCall) -> tuple[ContextConfig, ...]:
        owner = call.principal.owner_id
        self._configs.invalidate(owner)
        return await self._configs.get(owner, await self._shared(call))

    async def _shared(self, call: HttpCall) -> tuple[ContextConfig, ...] | None:
        """Return the configs of the file that the context builders have published. None: this process has a file."""
        if self._configs.valid_content:
            return None
        builders = await published_configs(call.services.store, ContextBuilder.kind)
        try:
            return parse_configs((builders[0][0].text or "").encode()) if builders else None
        except ConfigError:  # a builder of another version understands this config
            return None

    async def _is_in_force(self, call: HttpCall, past: PastConfig) -> bool:
        current = digests_in_force(await self._in_force(call)).get(past.consumer_id)
        return current is not None and past.digest.startswith(current)

    async def _is_in_file(self, call: HttpCall, consumer: str) -> bool:
        return any(config.consumer_id == consumer for config in await self._in_force(call))

    async def _update_breadcrumb(
        self, call: HttpCall, past: PastConfig, current: PostedDefinition[ContextConfig]
    ) -> dict[str, Any]:
        principal = call.principal
        # The text of an editor belongs to the replaced config. Hints of the breadcrumb are no part of a config.
        kept = {key: value for key, value in current.crumb.context.items() if key == "llm_hints"}
        written = await call.services.store.update(
            principal.owner_id,
            current.crumb.id,
            BreadcrumbUpdate.parse({"context": {**past.document, **kept}}),
            by=principal.agent_id,
            expected_version=current.crumb.version,
            options=UpdateOptions(admit=partial(policy.admit_change, principal)),
        )
        self._configs.invalidate(principal.owner_id)
        return {"origin": "breadcrumb", "id": str(written.id), "version": written.version}

    async def _create_breadcrumb(self, call: HttpCall, past: PastConfig) -> dict[str, Any]:
        principal = call.principal
        new = BreadcrumbCreate.parse(
            {
                "schema_name": CONTEXT_CONFIG,
                "title": f"Context config of {past.consumer_id}"[:200],
                "tags": [],
                "context": past.document,
            }
        )
        written = await call.services.store.create(principal.owner_id, new, by=principal.agent_id)
        self._configs.invalidate(principal.owner_id)
        return {"origin": "breadcrumb", "id": str(written.id), "version": written.version}

    async def _write_file(self, past: PastConfig) -> None:
        short = past.digest[:16]
        advice = (
            f"write it where the file is with: crumb config show {short} > FILE, or post it as a "
            f"{CONTEXT_CONFIG} breadcrumb"
        )
        if self._file is None:
            raise Forbidden(f"the config comes from a file of another process: {advice}")
        if reason := self._file.locked:
            raise Forbidden(f"{reason}: {advice}")
        content = await anyio.to_thread.run_sync(self._file.read)
        text = replaced_in_text(content.raw or b"", past.document)
        try:
            await anyio.to_thread.run_sync(partial(self._file.replace, text, expected_tags={content.tag}))
        except ChangedMeanwhile as error:
            raise HttpProblem(VERSION_MISMATCH, str(error)) from None
        self._configs.reload()

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="contextConfigLog",
                method="GET",
                path="/contexts/config/log",
                group="Contexts",
                summary="List the context configs that were in force",
                description=(
                    "Returns when which config came into force, from the archive of this owner. A config is recorded "
                    "when a context is first built with it."
                ),
                handle=self.log,
                successes=(SuccessReply(200, "The log.", ConfigLogView),),
            ),
            Operation(
                id="pastContextConfig",
                method="GET",
                path="/contexts/config/log/{digest}",
                group="Contexts",
                summary="Get a context config that was in force",
                handle=self.show,
                parameters=(_DIGEST,),
                successes=(SuccessReply(200, "The config.", PastConfigView),),
                may_fail=(NOT_FOUND,),
            ),
            Operation(
                id="rollBackContextConfig",
                method="POST",
                path="/contexts/config/rollback",
                group="Contexts",
                summary="Roll back to a context config that was in force",
                description=(
                    "Makes a past config the config in force of its consumer. If a breadcrumb is in force, it gets a "
                    "new version. If the config file of this server is in force, the config is replaced in the file. "
                    "The file must be writable as for PUT /contexts/config. If no config of the consumer is in force, "
                    "a `context.config.v1` breadcrumb is created."
                ),
                handle=self.roll_back,
                uses_store="writes",
                body=Body(RollbackRequest, {"digest": "d84c1ae6bfb89fb7"}),
                successes=(SuccessReply(200, "The config is in force.", RolledBackView),),
                may_fail=(NOT_FOUND, VERSION_MISMATCH, QUOTA_EXCEEDED),
            ),
        )


def _without_folder(source: str) -> str:
    """Return a source without the path of a file, which only those who may write the file see."""
    return source.replace("\\", "/").rpartition("/")[2]


_DIGEST: Final = Parameter(
    "digest",
    "path",
    f"The digest of the config, or its beginning ({MIN_PREFIX} digits or more).",
    {"type": "string", "minLength": MIN_PREFIX, "maxLength": 64},
    example="d84c1ae6bfb89fb7",
)
