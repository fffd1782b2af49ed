"""Breadcrumb ids: UUIDv7 whose 12 `rand_a` bits name the lane, so that an id alone says where it lives."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID

from breadcrumbs.runtime.errors import InvalidInput

MAX_LANES = 1 << 12

_VERSION_7 = 7 << 76
_VARIANT = 2 << 62


def new_id(lane: int) -> UUID:
    """A fresh id in `lane`: the time in ms, the lane, 62 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(8)) >> 2
    return UUID(int=milliseconds << 80 | _VERSION_7 | lane << 64 | _VARIANT | random)


def home_lane(id: UUID, lanes: int) -> int:
    """The lane that an id points to.

    Ids made here name it exactly. Ids that came in with an import have arbitrary bits in that place;
    their home lane holds a signpost to where the breadcrumb really lives.
    """
    return (id.int >> 64 & 0xFFF) % lanes


@lru_cache(16_384)
def lane_for(owner: UUID, kind: str, name: str, lanes: int) -> int:
    """The lane of everything that belongs together: a session's breadcrumbs, or one idempotency key.

    The parts are length-prefixed by being hashed in separate, fixed-size places (person, salt, data), so
    no two different (owner, kind, name) give the same input.
    """
    digest = blake2b(
        name.encode(), digest_size=8, key=owner.bytes, person=kind.encode().ljust(16, b"\0")
    ).digest()
    return int.from_bytes(digest) % lanes


def parse_id(text: str, *, what: str = "id") -> UUID:
    """Read an id as clients write it; anything but the plain 36-character form is refused."""
    try:
        parsed = UUID(text)
    except ValueError:
        parsed = None
    # UUID() also takes braces, urn: prefixes and missing dashes: one thing should have one spelling.
    if parsed is None or str(parsed) != text.lower():
        raise InvalidInput(f"{what} must be a UUID such as 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b", where=what)
    return parsed


@lru_cache(4_096)
def derived_id(lane: int, *parts: str) -> UUID:
    """The same id for the same parts: what a turn produces is found, not written again, when it is run again.

    A UUID of version 8, with the lane where a version 7 has it.
    """
    hasher = blake2b(digest_size=14)
    for part in parts:
        raw = part.encode()
        hasher.update(len(raw).to_bytes(4) + raw)
    bits = int.from_bytes(hasher.digest())
    return UUID(int=(bits >> 64) << 80 | 8 << 76 | lane << 64 | _VARIANT | bits & (1 << 62) - 1)
