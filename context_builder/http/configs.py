"""The context configs over HTTP: which hold, what is wrong with a text, and an edit of the server's file.

Configs that are breadcrumbs are written like every other breadcrumb. The file is the server's: it holds for
everybody, so it is only written where it is somebody's own (`ConfigFile` says so).
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
    """One thing that is wrong in a config."""

    line: LineOrColumn
    column: LineOrColumn
    where: Annotated[str, Field(description="Path in the document; empty: the text is no JSON")]
    message: str


@_closed
class ConsumerView(TypedDict):
    """A config that can be used."""

    consumer_id: str
    digest: Annotated[str, Field(description="Names this very config in the contexts made by it")]


@_closed
class CheckedView(TypedDict):
    """What a text comes to."""

    ok: bool
    configs: list[ConsumerView]
    complaints: Annotated[list[ComplaintView], Field(description="In the order of the text")]


@_closed
class FileView(TypedDict):
    """The config file of this server."""

    name: str
    path: NotRequired[Annotated[str, Field(description="For those who may write it")]]
    text: NotRequired[Annotated[str, Field(description="Missing where it cannot be read")]]
    etag: Annotated[str, Field(description="For If-Match")]
    writable: Annotated[bool, Field(description="With this token, over PUT /contexts/config")]
    locked: NotRequired[Annotated[str, Field(description="Why it is not")]]
    configs: list[ConsumerView]
    complaints: Annotated[
        list[ComplaintView], Field(description="If there are any, the last good config stays in force")
    ]


@_closed
class OwnView(TypedDict):
    """A `context.config.v1` breadcrumb."""

    id: Id
    version: VersionNumber
    updated_at: Time
    title: str
    consumer_id: NotRequired[str]
    config: Annotated[dict[str, Any], Field(description="Its context")]
    holds: Annotated[bool, Field(description="It is the last that was written for its consumer")]
    problem: NotRequired[Annotated[str, Field(description="Why it cannot be used")]]


@_closed
class HoldingView(ConsumerView):
    """A config that is in force for this owner."""

    origin: Literal["file", "breadcrumb"]
    id: NotRequired[Id]


@_closed
class ConfigsView(TypedDict):
    """Every config that this owner has."""

    file: NotRequired[Annotated[FileView, Field(description="Missing where this process knows of none")]]
    breadcrumbs: Annotated[list[OwnView], Field(description="The one that was written last comes first")]
    in_force: Annotated[list[HoldingView], Field(description="As far as this process knows")]


class ConfigText(BaseModel):
    """A config as it stands in a file: one config, or a list of them."""

    model_config = ConfigDict(extra="forbid")

    text: str


class ConfigRoutes:
    """The operations on the configs of one server."""

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
        file = self._known_file()
        content = await anyio.to_thread.run_sync(file.read)
        return Reply.json(
            await self._file_view(file, content, call.principal), headers=_etag_header(content.tag)
        )

    async def replace_file(self, call: HttpCall) -> Reply:
        file = self._known_file()
        file.check_unlocked()
        text = await _read_text(call)
        checked = await _check_result(text)
        if checked["complaints"]:
            count = len(checked["complaints"])
            things = "one thing is" if count == 1 else f"{count} things are"
            return problem(
                INVALID_INPUT,
                f"{things} wrong with this config, and nothing was changed",
                members={"errors": checked["complaints"]},
            )
        made_on = _expected_etags(call.header(b"if-match"))
        try:
            content = await anyio.to_thread.run_sync(
                partial(file.replace, text.encode("utf-8"), made_on=made_on)
            )
        except ChangedMeanwhile as error:
            raise HttpProblem(VERSION_MISMATCH, str(error), headers=_etag_header(error.tag)) from None
        self._configs.reload()
        return Reply.json(
            await self._file_view(file, content, call.principal), headers=_etag_header(content.tag)
        )

    def _known_file(self) -> ConfigFile:
        if self._file is None:
            raise NotFound(
                "this process builds no contexts and was told of no config file (the setting "
                "context_config): save the config as a context.config.v1 breadcrumb"
            )
        return self._file

    async def _file_view(
        self, file: ConfigFile, content: FileContent, principal: Principal
    ) -> dict[str, Any]:
        locked = file.locked
        if not locked and not policy.may_edit_config_file(principal):
            locked = "writing it needs the role 'curator'"
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
            pass  # the complaints say so
        return document | {"configs": checked["configs"], "complaints": checked["complaints"]}

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="listContextConfigs",
                method="GET",
                path="/contexts/configs",
                group="Contexts",
                summary="Which context configs there are, and which hold",
                description=(
                    "The server's file, if this process knows it, and the `context.config.v1` breadcrumbs of "
                    "this owner, which take the place of the file's configs for the same consumer."
                ),
                handle=self.configs,
                successes=(SuccessReply(200, "All of them.", ConfigsView),),
            ),
            Operation(
                id="checkContextConfig",
                method="POST",
                path="/contexts/check",
                group="Contexts",
                summary="What is wrong with a context config",
                description="Line by line, with what was expected. Nothing is written.",
                handle=check_config_text,
                uses_store="no",
                body=Body(ConfigText, {"text": '{"consumer_id": "default-chat-assistant"}'}),
                successes=(SuccessReply(200, "What is wrong, if anything is.", CheckedView),),
            ),
            Operation(
                id="contextConfigSchema",
                method="GET",
                path="/contexts/config/schema",
                group="Contexts",
                summary="The JSON Schema of a context config",
                description="For editors: completion and checking while one types.",
                handle=config_schema,
                uses_store="no",
                successes=(SuccessReply(200, "The schema.", dict[str, Any]),),
            ),
            Operation(
                id="readContextConfig",
                method="GET",
                path="/contexts/config",
                group="Contexts",
                summary="The config file of this server",
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
                    "Only a file that the setting `context_config` names, and that belongs to one owner "
                    "alone, can be written. The text is kept as it is. It holds at once. One that cannot be "
                    "used is refused with every complaint at its line, and nothing changes. Without If-Match "
                    "the last writer wins."
                ),
                handle=self.replace_file,
                uses_store="no",
                parameters=(
                    Parameter(
                        "If-Match", "header", "Only if the file is still the one with this ETag, or *."
                    ),
                ),
                body=Body(ConfigText, _EXAMPLE),
                successes=(SuccessReply(200, "The file as it is now.", FileView, headers=_ETAG),),
                may_fail=(NOT_FOUND, VERSION_MISMATCH),
            ),
        )


async def check_config_text(call: HttpCall) -> Reply:
    return Reply.json(await _check_result(await _read_text(call)))


async def config_schema(call: HttpCall) -> Reply:
    return Reply.json(_SCHEMA, headers=[(b"cache-control", b"max-age=3600")])


async def _read_text(call: HttpCall) -> str:
    return parse_body(ConfigText, await call.json(), error="send the config as text").text


async def _check_result(text: str | bytes) -> dict[str, Any]:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    # Up to a megabyte, read character by character: others need not wait for that.
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
    """Return the ETags that If-Match names, or None for any."""
    if header is None or header.strip() == "*":
        return None
    return {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}


_ETAG: Final = {"ETag": "Names this very content, for If-Match."}
_SCHEMA: Final = json_schema()
_EXAMPLE: Final = {
    "text": '{"consumer_id": "default-chat-assistant",\n'
    ' "update_triggers": [{"schema_name": "user.message.v1"}],\n'
    ' "sources": [{"key": "conversation", "schema_name": "user.message.v1"}]}\n'
}
