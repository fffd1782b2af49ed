"""Breadcrumbs: post, read, change, remove, list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime import clock
from breadcrumbs.runtime.access import USER, Principal
from breadcrumbs.runtime.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.errors import Forbidden, InvalidCursor, NotFound
from breadcrumbs.runtime.http import listing
from breadcrumbs.runtime.http.conditions import (
    ETAG_HEADER,
    IF_MATCH,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    etag_of,
    expected_version,
    has_already,
)
from breadcrumbs.runtime.http.operations import (
    ID,
    JSON_TYPE,
    MERGE_PATCH_TYPE,
    Answer,
    Body,
    Call,
    Operation,
    Parameter,
    read_json,
)
from breadcrumbs.runtime.http.problems import (
    IDEMPOTENCY_MISMATCH,
    INVALID_CURSOR,
    MALFORMED,
    NOT_FOUND,
    QUOTA_EXCEEDED,
    SESSION_CONFLICT,
    SESSION_GONE,
    STATE_TOO_LARGE,
    VERSION_MISMATCH,
)
from breadcrumbs.runtime.http.replies import Header, ListReply, Reply
from breadcrumbs.runtime.http.schemas import (
    Created,
    Done,
    FullView,
    HistoryItem,
    ListItem,
    ModelView,
    Updated,
)
from breadcrumbs.runtime.ids import parse_id
from breadcrumbs.runtime.llm_view import apply_hints
from breadcrumbs.runtime.partial_contexts import as_seen
from breadcrumbs.runtime.schema_hints import own_hints
from breadcrumbs.runtime.session_state import (
    ADK_EVENT,
    ONLY_CREDENTIALS,
    SESSION_RECORD,
    SHARED_DELTA,
    STATE_CHANGE,
    STATEFUL,
)
from breadcrumbs.runtime.sessions import Sessions
from breadcrumbs.runtime.store import check_idempotency_key

# Writing


async def create(call: Call) -> Reply:
    principal = call.principal
    new = principal.admitted(BreadcrumbCreate.parse(await call.json()))
    _check_shared_state(principal, new.context, {})
    if principal.user_id is not None and (
        new.schema_name in (SESSION_RECORD, STATE_CHANGE, ADK_EVENT)
        or (new.schema_name in STATEFUL and "state_delta" in new.context)
    ):
        # They change what is known of a whole session, which may be another user's.
        raise Forbidden(
            f"this token is for user {principal.user_id!r} only: use PATCH /sessions/{{id}} instead"
        )
    written = await Sessions(call.services.store).create_as(
        principal, new, idempotency_key=idempotency_key(call)
    )
    created_at = clock.to_text(written.created)
    answer: Created = {
        "id": str(written.id),
        "version": written.version,
        "created_at": created_at,
        "updated_at": created_at if written.updated == written.created else clock.to_text(written.updated),
    }
    session = _session_named_in(new)
    if session is not None:
        answer["session_id"] = session
    headers: list[Header] = [
        (b"location", b"/breadcrumbs/%s" % answer["id"].encode()),
        (b"etag", etag_of(written.version)),
    ]
    if written.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    return Reply.json(answer, status=201, headers=headers)


async def update(call: Call) -> Reply:
    principal, id = call.principal, call.id()
    expected = expected_version(call)
    media_type = call.media_type()
    change = BreadcrumbUpdate.parse(read_json(await call.body()))
    await _check_session(call, id)
    written = await call.services.store.update(
        principal.owner_id,
        id,
        _with_own_user(principal, change),
        by=principal.agent_id,
        expected_version=expected,
        merge_context=media_type == MERGE_PATCH_TYPE,
        allowed=_may_change(principal, change),
    )
    answer: Updated = {
        "ok": True,
        "id": str(id),
        "version": written.version,
        "updated_at": clock.to_text(written.updated),
    }
    return Reply.json(answer, headers=[(b"etag", etag_of(written.version))])


async def delete(call: Call) -> Reply:
    principal = call.principal
    await call.services.store.delete(
        principal.owner_id, call.id(), expected_version=expected_version(call), allowed=principal.may_see
    )
    answer: Done = {"ok": True}
    return Reply.json(answer)


def idempotency_key(call: Call) -> str | None:
    """The key of a request, if it has one."""
    principal, key = call.principal, call.header(b"idempotency-key")
    if key is None:
        return None
    check_idempotency_key(key)
    if principal.user_id is None:
        return key
    # The store keeps keys per owner and session; users that share neither must not meet in one.
    return sha256(f"{len(principal.user_id)} {principal.user_id} {key}".encode()).hexdigest()


def _session_named_in(new: BreadcrumbCreate) -> str | None:
    for tag in new.tags:
        if tag.startswith("session:"):
            return tag[8:]
    session = new.context.get("session_id")
    return session if isinstance(session, str) else None


async def _check_session(call: Call, id: UUID) -> None:
    """A token that is for a user changes nothing in sessions of others: contexts are made for changes, too."""
    principal, store = call.principal, call.services.store
    if principal.user_id is None:
        return
    crumb = await store.get(principal.owner_id, id, count_read=False)
    if crumb.session_id is None or not principal.may_see(crumb):
        return
    held = await Sessions(store).belonging(principal.owner_id, crumb.session_id)
    if held is not None and held.user != principal.user_id:
        raise Forbidden(
            f"session {crumb.session_id!r} is not the one of user {principal.user_id!r}, whom this token is for"
        )


def _may_change(principal: Principal, change: BreadcrumbUpdate) -> Callable[[Breadcrumb], bool]:
    """Whether a change to a breadcrumb is allowed, once it is known which one it is."""

    def allowed(crumb: Breadcrumb) -> bool:
        if not principal.may_see(crumb):
            return False
        if not principal.may_read_context(crumb):
            if "sensitivity" in change.model_fields_set and change.sensitivity != "secret":
                raise Forbidden("taking the sensitivity 'secret' off a breadcrumb needs the role 'curator'")
            if _only_credentials(change.context or {}) and not _only_credentials(crumb.context):
                raise Forbidden(f"setting {ONLY_CREDENTIALS} on a secret breadcrumb needs the role 'curator'")
        _check_shared_state(principal, change.context or {}, crumb.context)
        if principal.user_id is not None:
            added = {tag for tag in change.tags or () if tag.startswith(USER)} - set(crumb.tags)
            if added - {USER + principal.user_id, "user:message"}:
                raise Forbidden(f"this token is for user {principal.user_id!r} only")
        return True

    return allowed


def _only_credentials(context: Mapping[str, Any]) -> bool:
    return context.get(ONLY_CREDENTIALS) is True


def _check_shared_state(principal: Principal, context: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """A token for one session or one user does not say what the sessions of others share."""
    narrowed = principal.session_id is not None or principal.user_id is not None
    if narrowed and SHARED_DELTA in context and context[SHARED_DELTA] != before.get(SHARED_DELTA):
        raise Forbidden(
            f"a narrowed token cannot set {SHARED_DELTA}, which changes everybody's state: leave it out"
        )


def _with_own_user(principal: Principal, change: BreadcrumbUpdate) -> BreadcrumbUpdate:
    """A token that is narrowed to a user keeps its user's tag on what it changes."""
    if principal.user_id is None or "tags" not in change.model_fields_set:
        return change
    tags = change.tags or []
    own = USER + principal.user_id
    return change if own in tags else change.model_copy(update={"tags": [*tags, own]})


