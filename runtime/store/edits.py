"""Finds the breadcrumbs of a session that were updated.

An index contains a breadcrumb by the schema of its newest version. So a search for an older version must also look at
breadcrumbs that were updated since.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.lookup import ReadContext, list_schemas, retry_once

_BATCH: Final = 64


async def updated_since(
    context: ReadContext, owner: UUID, session: str, time: int, *, limit: int, without: frozenset[str]
) -> tuple[list[Breadcrumb], bool]:
    """Return the breadcrumbs of a session that were created before a time and updated after it.

    Breadcrumbs of the schemas in `without` are skipped. The second value is False if there were more than `limit`
    updates, so that the oldest of them are missing.
    """
    keys = context.keys
    lane = keys.session_lane(owner, session)
    updates = keys.updated(lane, owner)
    schemas = [name for name in (await list_schemas(context, owner, [lane]))[lane] if name not in without]
    call_all = context.connection.call_all
    replies = await retry_once(
        lambda: call_all(
            [
                (
                    lane,
                    (
                        b"ZINTER", 2, updates, keys.by_session(lane, owner, session, schema),
                        b"WEIGHTS", 1, 0, b"WITHSCORES",
                    ),
                )
                for schema in schemas
            ]
        )
    )  # fmt: skip
    found = [
        (int(float(score)), id)
        for flat in replies
        for id, score in zip(flat[::2], flat[1::2], strict=True)
        if int(float(score)) > time
    ]
    ids = [id for _, id in sorted(found, reverse=True)]
    crumbs: list[Breadcrumb] = []
    for start in range(0, min(len(ids), limit), _BATCH):
        batch = ids[start : start + _BATCH]
        bodies = await context.connection.call(lane, b"MGET", *(keys.body(lane, owner, id) for id in batch))
        crumbs += [
            record.decode_raw(owner, id, body)
            for id, body in zip(batch, bodies, strict=True)
            if body is not None
        ]
    now = context.clock.now()
    kept = [crumb for crumb in crumbs if crumb.created <= time and not record.is_gone(crumb, now)]
    return kept, len(ids) <= limit
