"""The breadcrumb and the requests that create and change it.

A client sends a `BreadcrumbCreate` or a `BreadcrumbUpdate`. Both are validated and become a `Content`, the part of a
breadcrumb that its writer decides. The store adds id, version, times and agents, and returns a `Breadcrumb`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.cached import cached_attribute
from breadcrumbs.runtime.breadcrumb.images import ATTACHED_IMAGES, describe_images
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.session_rule import (
    CONTROL_CHARACTERS,
    MAX_TAG_LENGTH,
    MAX_TAGS,
    SESSION,
    apply_session_rule,
    check_name,
    session_of,
    users_of,
)
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.breadcrumb.ttl import NEVER, Expiry, TtlConfig, TtlType, plan_expiry
from breadcrumbs.runtime.breadcrumb.validation import to_complaints
from breadcrumbs.runtime.errors import InvalidInput, SessionConflict
from breadcrumbs.runtime.hints.hints import check_hints
from breadcrumbs.runtime.schema_names import HIDDEN_KEYS, ROOT

MAX_TITLE_LENGTH: Final = 500
LARGE_BYTES: Final = 16 << 10
"""Size in bytes above which a document is not kept parsed while a page is built."""

Visibility = Literal["public", "team", "private"]
Sensitivity = Literal["low", "pii", "secret"]

_BodyModel = TypeVar("_BodyModel", bound=BaseModel)


def _lower_text(value: object) -> object:
    # RCRT's server writes "Public", and its SDK writes "public".
    return value.lower() if isinstance(value, str) else value


def _check_one_line(text: str) -> str:
    if not text.isprintable() and CONTROL_CHARACTERS.search(text):
        raise ValueError("must not contain control characters or line breaks")
    return text


Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH), AfterValidator(check_name)]
SchemaName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(check_name)]
Title = Annotated[str, Field(max_length=MAX_TITLE_LENGTH), AfterValidator(_check_one_line)]


class BreadcrumbCreate(BaseModel):
    """A request to create a breadcrumb."""

    model_config = ConfigDict(extra="forbid")

    schema_name: SchemaName | None = Field(None, examples=["user.message.v1"])
    title: Title = Field("", examples=["Hello"])
    description: Annotated[str, Field(max_length=10_000)] | None = None
    semantic_version: Annotated[str, Field(max_length=100), AfterValidator(check_name)] | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = Field(
        [], examples=[["user:message", "session:abc"]]
    )
    context: dict[str, Any] = Field({}, examples=[{"message": "Hello!", "session_id": "abc"}])
    visibility: Annotated[Visibility, BeforeValidator(_lower_text)] | None = None
    sensitivity: Annotated[Sensitivity, BeforeValidator(_lower_text)] | None = None
    llm_hints: dict[str, Any] | None = None
    ttl: AwareDatetime | None = Field(None, description="Expiry time (RFC 3339)")
    ttl_type: TtlType | None = None
    ttl_config: TtlConfig | None = None

    @classmethod
    def parse(cls, document: object) -> Self:
        """Validate a JSON document. Raises InvalidInput."""
        return _validate_model(cls, document)


class BreadcrumbUpdate(BaseModel):
    """A request to change a breadcrumb.

    Each given field replaces the old value, `context` and `tags` as a whole. Null removes the value.
    """

    model_config = ConfigDict(extra="forbid")

    schema_name: SchemaName | None = None
    title: Title | None = None
    description: Annotated[str, Field(max_length=10_000)] | None = None
    semantic_version: Annotated[str, Field(max_length=100), AfterValidator(check_name)] | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] | None = None
    context: dict[str, Any] | None = None
    visibility: Annotated[Visibility, BeforeValidator(_lower_text)] | None = None
    sensitivity: Annotated[Sensitivity, BeforeValidator(_lower_text)] | None = None
    llm_hints: dict[str, Any] | None = None
    ttl: AwareDatetime | None = None
    ttl_type: TtlType | None = None
    ttl_config: TtlConfig | None = None

    @classmethod
    def parse(cls, document: object) -> Self:
        """Validate a JSON document. Raises InvalidInput, also if it contains no field."""
        change = _validate_model(cls, document)
        if not change.model_fields_set:
            raise InvalidInput("the change is empty: send at least one field to replace", where="body")
        return change


def _validate_model(model: type[_BodyModel], document: object) -> _BodyModel:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidInput("the breadcrumb is invalid", complaints=to_complaints(error)) from None


class Content(NamedTuple):
    """The part of a breadcrumb that its writer decides, after validation and the session rule."""

    schema_name: str
    """Empty if the writer gave none."""
    session_id: str | None
    tags: tuple[str, ...]
    json: bytes
    """The stored bytes. Reads return them unchanged."""
    document: dict[str, Any]
    """The parsed form of `json`. Must not be modified."""
    expiry: Expiry


def build_content(new: BreadcrumbCreate, *, default_ttl: Expiry = NEVER) -> Content:
    """Apply the session rule, the TTL rule and the hints check, and encode the result.

    `default_ttl` applies if the breadcrumb has no TTL fields.
    """
    tags, context, session = apply_session_rule(list(dict.fromkeys(new.tags)), new.context)
    _check_hints(new.llm_hints)
    uses_default = new.ttl_type is None and new.ttl is None and new.ttl_config is None
    expiry = default_ttl if uses_default else plan_expiry(new.ttl_type, new.ttl, new.ttl_config)
    document: dict[str, Any] = {"title": new.title, "tags": tags, "context": context}
    if new.schema_name is not None:
        document["schema_name"] = new.schema_name
    given = new.__dict__
    for field in ("description", "semantic_version", "visibility", "sensitivity", "llm_hints", "ttl_type"):
        value = given[field]
        if value is not None:
            document[field] = value
    if new.ttl is not None:
        document["ttl"] = times.to_text(times.from_datetime(new.ttl))
    if new.ttl_config is not None:
        document["ttl_config"] = new.ttl_config.model_dump(mode="json", exclude_unset=True)
    if not uses_default:
        document["ttl_source"] = "explicit"
    elif default_ttl is not NEVER:
        document["ttl_source"] = "schema-default"
    try:
        json = orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InvalidInput(f"the content cannot be encoded as JSON: {error}", where="context") from None
    return Content(new.schema_name or "", session, tuple(tags), json, document, expiry)


def _check_hints(hints: dict[str, Any] | None) -> None:
    if hints is not None and (found := check_hints(hints)):
        raise InvalidInput("llm_hints are invalid", complaints=found)


@dataclass(frozen=True, init=False)
class Breadcrumb:
    """One version of a breadcrumb, as stored.

    Readers of the same version share one object (see store/record.py). It must not be modified.
    """

    id: UUID
    owner_id: UUID
    version: int
    """Starts at 1. Only the store increments it."""
    created: int
    """Microseconds since 1970 by the server's clock, strictly increasing within a lane."""
    updated: int
    """Microseconds since 1970."""
    expires: int
    """Microseconds since 1970. 0: no time limit."""
    max_reads: int
    """Reads by id until the breadcrumb expires. 0: no limit. Negative: `expires` must have passed as well."""
    created_by: UUID | None
    updated_by: UUID | None
    json: bytes
    """The content as stored."""

    def __init__(  # noqa: PLR0913 one parameter per field, as dataclass would generate
        self,
        id: UUID,
        owner_id: UUID,
        version: int,
        created: int,
        updated: int,
        expires: int,
        max_reads: int,
        created_by: UUID | None,
        updated_by: UUID | None,
        json: bytes,
    ) -> None:
        # The generated method of a frozen class takes three times as long. Every read of a breadcrumb calls it.
        fields = self.__dict__
        fields["id"] = id
        fields["owner_id"] = owner_id
        fields["version"] = version
        fields["created"] = created
        fields["updated"] = updated
        fields["expires"] = expires
        fields["max_reads"] = max_reads
        fields["created_by"] = created_by
        fields["updated_by"] = updated_by
        fields["json"] = json

    def with_document(self, document: dict[str, Any]) -> Self:
        """Set the parsed JSON, so that it is not parsed again. Return the breadcrumb itself."""
        self.__dict__["document"] = document
        return self

    def copy(self) -> Breadcrumb:
        """Return a copy without the parsed JSON and the values that are computed from it."""
        return Breadcrumb(
            self.id,
            self.owner_id,
            self.version,
            self.created,
            self.updated,
            self.expires,
            self.max_reads,
            self.created_by,
            self.updated_by,
            self.json,
        )

    def without_parsed_json(self) -> Breadcrumb:
        """Return the breadcrumb without its cached parsed JSON if that is large."""
        return self.copy() if len(self.json) > LARGE_BYTES else self

    def without_context(self) -> Breadcrumb:
        """Return the breadcrumb with an empty context if it is large."""
        if len(self.json) <= LARGE_BYTES:
            return self
        return replace(self, json=orjson.dumps({**self.document, "context": {}}))

    @cached_attribute
    def document(self) -> dict[str, Any]:
        """The parsed content. Must not be modified."""
        document: dict[str, Any] = orjson.loads(self.json)
        return document

    @cached_attribute
    def schema_name(self) -> str | None:
        return self.document.get("schema_name")

    @property
    def title(self) -> str:
        return str(self.document["title"])

    @cached_attribute
    def tags(self) -> list[str]:
        tags: list[str] = self.document["tags"]
        return tags

    @cached_attribute
    def context(self) -> dict[str, Any]:
        context: dict[str, Any] = self.document["context"]
        return context

    @cached_attribute
    def visible_context(self) -> dict[str, Any]:
        """The context without the keys that models never see. Cached, because each turn shows its conversation."""
        shown = {key: value for key, value in self.context.items() if key not in HIDDEN_KEYS}
        if ATTACHED_IMAGES in shown:
            shown[ATTACHED_IMAGES] = describe_images(shown[ATTACHED_IMAGES])
        return shown

    @cached_attribute
    def visible_text(self) -> str:
        """The text that models see."""
        return plain_text(self.visible_context)

    @cached_attribute
    def own_hints(self) -> Any:
        """The hints of the breadcrumb itself. Older RCRT data has them in the context."""
        return self.document.get("llm_hints") or self.context.get("llm_hints")

    @cached_attribute
    def users(self) -> list[str]:
        """The users that its tags name. Must not be modified."""
        return users_of(self.tags)

    @cached_attribute
    def session_id(self) -> str | None:
        return session_of(self.tags)

    @cached_attribute
    def visibility(self) -> str:
        return str(self.document.get("visibility", "team"))

    @cached_attribute
    def sensitivity(self) -> str:
        return str(self.document.get("sensitivity", "low"))

    @cached_attribute
    def is_withheld(self) -> bool:
        """Whether it is private or secret, so that models never see it."""
        return self.sensitivity == "secret" or self.visibility == "private"

    @cached_attribute
    def id_text(self) -> str:
        return str(self.id)

    @cached_attribute
    def position(self) -> tuple[int, str]:
        """Sort key by time."""
        return self.created, self.id_text

    @cached_attribute
    def created_at(self) -> str:
        return times.to_text(self.created)

    @property
    def updated_at(self) -> str:
        return times.to_text(self.updated)

    def apply_change(self, change: BreadcrumbUpdate, *, merge_context: bool = False) -> BreadcrumbCreate:
        """Return the complete content after a change. The session stays the same.

        With `merge_context` the new context is a merge patch, otherwise it replaces the old one.
        """
        fields = dict(self.document)
        fields.pop("ttl_source", None)
        given = change.model_dump(include=change.model_fields_set, exclude={"context", "ttl_config"})
        if given.keys() & {"ttl", "ttl_type"} or "ttl_config" in change.model_fields_set:
            for field in ("ttl", "ttl_type", "ttl_config"):
                fields.pop(field, None)
        for field, value in given.items():
            if value is None:
                fields.pop(field, None)  # null removes the field, as in RFC 7396
            else:
                fields[field] = value
        if change.ttl_config is not None:
            fields["ttl_config"] = change.ttl_config
        if "context" in change.model_fields_set:
            context = change.context or {}
            fields["context"] = merge_patch(self.context, context) if merge_context else dict(context)
        fields.setdefault("title", "")
        fields.setdefault("tags", [])
        self._keep_session(fields)
        self._keep_root(fields)
        return BreadcrumbCreate.parse(fields)

    def _keep_session(self, fields: dict[str, Any]) -> None:
        session = self.session_id
        stated = fields["context"].get("session_id")
        for claimed in (session_of(fields["tags"]), stated):
            if claimed is not None and claimed != session:
                raise SessionConflict(
                    f"a breadcrumb cannot leave its session ({session or 'none'}): create a new one in {claimed!r}",
                    where="tags",
                )
        if session is not None:
            if SESSION + session not in fields["tags"]:
                fields["tags"] = [*fields["tags"], SESSION + session]
            fields["context"] = {**fields["context"], "session_id": session}

    def _keep_root(self, fields: dict[str, Any]) -> None:
        """Keep the root that the runtime wrote. A change cannot attach the breadcrumb to another chain."""
        if self.created_by is None and fields["context"].get(ROOT) != (root := self.context.get(ROOT)):
            others = {key: value for key, value in fields["context"].items() if key != ROOT}
            fields["context"] = others if root is None else {**others, ROOT: root}

    def full_view(self) -> dict[str, Any]:
        """Return all fields, as RCRT's `/full` route does."""
        raw_context = canonical(self.context)
        view = {
            "id": str(self.id),
            "owner_id": str(self.owner_id),
            "version": self.version,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            **self.document,
            "visibility": self.visibility,
            "sensitivity": self.sensitivity,
            "checksum": sha256(raw_context).hexdigest(),
            "size_bytes": len(raw_context),
        }
        if self.created_by is not None:
            view["created_by"] = str(self.created_by)
        if self.updated_by is not None:
            view["updated_by"] = str(self.updated_by)
        if self.expires:
            view["expires_at"] = times.to_text(self.expires)
        return view

    def list_item(self, *, include_context: bool = False) -> dict[str, Any]:
        """Return the fields that a listing shows."""
        item: dict[str, Any] = {"id": str(self.id), "title": self.title}
        if self.schema_name is not None:
            item["schema_name"] = self.schema_name
        item |= {
            "tags": self.tags,
            "version": self.version,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }
        if include_context:
            item["context"] = self.context
        return item


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396): merge objects, remove on null, replace anything else."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def parse_time(text: str, *, where: str) -> int:
    """Parse an RFC 3339 time of a query or an import. Return microseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(
            f"{where} must be a time with a time zone, such as 2026-11-16T09:00:00Z", where=where
        )
    microseconds = times.from_datetime(moment)
    if not 0 <= microseconds <= times.LATEST:
        raise InvalidInput(f"{where} must be a time from 1970 to 2255", where=where)
    return microseconds