# Reading


async def get_view(call: Call) -> Reply:
    crumb = await _readable(call)
    hints, borrowed = own_hints(crumb), None
    if not hints and crumb.schema_name is not None:
        hints = borrowed = await call.services.hints.of(crumb.owner_id, crumb.schema_name)
    etag = etag_of(crumb.version, borrowed)
    if has_already(call, etag):
        return Reply(304, headers=[(b"etag", etag)])
    document = crumb.document
    view: ModelView = {
        "id": str(crumb.id),
        "title": crumb.title,
        "tags": crumb.tags,
        "context": apply_hints(crumb.context, hints or None),
        "version": crumb.version,
        "created_at": crumb.created_at,
        "updated_at": crumb.updated_at,
    }
    for field in ("description", "semantic_version", "schema_name"):
        if field in document:
            view[field] = document[field]
    return Reply.json(view, headers=[(b"etag", etag)])


async def get_full(call: Call) -> Reply:
    crumb = await _readable(call)
    etag = etag_of(crumb.version)
    if has_already(call, etag):
        return Reply(304, headers=[(b"etag", etag)])
    return Reply.json(crumb.full(), headers=[(b"etag", etag)])


async def get_history(call: Call) -> Reply:
    principal, id, given = call.principal, call.id(), call.query()
    page = await call.services.store.history_page(
        principal.owner_id,
        id,
        before=_version_before(given.get("cursor")),
        limit=listing.read_limit(given),
        max_bytes=call.services.settings.max_response_bytes,
    )
    _check_readable(principal, page.newest)
    headers: list[Header] = [(b"x-has-more", b"false" if page.next_before is None else b"true")]
    if page.next_before is not None:
        path = f"/breadcrumbs/{id}/history"
        headers.append((b"link", listing.next_link(path, given, str(page.next_before))))
    # An older version may have been somebody else's, or secret, when the newest no longer is.
    seen = (version.unparsed() for version in page.versions)
    return ListReply((_version(principal, one) for one in seen if principal.may_see(one)), headers)


