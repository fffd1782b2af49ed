"""The key by which a provider finds the cached beginning of a prompt."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from uuid import UUID

_PURPOSE = b"breadcrumbs prompt cache\0"


@lru_cache(4_096)  # each turn of a session needs the same key
def prompt_cache_key(owner: UUID, session_id: str | None, agent_id: str) -> str:
    """Return the key of the prompts of one agent in one session, or an empty text without a session.

    The key is a hash, so a provider learns no names from it. It contains the owner, so one owner cannot guess the keys
    of another. Nothing random is in it: the request of a past turn can be built again.
    """
    if session_id is None:
        return ""
    names = f"{session_id}\0{agent_id}".encode("utf-8", "surrogatepass")
    return sha256(_PURPOSE + owner.bytes + names).hexdigest()[:32]
