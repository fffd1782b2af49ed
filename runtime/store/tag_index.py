"""Declares which tags have an index entry.

An index entry of a tag takes 78 bytes and 5 µs per write. It is worth that if the tag selects few of the breadcrumbs.
Nearly all messages of a chat have the same tags, such as `user:message`. For the schemas below, such tags have no
entries. A query by one of them reads the index of the schema and filters.

A writer that leaves out an entry records tag and schema in the sorted set of unindexed tags of its lane (`B` in
keys.py). Readers use only that set, not this declaration. Results are therefore complete for data of every version of
the declaration, and of versions that index all tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, USER_MESSAGE_TAG
from breadcrumbs.runtime.schema_names import (
    AGENT_CONTEXT,
    AGENT_ERROR,
    AGENT_RESPONSE,
    AGENT_STEP,
    TOOL_REQUEST,
    TOOL_RESPONSE,
    TOOL_STARTED,
    USER_MESSAGE,
)

CHAT_SCHEMAS: Final = frozenset(
    (
        USER_MESSAGE,
        AGENT_RESPONSE,
        AGENT_ERROR,
        AGENT_CONTEXT,
        AGENT_STEP,
        TOOL_REQUEST,
        TOOL_STARTED,
        TOOL_RESPONSE,
    )
)
"""Schemas that every turn writes. Their tags are not indexed if one of the next two declarations contains them."""

MARKER_TAGS: Final = frozenset(
    (
        USER_MESSAGE_TAG,
        "agent:response",
        "agent:error",
        "agent:context",
        "chat:output",
        "tool:request",
        "tool:response",
    )
)
"""Tags that say the same as the schema."""

CONVERSATION_NAMESPACES: Final = ("extension:", "workspace:")
"""Beginnings of tags that answers inherit from messages. All breadcrumbs of a session usually have the same ones.

`user:` and `conversation:` are indexed: tokens that are narrowed to a user read by the one, and clients that do not use
sessions read by the other.
"""


def is_indexed(schema: str, tag: str) -> bool:
    """Return whether a breadcrumb of a schema gets an entry in the index of a tag.

    Session tags never do, because each session has indexes of its own.
    """
    if tag.startswith(SESSION):
        return False
    return schema not in CHAT_SCHEMAS or not (tag in MARKER_TAGS or tag.startswith(CONVERSATION_NAMESPACES))


def unindexed(schema: str, tags: Iterable[str]) -> list[str]:
    """Return the tags of a breadcrumb that are recorded as unindexed. Session tags are not."""
    if schema not in CHAT_SCHEMAS:
        return []
    return [tag for tag in tags if not tag.startswith(SESSION) and not is_indexed(schema, tag)]


def unindexed_member(schema: str, tag: str) -> bytes:
    """Return the member for a schema and a tag in the sorted set of unindexed tags."""
    return b"%s\0%s" % (tag.encode(), schema.encode())


def unindexed_range(tag: str) -> tuple[bytes, bytes]:
    """Return the first and the last possible member of a tag, in the form of ZRANGEBYLEX."""
    return b"[%s\0" % tag.encode(), b"(%s\1" % tag.encode()


def schema_in(member: bytes) -> str:
    """Return the schema of a member. A schema name contains no null byte."""
    return member.rpartition(b"\0")[2].decode()
