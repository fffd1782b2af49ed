"""Breadcrumb ids, which contain their lane.

An id is a UUIDv7 with the lane in the 12 `rand_a` bits. A read by id therefore needs no lookup of the lane.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID, SafeUUID

from breadcrumbs.runtime.errors import InvalidInput

MAX_LANES = 1 << 12

_VERSION_7 = 7 << 76
_VARIANT = 2 << 62
_UNKNOWN_SAFETY = SafeUUID.unknown
_set_int, _set_safety = (vars(UUID)[name].__set__ for name in ("int", "is_safe"))


def uuid_of(number: int) -> UUID:
    """Return a UUID. Takes a third of the time of its constructor, which checks and converts its arguments."""
    id = object.__new__(UUID)
    _set_int(id, number)
    _set_safety(id, _UNKNOWN_SAFETY)
    return id


def new_id(lane: int) -> UUID:
    """Create an id in `lane` from the time in milliseconds, the lane and 62 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(8)) >> 2
    return uuid_of(milliseconds << 80 | _VERSION_7 | lane << 64 | _VARIANT | random)


def home_lane(id: UUID, lanes: int) -> int:
    """Return the lane that an id points to.

    For ids created by `new_id` and `derived_id` it is the lane of the breadcrumb. Imported ids have arbitrary bits
    there. Their home lane contains a signpost to the lane of the breadcrumb.
    """
    return (id.int >> 64 & 0xFFF) % lanes


@lru_cache(16_384)
def lane_for(owner: UUID, kind: str, name: str, lanes: int) -> int:
    """Return the lane of a group of keys, such as a session or an idempotency key.

    Owner, kind and name are separate inputs of the hash (key, person, data), so that two different combinations never
    give the same input.
    """
    digest = blake2b(
        name.encode(), digest_size=8, key=owner.bytes, person=kind.encode().ljust(16, b"\0")
    ).digest()
    return int.from_bytes(digest) % lanes


def parse_id(text: str, *, what: str = "id") -> UUID:
    """Parse an id. Refuse any form other than the plain one with 36 characters."""
    try:
        parsed = UUID(text)
    except ValueError:
        parsed = None
    # UUID() also accepts braces, urn: prefixes and missing dashes. An id must have only one spelling.
    if parsed is None or str(parsed) != text.lower():
        raise InvalidInput(f"{what} must be a UUID such as 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b", where=what)
    return parsed


@lru_cache(4_096)
def derived_id(lane: int, *parts: str) -> UUID:
    """Return an id that depends only on the lane and the parts.

    A repeated turn derives the same id, so it does not write its result twice. The id is a UUIDv8 with the lane in the
    same bits as in `new_id`.
    """
    hasher = blake2b(digest_size=14)
    for part in parts:
        raw = part.encode()
        hasher.update(len(raw).to_bytes(4) + raw)
    bits = int.from_bytes(hasher.digest())
    return UUID(int=(bits >> 64) << 80 | 8 << 76 | lane << 64 | _VARIANT | bits & (1 << 62) - 1)
