"""Breadcrumbs: create, update, delete, read and list them."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.errors import InvalidCursor
from breadcrumbs.runtime.hints.hints import apply_hints
from breadcrumbs.runtime.http.admission import admit_changes, check_addressee, check_definition
from breadcrumbs.runtime.http.api import listing
from breadcrumbs.runtime.http.api.call import HttpCall, read_json
from breadcrumbs.runtime.http.api.conditions import (
    ETAG_HEADER,
    IF_MATCH,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    client_has,
    expected_version,
    version_etag,
)
from breadcrumbs.runtime.http.api.operations import (
    ID,
    JSON_TYPE,
    MERGE_PATCH_TYPE,
    Body,
    Parameter,
    Routes,
    SuccessReply,
)
from breadcrumbs.runtime.http.api.problems import (
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
from breadcrumbs.runtime.http.api.replies import Header, ListReply, Reply
from breadcrumbs.runtime.http.api.schemas import (
    Created,
    Done,
    FullView,
    HistoryItem,
    ListItem,
    ModelView,
    Updated,
)
from breadcrumbs.runtime.retrieval.schema_hints import own_hints
from breadcrumbs.runtime.schema_names import AGENT_CANCEL, TOOL_RESPONSE
from breadcrumbs.runtime.sessions.cancellations import Cancellation, end_stopped_turns
from breadcrumbs.runtime.sessions.feedback import delete_feedback_on, is_answer
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.sessions.tool_responses import with_session_of_request
from breadcrumbs.runtime.store.options import UpdateOptions
from breadcrumbs.runtime.store.store import check_idempotency_key

IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "A unique text per breadcrumb, chosen by the client. Stored for a day by default.",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
REPLAYED: Final = {
    "Idempotency-Replayed": "`true` if the key was used before. The reply is then the first result.",
}
_EXAMPLE: Final = {
    "schema_name": "user.message.v1",
    "title": "Hello",
    "tags": ["user:message", "session:abc"],
    "context": {"message": "Hello!"},
}

routes = Routes("Breadcrumbs")

# Writing


@routes.operation(
    id="createBreadcrumb",
    method="POST",
    path="/breadcrumbs",
    summary="Create a breadcrumb",
    description=(
        "The breadcrumb, all indexes and the event are one atomic write. With an Idempotency-Key, a retry returns "
        "the first result and writes nothing."
    ),
    spends="posting",
    uses_store="writes",
    parameters=(IDEMPOTENCY_KEY,),
    body=Body(BreadcrumbCreate, _EXAMPLE),
    successes=(
        SuccessReply(
            201,
            "Breadcrumb created.",
            Created,
            headers={"Location": "The path of the breadcrumb.", **ETAG_HEADER, **REPLAYED},
            optional_headers=frozenset(REPLAYED),
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
)
async def create(call: HttpCall) -> Reply:
    principal = call.principal
    call.media_type()
    raw = await call.body()
    new = policy.admit_new(principal, BreadcrumbCreate.parse(read_json(raw)))
    check_definition(call, new, raw)
    await check_addressee(call, new)
    if new.schema_name == TOOL_RESPONSE:
        new = await with_session_of_request(call.services.store, principal, new)
    written = await Sessions(call.services.store).create_as(
        principal, new, idempotency_key=idempotency_key(call)
    )
    created_at = times.to_text(written.created)
    body: Created = {
        "id": str(written.id),
        "version": written.version,
        "created_at": created_at,
        "updated_at": created_at if written.updated == written.created else times.to_text(written.updated),
    }
    session = _session_named_in(new)
    if session is not None:
        body["session_id"] = session
        if new.schema_name == AGENT_CANCEL:
            stop = Cancellation(principal.owner_id, session, written.created)
            await end_stopped_turns(call.services.store, stop, call.services.settings.inherited_tags)
    headers: list[Header] = [
        (b"location", b"/breadcrumbs/%s" % body["id"].encode()),
        (b"etag", version_etag(written.version)),
    ]
    if written.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    return Reply.json(body, status=201, headers=headers)


@routes.operation(
    id="updateBreadcrumb",
    method="PATCH",
    path="/breadcrumbs/{id}",
    summary="Update a breadcrumb",
    description=(
        "Given fields are replaced, `context` and `tags` as a whole. null clears a field. With the media type "
        "`application/merge-patch+json` the context is merged (RFC 7396). Without If-Match the last write wins."
    ),
    spends="posting",
    uses_store="writes",
    parameters=(ID, IF_MATCH),
    body=Body(BreadcrumbUpdate, {"context": {"message": "Hello, all!"}}, (JSON_TYPE, MERGE_PATCH_TYPE)),
    successes=(SuccessReply(200, "Breadcrumb updated.", Updated, headers=ETAG_HEADER),),
    may_fail=(SESSION_CONFLICT, SESSION_GONE, VERSION_MISMATCH, QUOTA_EXCEEDED),
)
async def update(call: HttpCall) -> Reply:
    principal, id = call.principal, call.path_id()
    expected = expected_version(call)
    media_type = call.media_type()
    merges = media_type == MERGE_PATCH_TYPE
    change = BreadcrumbUpdate.parse(read_json(await call.body()))
    await _check_session_user(call, id)
    written = await call.services.store.update(
        principal.owner_id,
        id,
        change,
        by=principal.agent_id,
        expected_version=expected,
        options=UpdateOptions(merge_context=merges, admit=admit_changes(call, merges=merges)),
    )
    body: Updated = {
        "ok": True,
        "id": str(id),
        "version": written.version,
        "updated_at": times.to_text(written.updated),
    }
    return Reply.json(body, headers=[(b"etag", version_etag(written.version))])


@routes.operation(
    id="deleteBreadcrumb",
    method="DELETE",
    path="/breadcrumbs/{id}",
    summary="Delete a breadcrumb",
    description="Deletes the breadcrumb, its history and its index entries. The feedback on an answer is deleted, too.",
    spends="posting",
    uses_store="writes",
    parameters=(ID, IF_MATCH),
    successes=(SuccessReply(200, "Breadcrumb deleted.", Done),),
    may_fail=(MALFORMED, VERSION_MISMATCH),
)
async def delete(call: HttpCall) -> Reply:
    principal, id, expected = call.principal, call.path_id(), expected_version(call)
    await _check_session_user(call, id)
    store, deleted = call.services.store, list[Breadcrumb]()

    def allow(crumb: Breadcrumb) -> bool:
        policy.check_delete(principal, crumb)
        deleted.append(crumb)
        return True

    await store.delete(principal.owner_id, id, expected_version=expected, allowed=allow)
    if deleted and is_answer(deleted[-1]):
        await delete_feedback_on(store, deleted[-1])
    body: Done = {"ok": True}
    return Reply.json(body)


def idempotency_key(call: HttpCall) -> str | None:
    """Return the idempotency key of a request, or None."""
    principal, key = call.principal, call.header(b"idempotency-key")
    if key is None:
        return None
    check_idempotency_key(key)
    if principal.user_id is None:
        return key
    # The store separates keys only by owner and session. Include the user, so that the keys of users cannot collide.
    return sha256(f"{len(principal.user_id)} {principal.user_id} {key}".encode()).hexdigest()


def _session_named_in(new: BreadcrumbCreate) -> str | None:
    for tag in new.tags:
        if tag.startswith("session:"):
            return tag[8:]
    session = new.context.get("session_id")
    return session if isinstance(session, str) else None


async def _check_session_user(call: HttpCall, id: UUID) -> None:
    """Check that a token for a user may write to the session of a breadcrumb."""
    principal, store = call.principal, call.services.store
    if not policy.needs_session_user(principal):
        return
    crumb = await store.get(principal.owner_id, id, count_read=False)
    if crumb.session_id is None or not policy.may_see(principal, crumb):
        return  # the write itself raises NotFound
    session = await Sessions(store).belonging(principal.owner_id, crumb.session_id)
    if session is not None:
        policy.check_session_user(principal, crumb.session_id, session.user)


# Reading


@routes.operation(
    id="getBreadcrumb",
    method="GET",
    path="/breadcrumbs/{id}",
    summary="Read a breadcrumb as a model sees it",
    description=(
        "Applies `llm_hints` to the context: those of the breadcrumb, or those of the newest `schema.def.v1` "
        "breadcrumb with the tag `defines:<schema_name>`. Counts as a read for a TTL that limits reads."
    ),
    parameters=(ID, IF_NONE_MATCH),
    successes=(
        SuccessReply(200, "The breadcrumb as a model sees it.", ModelView, headers=ETAG_HEADER),
        NOT_MODIFIED,
    ),
)
async def get_view(call: HttpCall) -> Reply:
    crumb = await _load_readable(call)
    hints, borrowed = own_hints(crumb), None
    if not hints and crumb.schema_name is not None:
        hints = borrowed = await call.services.hints.of(crumb.owner_id, crumb.schema_name)
    etag = version_etag(crumb.version, borrowed)
    if client_has(call, etag):
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


@routes.operation(
    id="getBreadcrumbFull",
    method="GET",
    path="/breadcrumbs/{id}/full",
    summary="Read a breadcrumb with all fields",
    description="The unchanged context and all metadata. Counts as a read for a TTL that limits reads.",
    parameters=(ID, IF_NONE_MATCH),
    successes=(SuccessReply(200, "The breadcrumb.", FullView, headers=ETAG_HEADER), NOT_MODIFIED),
)
async def get_full(call: HttpCall) -> Reply:
    crumb = await _load_readable(call)
    etag = version_etag(crumb.version)
    if client_has(call, etag):
        return Reply(304, headers=[(b"etag", etag)])
    return Reply.json(crumb.full_view(), headers=[(b"etag", etag)])


@routes.operation(
    id="getBreadcrumbHistory",
    method="GET",
    path="/breadcrumbs/{id}/history",
    summary="List the versions of a breadcrumb",
    description=(
        "Newest first, without versions that the token may not see, and without secret contexts. A long history is "
        "returned in pages. A page ends at `limit` versions or at the byte limit of a response."
    ),
    parameters=(ID, *listing.PAGING),
    successes=(
        SuccessReply(
            200,
            "A page of versions.",
            list[HistoryItem],
            headers=listing.PAGE_HEADERS,
            optional_headers=frozenset({"Link"}),
        ),
    ),
    may_fail=(INVALID_CURSOR,),
)
async def get_history(call: HttpCall) -> Reply:
    principal, id, given = call.principal, call.path_id(), call.query()
    page = await call.services.store.history_page(
        principal.owner_id,
        id,
        before=_parse_history_cursor(given.get("cursor")),
        limit=listing.read_limit(given),
        max_bytes=call.services.settings.max_response_bytes,
    )
    policy.check_readable(principal, page.newest)
    headers: list[Header] = [(b"x-has-more", b"false" if page.next_before is None else b"true")]
    if page.next_before is not None:
        path = f"/breadcrumbs/{id}/history"
        headers.append((b"link", listing.next_link(path, given, str(page.next_before))))
    # Check each version: an older one can be private or secret although the newest is not.
    versions = (version.without_parsed_json() for version in page.versions)
    return ListReply(
        (_history_item(principal, version) for version in versions if policy.may_see(principal, version)),
        headers,
    )


def _history_item(principal: Principal, version: Breadcrumb) -> HistoryItem:
    item: HistoryItem = {
        "version": version.version,
        "title": version.title,
        "tags": version.tags,
        "updated_at": version.updated_at,
    }
    if version.schema_name is not None:
        item["schema_name"] = version.schema_name
    if policy.may_read_content(principal, version):
        item["context"] = redact_context(principal, version).context
    if version.updated_by is not None:
        item["updated_by"] = str(version.updated_by)
    return item


def _parse_history_cursor(cursor: str | None) -> int | None:
    """Return the version before which the next page starts, or None for the first page."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10 and int(cursor) > 0):
        raise InvalidCursor("invalid cursor for a history: take it from the Link header", where="cursor")
    return int(cursor)