def _version(principal: Principal, version: Breadcrumb) -> HistoryItem:
    item: HistoryItem = {
        "version": version.version,
        "title": version.title,
        "tags": version.tags,
        "updated_at": version.updated_at,
    }
    if version.schema_name is not None:
        item["schema_name"] = version.schema_name
    if principal.may_read_context(version):
        item["context"] = as_seen(principal, version).context
    if version.updated_by is not None:
        item["updated_by"] = str(version.updated_by)
    return item


def _version_before(cursor: str | None) -> int | None:
    """The version that the last page of a history ended before."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10 and int(cursor) > 0):
        raise InvalidCursor("this is not a cursor of a history: take it from the Link header", where="cursor")
    return int(cursor)


async def _readable(call: Call) -> Breadcrumb:
    store, principal, id = call.services.store, call.principal, call.id()
    crumb = await store.get(principal.owner_id, id, count_read=False)
    _check_readable(principal, crumb)
    if crumb.max_reads:
        # Counted only now: who may not read it must not be able to use it up either.
        crumb = await store.get(principal.owner_id, id)
        _check_readable(principal, crumb)
    return as_seen(principal, crumb)


def _check_readable(principal: Principal, crumb: Breadcrumb) -> None:
    if not principal.may_see(crumb):
        raise NotFound("no such breadcrumb")
    if not principal.may_read_context(crumb):
        raise Forbidden("this breadcrumb is secret: reading it needs the role 'curator'")


# Listing


async def list_breadcrumbs(call: Call) -> Reply:
    principal, given = call.principal, call.query()
    query = listing.read_query(given)
    include_context = listing.read_flag(given, "include_context")
    owner = given.get("owner_id")
    if owner is not None and not _is_same(owner, principal.owner_id):
        query.check()
        return Reply(200, b"[]", headers=[(b"x-has-more", b"false")])
    query = replace(
        query, max_bytes=call.services.settings.max_response_bytes, without_contexts=not include_context
    )
    page = await call.services.store.list(principal.owner_id, principal.narrowed(query))
    headers: list[Header] = [(b"x-has-more", b"false" if page.next_cursor is None else b"true")]
    if page.next_cursor is not None:
        headers.append((b"link", listing.next_link("/breadcrumbs", given, page.next_cursor)))
    return ListReply(
        (_list_item(principal, crumb, include_context=include_context) for crumb in page.items), headers
    )


def _list_item(principal: Principal, crumb: Breadcrumb, *, include_context: bool) -> dict[str, Any]:
    crumb = crumb.unparsed()  # what is parsed to encode the item is freed after it
    if include_context and principal.may_read_context(crumb):
        return as_seen(principal, crumb).list_item(include_context=True)
    return crumb.list_item()


def _is_same(text: str, owner: UUID) -> bool:
    return parse_id(text, what="owner_id") == owner


IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "Any text of your own, one per breadcrumb; kept for a day.",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
REPLAYED: Final = {
    "Idempotency-Replayed": "`true` where the key was used before: this is the first result.",
}

_EXAMPLE: Final = {
    "schema_name": "user.message.v1",
    "title": "Hello",
    "tags": ["user:message", "session:abc"],
    "context": {"message": "Hello!"},
}

OPERATIONS: Final = (
    Operation(
        id="createBreadcrumb",
        method="POST",
        path="/breadcrumbs",
        group="Breadcrumbs",
        summary="Post a breadcrumb",
        description=(
            "The body, every index and the event are one atomic write. With an Idempotency-Key a retry "
            "gives the first result again and writes nothing."
        ),
        handle=create,
        role="emitter",
        spends="posting",
        uses_store="writes",
        parameters=(IDEMPOTENCY_KEY,),
        body=Body(BreadcrumbCreate, _EXAMPLE),
        answers=(
            Answer(
                201,
                "It is stored.",
                Created,
                headers={"Location": "Where it is.", **ETAG_HEADER, **REPLAYED},
                sometimes=frozenset(REPLAYED),
            ),
        ),
        may_fail=(
            NOT_FOUND,
            SESSION_CONFLICT,
            SESSION_GONE,
            IDEMPOTENCY_MISMATCH,
            STATE_TOO_LARGE,
            QUOTA_EXCEEDED,
        ),
    ),
    Operation(
        id="listBreadcrumbs",
        method="GET",
        path="/breadcrumbs",
        group="Breadcrumbs",
        summary="List breadcrumbs",
        description=(
            "All filters must hold; `any_tags` is an OR inside itself. Newest first unless `sort` says "
            "otherwise. Parameters that are not listed here are refused."
        ),
        handle=list_breadcrumbs,
        role="subscriber",
        parameters=listing.PARAMETERS,
        answers=(
            Answer(
                200,
                "A page.",
                list[ListItem],
                headers=listing.PAGE_HEADERS,
                sometimes=frozenset({"Link"}),
            ),
        ),
        may_fail=(INVALID_CURSOR,),
    ),
    Operation(
        id="getBreadcrumb",
        method="GET",
        path="/breadcrumbs/{id}",
        group="Breadcrumbs",
        summary="Read a breadcrumb as a model sees it",
        description=(
            "`llm_hints` are applied to the context: the breadcrumb's own, or those of the newest "
            "`schema.def.v1` breadcrumb tagged `defines:<schema_name>`. Counts as a read where the TTL "
            "counts reads."
        ),
        handle=get_view,
        role="subscriber",
        parameters=(ID, IF_NONE_MATCH),
        answers=(Answer(200, "The view.", ModelView, headers=ETAG_HEADER), NOT_MODIFIED),
    ),
    Operation(
        id="getBreadcrumbFull",
        method="GET",
        path="/breadcrumbs/{id}/full",
        group="Breadcrumbs",
        summary="Read everything there is",
        description="The raw content and what the store knows. Counts as a read where the TTL counts reads.",
        handle=get_full,
        role="subscriber",
        parameters=(ID, IF_NONE_MATCH),
        answers=(Answer(200, "The breadcrumb.", FullView, headers=ETAG_HEADER), NOT_MODIFIED),
    ),
    Operation(
        id="getBreadcrumbHistory",
        method="GET",
        path="/breadcrumbs/{id}/history",
        group="Breadcrumbs",
        summary="Read all versions",
        description=(
            "Newest first; without versions that you may not see, and contexts that are secret. A long history "
            "comes in pages: each ends at `limit` versions or at the byte budget of a response."
        ),
        handle=get_history,
        role="subscriber",
        parameters=(ID, *listing.PAGING),
        answers=(
            Answer(
                200,
                "The versions.",
                list[HistoryItem],
                headers=listing.PAGE_HEADERS,
                sometimes=frozenset({"Link"}),
            ),
        ),
        may_fail=(INVALID_CURSOR,),
    ),
    Operation(
        id="updateBreadcrumb",
        method="PATCH",
        path="/breadcrumbs/{id}",
        group="Breadcrumbs",
        summary="Change a breadcrumb",
        description=(
            "Fields that are present replace, `context` and `tags` as a whole; null clears. As "
            "`application/merge-patch+json` the context is merged (RFC 7396). Without If-Match the last "
            "writer wins."
        ),
        handle=update,
        role="emitter",
        spends="posting",
        uses_store="writes",
        parameters=(ID, IF_MATCH),
        body=Body(BreadcrumbUpdate, {"context": {"message": "Hello, all!"}}, (JSON_TYPE, MERGE_PATCH_TYPE)),
        answers=(Answer(200, "The next version is stored.", Updated, headers=ETAG_HEADER),),
        may_fail=(SESSION_CONFLICT, SESSION_GONE, VERSION_MISMATCH, QUOTA_EXCEEDED),
    ),
    Operation(
        id="deleteBreadcrumb",
        method="DELETE",
        path="/breadcrumbs/{id}",
        group="Breadcrumbs",
        summary="Remove a breadcrumb",
        description="With its history, from every index.",
        handle=delete,
        role="emitter",
        spends="posting",
        uses_store="writes",
        parameters=(ID, IF_MATCH),
        answers=(Answer(200, "It is gone.", Done),),
        may_fail=(MALFORMED, VERSION_MISMATCH),
    ),
)
