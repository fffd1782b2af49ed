"""HTTP operations on context configs: list them, check a text, replace the config file.

Configs that are breadcrumbs are written like all other breadcrumbs. The config file applies to all owners, so it can
be replaced only if one owner alone uses the server. `ConfigFile.locked` states the reason if it cannot.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NotRequired

import anyio.to_thread
import orjson
from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.config import ContextConfig, json_schema
from breadcrumbs.context_builder.config_checks import ConfigComplaint, ConfigError, parse_configs
from breadcrumbs.context_builder.config_file import ChangedMeanwhile, ConfigFile, FileContent
from breadcrumbs.context_builder.config_warnings import NOTHING_KNOWN, KnownNames, locate_warnings
from breadcrumbs.context_builder.configs_in_force import TEXT_KEY, ConfigsInForce, own_configs
from breadcrumbs.context_builder.http.config_history import ConfigHistoryRoutes
from breadcrumbs.context_builder.known_names import LoadConsumers, load_known_names, load_values
from breadcrumbs.context_builder.published_configs import PublishedConfig, published_configs
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import NotFound, StoreError
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.conditions import IF_NONE_MATCH, client_has
from breadcrumbs.runtime.http.api.operations import Body, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import (
    INVALID_INPUT,
    NOT_FOUND,
    VERSION_MISMATCH,
    HttpProblem,
    problem,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id, Time, VersionNumber
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
    warnings: Annotated[
        list[ComplaintView],
        Field(description="Settings of a valid text that have no effect, in the order of the text."),
    ]


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
    in_force_text: NotRequired[
        Annotated[
            str,
            Field(description="The last valid text, which is in force. Present only if the file has errors."),
        ]
    ]
    published: NotRequired[
        Annotated[
            bool,
            Field(description="This process has no config file. The context builders have published theirs."),
        ]
    ]


@_closed
class BuilderView(TypedDict):
    """A config file that running context builders use."""

    name: str
    etag: Annotated[str, Field(description="Hash of the text in force. Equal to the etag of an equal file.")]
    builders: Annotated[Count, Field(description="Number of context builders that use it.")]
    ok: Annotated[bool, Field(description="False if the file of these builders has errors now.")]


@_closed
class ValuesView(TypedDict):
    """Values for the completion of configs."""

    schemas: list[str]
    tags: Annotated[list[str], Field(description="Tags of the newest breadcrumbs, without session tags.")]
    consumers: Annotated[list[str], Field(description="Consumers whose contexts an agent reads.")]


@_closed
class OwnView(TypedDict):
    """A `context.config.v1` breadcrumb."""

    id: Id
    version: VersionNumber
    updated_at: Time
    title: str
    consumer_id: NotRequired[str]
    config: Annotated[dict[str, Any], Field(description="The context of the breadcrumb, without its text.")]
    text: NotRequired[
        Annotated[
            str,
            Field(
                description="The text that an editor stored in `$text`. Missing if the config has changed since."
            ),
        ]
    ]
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

    file: NotRequired[
        Annotated[
            FileView,
            Field(
                description="The config file of this process, or else the one that the context builders have "
                "published. Missing if there is none."
            ),
        ]
    ]
    builders: Annotated[
        list[BuilderView],
        Field(description="Config files of the running context builders. Equal ones are counted together."),
    ]
    breadcrumbs: Annotated[list[OwnView], Field(description="Most recently written first.")]
    in_force: Annotated[list[HoldingView], Field(description="The configs that are in force now.")]


class ConfigText(BaseModel):
    """The text of a config file: one config, or a list of them."""

    model_config = ConfigDict(extra="forbid")

    text: str


class ConfigRoutes:
    """Operations on the configs of one server."""

    def __init__(
        self, configs: ConfigsInForce, file: ConfigFile | None, load_consumers: LoadConsumers | None = None
    ) -> None:
        self._configs = configs
        self._file = file
        self._load_consumers = load_consumers

    async def configs(self, call: HttpCall) -> Reply:
        principal, store = call.principal, call.services.store
        posted, builders = await gather(
            own_configs(store, principal.owner_id), published_configs(store, ContextBuilder.kind)
        )
        own = [entry for entry in posted if policy.may_read(principal, entry.crumb)]
        holding = {
            entry.definition.consumer_id: entry for entry in own if entry.in_force and entry.definition
        }
        published = builders[0][0] if builders else None
        shared = None if self._configs.valid_content or published is None else _configs_in(published)
        self._configs.invalidate(principal.owner_id)
        document: dict[str, Any] = {
            "breadcrumbs": [_posted_config_document(entry) for entry in own],
            "builders": [_builder_document(config, count) for config, count in builders],
            "in_force": [
                _consumer_document(config) | _origin_fields(holding.get(config.consumer_id))
                for config in await self._configs.get(principal.owner_id, shared)
            ],
        }
        if self._file is not None:
            content = await anyio.to_thread.run_sync(self._file.read)
            document["file"] = await self._file_view(self._file, content, principal, published)
        elif published is not None:
            document["file"] = _published_view(published)
        reply = Reply.json(document)
        etag = b'"%s"' % sha256(reply.body).hexdigest()[:32].encode()
        if client_has(call, etag):
            return Reply(304, headers=[(b"etag", etag)])
        reply.headers.append((b"etag", etag))
        return reply

    async def values(self, call: HttpCall) -> Reply:
        principal = call.principal
        found = await load_values(
            call.services.store, principal.owner_id, self._load_consumers, partial(policy.may_read, principal)
        )
        return Reply.json({"schemas": found.schemas, "tags": found.tags, "consumers": found.consumers})

    async def check(self, call: HttpCall) -> Reply:
        text = await _read_text(call)
        return Reply.json(await _check_result(text, await self._known_names(call)))

    async def _known_names(self, call: HttpCall) -> KnownNames:
        """Return the names in the store. A narrowed token must not learn which names other sessions use."""
        if call.principal.is_narrowed:
            return NOTHING_KNOWN
        try:
            return await load_known_names(call.services.store, call.principal.owner_id, self._load_consumers)
        except StoreError:
            return NOTHING_KNOWN  # the text can still be checked

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
        checked = await _check_result(text, NOTHING_KNOWN)
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
        self,
        file: ConfigFile,
        content: FileContent,
        principal: Principal,
        published: PublishedConfig | None = None,
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
            return document | {"configs": [], "complaints": [complaint]} | self._text_in_force(published)
        checked = await _check_result(content.raw, NOTHING_KNOWN)
        try:
            document["text"] = content.raw.decode("utf-8")
        except UnicodeDecodeError:
            pass  # reported in the complaints
        if checked["complaints"]:
            document |= self._text_in_force(published)
        return document | {"configs": checked["configs"], "complaints": checked["complaints"]}

    def _text_in_force(self, published: PublishedConfig | None) -> dict[str, Any]:
        """Return the last valid text of this process, or else of the context builders."""
        if self._configs.valid_content:
            return {"in_force_text": self._configs.valid_content.decode("utf-8")}
        if published is not None and published.text:
            return {"in_force_text": published.text}
        return {}

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
                    "Returns the config file of this process or of the context builders, the `context.config.v1` "
                    "breadcrumbs of this owner, and the configs in force. A breadcrumb replaces the config of the file "
                    "for the same consumer. To notice changes, send the ETag as If-None-Match every few seconds."
                ),
                handle=self.configs,
                parameters=(IF_NONE_MATCH,),
                successes=(
                    SuccessReply(200, "The configs.", ConfigsView, headers={"ETag": "Hash of the reply."}),
                    SuccessReply(304, "Not modified.", headers={"ETag": "Hash of the reply."}),
                ),
            ),
            Operation(
                id="checkContextConfig",
                method="POST",
                path="/contexts/check",
                group="Contexts",
                summary="Check a context config",
                description=(
                    "Returns all errors with their line and column, or the settings of a valid text that have no "
                    "effect. Nothing is written."
                ),
                handle=self.check,
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
                id="contextConfigValues",
                method="GET",
                path="/contexts/config/values",
                group="Contexts",
                summary="List values for context configs",
                description="Returns schemas, tags and consumers that exist. Editors offer them for completion.",
                handle=self.values,
                successes=(SuccessReply(200, "The values.", ValuesView),),
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
            *ConfigHistoryRoutes(self._configs, self._file).operations,
        )


async def config_schema(call: HttpCall) -> Reply:
    return Reply.json(_SCHEMA, headers=[(b"cache-control", b"max-age=3600")])


async def _read_text(call: HttpCall) -> str:
    return parse_body(ConfigText, await call.json(), error="send the config as a string in `text`").text


async def _check_result(text: str | bytes, known: KnownNames) -> dict[str, Any]:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    # Parse in a thread. A text can have a megabyte, and the parser reads it character by character.
    configs, complaints, warnings = await anyio.to_thread.run_sync(_parse_or_complain, raw, known)
    return {
        "ok": not complaints,
        "configs": [_consumer_document(config) for config in configs],
        "complaints": [_complaint_document(found) for found in complaints],
        "warnings": [_complaint_document(found) for found in warnings],
    }


_Parsed = tuple[tuple[ContextConfig, ...], list[ConfigComplaint], list[ConfigComplaint]]


def _parse_or_complain(raw: bytes, known: KnownNames) -> _Parsed:
    """Return the configs, the errors and the warnings of a text."""
    try:
        configs = parse_configs(raw)
    except ConfigError as error:
        return (), error.complaints, []
    return configs, [], locate_warnings(raw, configs, known)


def _complaint_document(found: ConfigComplaint) -> dict[str, Any]:
    return {"line": found.line, "column": found.column, "where": found.where, "message": found.message}


def _configs_in(published: PublishedConfig) -> tuple[ContextConfig, ...]:
    try:
        return parse_configs((published.text or "").encode())
    except ConfigError:  # a builder of another version understands this config
        return ()


def _published_view(published: PublishedConfig) -> dict[str, Any]:
    """Return a config file of context builders that run in other processes."""
    document: dict[str, Any] = {
        "name": published.name,
        "etag": published.tag,
        "writable": False,
        "locked": "the context builders run in other processes and read this file",
        "published": True,
        "configs": [_consumer_document(config) for config in _configs_in(published)],
        "complaints": [_complaint_document(found) for found in published.complaints],
    }
    if published.text is None:
        return document
    # The text of an invalid file is not published, only the one that is in force.
    return (
        document
        | {"text": published.text}
        | ({"in_force_text": published.text} if published.complaints else {})
    )


def _builder_document(published: PublishedConfig, count: int) -> dict[str, Any]:
    return {
        "name": published.name,
        "etag": published.tag,
        "builders": count,
        "ok": not published.complaints,
    }


def _consumer_document(config: ContextConfig) -> dict[str, Any]:
    return {"consumer_id": config.consumer_id, "digest": config.digest}


def _origin_fields(own: PostedDefinition[ContextConfig] | None) -> dict[str, Any]:
    return {"origin": "file"} if own is None else {"origin": "breadcrumb", "id": str(own.crumb.id)}


def _posted_config_document(own: PostedDefinition[ContextConfig]) -> dict[str, Any]:
    crumb = own.crumb
    config = {key: value for key, value in crumb.context.items() if key != TEXT_KEY}
    view: dict[str, Any] = {
        "id": str(crumb.id),
        "version": crumb.version,
        "updated_at": crumb.updated_at,
        "title": crumb.title,
        "config": config,
        "holds": own.in_force,
    }
    if (text := _unchanged_text(crumb.context.get(TEXT_KEY), config)) is not None:
        view["text"] = text
    consumer = crumb.context.get("consumer_id")
    if isinstance(consumer, str):
        view["consumer_id"] = consumer
    if own.problem:
        view["problem"] = own.problem
    return view


def _unchanged_text(text: Any, config: dict[str, Any]) -> str | None:
    """Return the stored text of a config, or None if it has another content than the config."""
    try:
        return text if isinstance(text, str) and orjson.loads(text) == config else None
    except orjson.JSONDecodeError:
        return None


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
