"""Page cursors: opaque text that only this store can create, valid for one owner.

The cursor of a query is signed, not encrypted. It contains only the id and the time of a scanned breadcrumb. The cursor
of the session list contains the name of a session. It is encrypted, because a page can end at a session that the reader
must not see.
"""

from __future__ import annotations

import base64
import hmac
from hashlib import blake2b, sha256
from typing import Final
from uuid import UUID

import orjson
from joserfc import jwe
from joserfc.jwk import OctKey

from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.errors import InvalidCursor

_TIME_BYTES: Final = 8
_ID_BYTES: Final = 16
_ENCRYPTION: Final = {"alg": "dir", "enc": "A256GCM"}


def sign_cursor(secret: bytes, owner: UUID, query: Query, key: SortKey) -> str:
    """Return a cursor that is valid for this query only."""
    payload = key.score.to_bytes(_TIME_BYTES) + key.id
    return _encode(payload + _signature(secret, owner, query, payload))


def open_cursor(secret: bytes, owner: UUID, query: Query) -> SortKey | None:
    """Return the key in the query's cursor, or None if the query has no cursor."""
    if query.cursor is None:
        return None
    try:
        raw = base64.b64decode(query.cursor + "=" * (-len(query.cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    payload, signature = raw[: _TIME_BYTES + _ID_BYTES], raw[_TIME_BYTES + _ID_BYTES :]
    # Base64 can encode the same bytes in several ways. Only the form that we issued is valid.
    if _encode(raw) != query.cursor or not hmac.compare_digest(
        signature, _signature(secret, owner, query, payload)
    ):
        raise InvalidCursor(
            "the cursor does not belong to this query: use the cursor of the last page unchanged, "
            "with the same filters",
            where="cursor",
        )
    return SortKey(int.from_bytes(payload[:_TIME_BYTES]), payload[_TIME_BYTES:])


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _signature(secret: bytes, owner: UUID, query: Query, payload: bytes) -> bytes:
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


def encrypt_session_cursor(secret: bytes, owner: UUID, active: int, name: bytes) -> str:
    """Return a cursor with a session and the time of its last activity."""
    return jwe.encrypt_compact(_ENCRYPTION, active.to_bytes(_TIME_BYTES) + name, _session_key(secret, owner))


def decrypt_session_cursor(secret: bytes, owner: UUID, text: str) -> tuple[int, bytes]:
    """Return the last activity and the name of the session in a cursor."""
    raw = _decrypt(text, _session_key(secret, owner))
    if raw is None or len(raw) <= _TIME_BYTES:
        raise _invalid_cursor()
    return int.from_bytes(raw[:_TIME_BYTES]), raw[_TIME_BYTES:]


def encrypt_search_cursor(secret: bytes, owner: UUID, payload: bytes) -> str:
    """Return a cursor with the position of a search."""
    return jwe.encrypt_compact(_ENCRYPTION, payload, _search_key(secret, owner))


def decrypt_search_cursor(secret: bytes, owner: UUID, text: str) -> bytes:
    """Return the position in the cursor of a search."""
    plain = _decrypt(text, _search_key(secret, owner))
    if plain is None:
        raise _invalid_cursor()
    return plain


def _decrypt(text: str, key: OctKey) -> bytes | None:
    """Return the content of a cursor, or None if this key did not encrypt it."""
    try:
        return jwe.decrypt_compact(text, key, algorithms=list(_ENCRYPTION.values())).plaintext
    except Exception:  # the parser raises many kinds of errors for malformed text
        return None


def _invalid_cursor() -> InvalidCursor:
    return InvalidCursor("the cursor is invalid: use the cursor of the last page unchanged", where="cursor")


def _session_key(secret: bytes, owner: UUID) -> OctKey:
    return OctKey.import_key(hmac.new(secret, b"breadcrumbs session cursor" + owner.bytes, sha256).digest())


def _search_key(secret: bytes, owner: UUID) -> OctKey:
    return OctKey.import_key(hmac.new(secret, b"breadcrumbs search cursor" + owner.bytes, sha256).digest())
