"""Copies the feedback of a session into its fork."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import AlreadyExists
from breadcrumbs.runtime.schema_names import FEEDBACK
from breadcrumbs.runtime.sessions.feedback import COPIED, Rater, answer_tag, feedback_id
from breadcrumbs.runtime.store.store import Store


class _CopiedAnswer(NamedTuple):
    """The place of the copy of an answer."""

    owner_id: UUID
    session_id: str
    id: UUID


async def copy_feedback(
    store: Store, principal: Principal, origin: str, session: str, ids: Mapping[str, UUID]
) -> None:
    """Copy the feedback that the principal may read, for all answers in `ids`: original id -> id of the copy.

    A copy has the id that a rating of the copied answer would get, so a new rating replaces it.
    """
    query = Query(session_id=origin, schema_name=FEEDBACK, sort="created_at")
    async for crumb in store.walk(principal.owner_id, query):
        answer = ids.get(str(crumb.context.get("answer_id")))
        if answer is None or not policy.may_read(principal, crumb):
            continue
        try:
            await store.restore(_copy_of(store, crumb, _CopiedAnswer(crumb.owner_id, session, answer)), [])
        except AlreadyExists:
            pass  # copied by an earlier request, or rated again in the fork


def _copy_of(store: Store, crumb: Breadcrumb, answer: _CopiedAnswer) -> Breadcrumb:
    # The contexts of the original session are not copied, so the copy does not refer to them.
    facts = {
        name: value for name, value in crumb.context.items() if name not in ("context_id", "context_version")
    }
    document = {
        **crumb.document,
        "tags": [_copied_tag(tag, crumb, answer) for tag in crumb.tags],
        "context": {
            **facts,
            "session_id": answer.session_id,
            "answer_id": str(answer.id),
            "answer_version": 1,
            COPIED: str(crumb.id),
        },
    }
    return Breadcrumb(
        feedback_id(store, answer, Rater.of_feedback(crumb)),
        crumb.owner_id,
        1,
        crumb.created,
        crumb.updated,
        crumb.expires,
        0,
        crumb.created_by,
        crumb.updated_by,
        orjson.dumps(document),
    )


def _copied_tag(tag: str, crumb: Breadcrumb, answer: _CopiedAnswer) -> str:
    """Return the tag of a copy. The tags of the session and of the answer name the copies."""
    if tag.startswith(SESSION):
        return SESSION + answer.session_id
    return answer_tag(answer.id) if tag == answer_tag(str(crumb.context.get("answer_id"))) else tag
