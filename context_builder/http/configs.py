"""HTTP operations on context configs: list them, check a text, replace the config file.

Configs that are breadcrumbs are written like all other breadcrumbs. The config file applies to all owners, so it can
be replaced only if one owner alone uses the server. `ConfigFile.locked` states the reason if it cannot.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.context_builder.config import ContextConfig, json_schema
from breadcrumbs.context_builder.config_checks import ConfigComplaint, ConfigError, parse_configs
from breadcrumbs.context_builder.config_file import ChangedMeanwhile, ConfigFile, FileContent
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce, own_configs
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Body, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import (
    INVALID_INPUT,
    NOT_FOUND,
    VERSION_MISMATCH,
    HttpProblem,
    problem,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.api.schemas import Id, Time, VersionNumber
from breadcrumbs.runtime.workers.definitions import PostedDefinition

_closed = with_config(extra="forbid")

LineOrColumn = Annotated[int, Field(ge=1)]


@_closed
class ComplaintView(TypedDict):
    """One error in a config."""

    line: LineOrColumn
    column: LineOrColumn
    where: Annotated[
        str,
        Field(description="Path in the document. Empty for errors of the whole text, such as invalid JSON."),
    ]
    message: str


@_closed
class ConsumerView(TypedDict):
    """A valid config."""

    consumer_id: str
    digest: Annotated[
        str, Field(description="Hash of the config. Contexts built with it store the same hash.")
    ]


@_closed
class CheckedView(TypedDict):
    """Result of a check."""

    ok: bool
    configs: list[ConsumerView]
    complaints: Annotated[list[ComplaintView], Field(description="The errors, in the order of the text.")]


@_closed
class FileView(TypedDict):
    """The config file of this server."""

    name: str
    path: NotRequired[
        Annotated[str, Field(description="Path on the server. Present only if `writable` is true.")]
    ]
    text: NotRequired[Annotated[str, Field(description="Content. Missing if it cannot be read.")]]
    etag: Annotated[str, Field(description="Hash of the content, for If-Match.")]
    writable: Annotated[
        bool, Field(description="Whether this token can replace the file with PUT /contexts/config.")
    ]
    locked: NotRequired[Annotated[str, Field(description="Reason why the file is not writable.")]]
    configs: list[ConsumerView]
    complaints: Annotated[
        list[ComplaintView],
        Field(description="Errors in the file. If there are any, the last valid config stays in force."),
    ]


@_closed
class OwnView(TypedDict):
    """A `context.config.v1` breadcrumb."""

    id: Id
    version: VersionNumber
    updated_at: Time
    title: str
    consumer_id: NotRequired[str]
    config: Annotated[dict[str, Any], Field(description="The context of the breadcrumb.")]
    holds: Annotated[
        bool, Field(description="In force: it is the most recently written valid config of its consumer.")
    ]
    problem: NotRequired[Annotated[str, Field(description="Reason why it is invalid.")]]


@_closed
class HoldingView(ConsumerView):
    """A config that is in force for this owner."""

    origin: Literal["file", "breadcrumb"]
    id: NotRequired[Id]


@_closed
class ConfigsView(TypedDict):
    """All configs of this owner."""

    file: NotRequired[Annotated[FileView, Field(description="Missing if this process has no config file.")]]
    breadcrumbs: Annotated[list[OwnView], Field(description="Most recently written first.")]
    in_force: Annotated[list[HoldingView], Field(description="The configs that this process would use now.")]


class ConfigText(BaseModel):
    """The text of a config file: one config, or a list of them."""

    model_config = ConfigDict(extra="forbid")

    text: str


class ConfigRoutes:
    """Operations on the configs of one server."""

    def __init__(self, configs: ConfigsInForce, file: ConfigFile | None) -> None:
        self._configs = configs
        self._file = file

    async def configs(self, call: HttpCall) -> Reply:
        principal = call.principal
        own = [
            entry
            for entry in await own_configs(call.services.store, principal.owner_id)
            if policy.may_read(principal, entry.crumb)
        ]
        holding = {
            entry.definition.consumer_id: entry for entry in own if entry.in_force and entry.definition
        }
        self._configs.invalidate(principal.owner_id)
        document: dict[str, Any] = {
            "breadcrumbs": [_posted_config_document(entry) for entry in own],
            "in_force": [
                _consumer_document(config) | _origin_fields(holding.get(config.consumer_id))
                for config in await self._configs.get(principal.owner_id)
            ],
        }
        if self._file is not None:
            content = await anyio.to_thread.run_sync(self._file.read)
            document["file"] = await self._file_view(self._file, content, principal)
        return Reply.json(document)

    async def file(self, call: HttpCall) -> Reply:
        file = self._require_file()
        content = await anyio.to_thread.run_sync(file.read)
        return Reply.json(
            await self._file_view(file, content, call.principal), headers=_etag_header(content.tag)
        )

    async def replace_file(self, call: HttpCall) -> Reply:
        file = self._require_file()
        file.check_unlocked()
        text = await _read_text(call)
        checked = await _check_result(text)
        if checked["complaints"]:
            count = len(checked["complaints"])
            errors = "1 error" if count == 1 else f"{count} errors"
            return problem(
                INVALID_INPUT,
                f"the config has {errors}, the file was not changed",
                members={"errors": checked["complaints"]},
            )
        expected_tags = _expected_etags(call.header(b"if-match"))
        try:
            content = await anyio.to_thread.run_sync(
                partial(file.replace, text.encode("utf-8"), expected_tags=expected_tags)
            )
        except ChangedMeanwhile as error:
            raise HttpProblem(VERSION_MISMATCH, str(error), headers=_etag_header(error.tag)) from None
        self._configs.reload()
        return Reply.json(
            await self._file_view(file, content, call.principal), headers=_etag_header(content.tag)
        )

    def _require_file(self) -> ConfigFile:
        if self._file is None:
            raise NotFound(
                "this process has no config file: set context_config, or save the config as a "
                "context.config.v1 breadcrumb"
            )
        return self._file

    async def _file_view(
        self, file: ConfigFile, content: FileContent, principal: Principal
    ) -> dict[str, Any]:
        locked = file.locked
        if not locked and not policy.may_edit_config_file(principal):
            locked = "writing the file requires the role 'curator'"
        document: dict[str, Any] = {"name": file.path.name, "etag": content.tag, "writable": not locked}
        if locked:
            document["locked"] = locked
        else:
            document["path"] = str(file.path)
        if content.raw is None:
            complaint = {"line": 1, "column": 1, "where": "", "message": content.problem}
            return document | {"configs": [], "complaints": [complaint]}
        checked = await _check_result(content.raw)
        try:
            document["text"] = content.raw.decode("utf-8")
        except UnicodeDecodeError:
            pass  # reported in the complaints
        return document | {"configs": checked["configs"], "complaints": checked["complaints"]}

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="listContextConfigs",
                method="GET",
                path="/contexts/configs",
                group="Contexts",
                summary="List context configs",
                description=(
                    "Returns the config file, if this process has one, the `context.config.v1` breadcrumbs of this "
                    "owner, and the configs in force. A breadcrumb replaces the config of the file for the same "
                    "consumer."
                ),
                handle=self.configs,
                successes=(SuccessReply(200, "The configs.", ConfigsView),),
            ),
            Operation(
                id="checkContextConfig",
                method="POST",
                path="/contexts/check",
                group="Contexts",
                summary="Check a context config",
                description="Returns all errors with their line and column. Nothing is written.",
                handle=check_config_text,
                uses_store="no",
                body=Body(ConfigText, {"text": '{"consumer_id": "default-chat-assistant"}'}),
                successes=(SuccessReply(200, "The result of the check.", CheckedView),),
            ),
            Operation(
                id="contextConfigSchema",
                method="GET",
                path="/contexts/config/schema",
                group="Contexts",
                summary="Get the JSON Schema of a context config",
                description="Editors use it for completion and validation.",
                handle=config_schema,
                uses_store="no",
                successes=(SuccessReply(200, "The schema.", dict[str, Any]),),
            ),
            Operation(
                id="readContextConfig",
                method="GET",
                path="/contexts/config",
                group="Contexts",
                summary="Get the config file of this server",
                handle=self.file,
                uses_store="no",
                successes=(SuccessReply(200, "The file.", FileView, headers=_ETAG),),
                may_fail=(NOT_FOUND,),
            ),
            Operation(
                id="replaceContextConfig",
                method="PUT",
                path="/contexts/config",
                group="Contexts",
                summary="Replace the config file of this server",
                description=(
                    "The file can be replaced only if the setting `context_config` contains its path, and if one "
                    "owner alone uses the server. The text is stored unchanged and takes effect immediately. An "
                    "invalid text is rejected with the line and column of every error, and nothing is changed. "
                    "Without If-Match the last write wins."
                ),
                handle=self.replace_file,
                uses_store="no",
                parameters=(
                    Parameter(
                        "If-Match",
                        "header",
                        "Replace the file only if it still has this ETag. `*` matches any.",
                    ),
                ),
                body=Body(ConfigText, _EXAMPLE),
                successes=(SuccessReply(200, "The new file.", FileView, headers=_ETAG),),
                may_fail=(NOT_FOUND, VERSION_MISMATCH),
            ),
        )


async def check_config_text(call: HttpCall) -> Reply:
    return Reply.json(await _check_result(await _read_text(call)))


async def config_schema(call: HttpCall) -> Reply:
    return Reply.json(_SCHEMA, headers=[(b"cache-control", b"max-age=3600")])


async def _read_text(call: HttpCall) -> str:
    return parse_body(ConfigText, await call.json(), error="send the config as a string in `text`").text


async def _check_result(text: str | bytes) -> dict[str, Any]:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    # Parse in a thread. A text can have a megabyte, and the parser reads it character by character.
    configs, complaints = await anyio.to_thread.run_sync(_parse_or_complain, raw)
    return {
        "ok": not complaints,
        "configs": [_consumer_document(config) for config in configs],
        "complaints": [
            {"line": found.line, "column": found.column, "where": found.where, "message": found.message}
            for found in complaints
        ],
    }


def _parse_or_complain(raw: bytes) -> tuple[tuple[ContextConfig, ...], list[ConfigComplaint]]:
    try:
        return parse_configs(raw), []
    except ConfigError as error:
        return (), error.complaints


def _consumer_document(config: ContextConfig) -> dict[str, Any]:
    return {"consumer_id": config.consumer_id, "digest": config.digest}


def _origin_fields(own: PostedDefinition[ContextConfig] | None) -> dict[str, Any]:
    return {"origin": "file"} if own is None else {"origin": "breadcrumb", "id": str(own.crumb.id)}


def _posted_config_document(own: PostedDefinition[ContextConfig]) -> dict[str, Any]:
    crumb = own.crumb
    view: dict[str, Any] = {
        "id": str(crumb.id),
        "version": crumb.version,
        "updated_at": crumb.updated_at,
        "title": crumb.title,
        "config": crumb.context,
        "holds": own.in_force,
    }
    consumer = crumb.context.get("consumer_id")
    if isinstance(consumer, str):
        view["consumer_id"] = consumer
    if own.problem:
        view["problem"] = own.problem
    return view


def _etag_header(tag: str) -> list[Header]:
    return [(b"etag", f'"{tag}"'.encode())]


def _expected_etags(header: str | None) -> set[str] | None:
    """Return the ETags in If-Match, or None if every ETag is accepted."""
    if header is None or header.strip() == "*":
        return None
    return {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}


_ETAG: Final = {"ETag": "Hash of the content, for If-Match."}
_SCHEMA: Final = json_schema()
_EXAMPLE: Final = {
    "text": '{"consumer_id": "default-chat-assistant",\n'
    ' "update_triggers": [{"schema_name": "user.message.v1"}],\n'
    ' "sources": [{"key": "conversation", "schema_name": "user.message.v1"}]}\n'
}
