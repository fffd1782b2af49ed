"""Signs and checks page cursors. A cursor is opaque and valid only for the query that it was made for."""

from __future__ import annotations

import base64
import hmac
from hashlib import blake2b, sha256
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.errors import InvalidCursor


def sign_cursor(secret: bytes, owner: UUID, query: Query, place: SortKey) -> str:
    payload = place.score.to_bytes(8) + place.id
    return _spell(payload + _seal(secret, owner, query, payload))


def open_cursor(secret: bytes, owner: UUID, query: Query) -> SortKey | None:
    if query.cursor is None:
        return None
    try:
        raw = base64.b64decode(query.cursor + "=" * (-len(query.cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    payload, seal = raw[:24], raw[24:]
    # Base64 has several spellings of the same bytes: ours is the only one that is unchanged.
    if _spell(raw) != query.cursor or not hmac.compare_digest(seal, _seal(secret, owner, query, payload)):
        raise InvalidCursor(
            "this cursor was not given for this query: take it unchanged from the last answer, "
            "and keep the filters the same",
            where="cursor",
        )
    return SortKey(int.from_bytes(payload[:8]), payload[8:])


def _spell(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _seal(secret: bytes, owner: UUID, query: Query, payload: bytes) -> bytes:
    filters = orjson.dumps(
        [
            query.schema_name,
            query.schema_names,
            query.session_id,
            query.sessionless,
            query.all_tags,
            query.any_tags,
            query.created_since,
            query.created_until,
            query.updated_since,
            query.order,
        ]
    )
    digest = blake2b(filters, digest_size=16, key=owner.bytes).digest()
    return hmac.new(secret, b"cursor" + digest + payload, sha256).digest()[:16]