async def _load_readable(call: HttpCall) -> Breadcrumb:
    """Return the breadcrumb of the path, redacted for the principal, and count the read."""
    store, principal, id = call.services.store, call.principal, call.path_id()
    crumb = await store.get(principal.owner_id, id, count_read=False)
    policy.check_readable(principal, crumb)
    if crumb.max_reads:
        # The read is counted after the check, so that a principal without permission cannot use up the reads.
        crumb = await store.get(principal.owner_id, id)
        policy.check_readable(principal, crumb)
    return redact_context(principal, crumb)


# Listing


@routes.operation(
    id="listBreadcrumbs",
    method="GET",
    path="/breadcrumbs",
    summary="List breadcrumbs",
    description=(
        "All filters must match. `any_tags` matches if the breadcrumb has one of its tags. The default order is "
        "newest first. Unknown parameters are refused."
    ),
    parameters=listing.PARAMETERS,
    successes=(
        SuccessReply(
            200,
            "A page of breadcrumbs.",
            list[ListItem],
            headers=listing.LIST_HEADERS,
            optional_headers=frozenset({"Link", "X-Unindexed-Tags"}),
        ),
    ),
    may_fail=(INVALID_CURSOR,),
)
async def list_breadcrumbs(call: HttpCall) -> Reply:
    principal, given = call.principal, call.query()
    query = listing.read_query(given)
    include_context = listing.read_flag(given, "include_context")
    owner = given.get("owner_id")
    if owner is not None and not _is_owner(owner, principal.owner_id):
        query.check()
        return Reply(200, b"[]", headers=[(b"x-has-more", b"false")])
    query = replace(
        query, max_bytes=call.services.settings.max_response_bytes, without_contexts=not include_context
    )
    page = await call.services.store.list(principal.owner_id, policy.restrict_query(principal, query))
    headers: list[Header] = [(b"x-has-more", b"false" if page.next_cursor is None else b"true")]
    if page.next_cursor is not None:
        headers.append((b"link", listing.next_link("/breadcrumbs", given, page.next_cursor)))
    if page.unindexed_tags:
        headers.append((b"x-unindexed-tags", listing.unindexed_tags(page.unindexed_tags)))
    return ListReply(
        (_list_item(principal, crumb, include_context=include_context) for crumb in page.items), headers
    )


def _list_item(principal: Principal, crumb: Breadcrumb, *, include_context: bool) -> dict[str, Any]:
    crumb = crumb.without_parsed_json()  # parsed JSON is freed after each item
    if include_context and policy.may_read_content(principal, crumb):
        return redact_context(principal, crumb).list_item(include_context=True)
    return crumb.list_item()


def _is_owner(text: str, owner: UUID) -> bool:
    return parse_id(text, what="owner_id") == owner
