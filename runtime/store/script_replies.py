"""Replies of the scripts that write: codes, results and errors.

A reply is a list whose first item is a code. The header of each script in `runtime/store/lua` lists its codes under
the names below.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import check_new_session_id
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    AnotherSession,
    BreadcrumbsError,
    IdempotencyMismatch,
    NotFound,
    SessionGone,
    StateTooLarge,
    StoreError,
    VersionMismatch,
)
from breadcrumbs.runtime.store.fence import AnswerCancelled, InputsOutdated, LeaseLost, TriggerGone
from breadcrumbs.runtime.store.script_calls import Creation, Update
from breadcrumbs.runtime.store.written import Written

Reply: TypeAlias = Sequence[Any]


class CreateReply(IntEnum):
    """Codes of create.lua."""

    WRITTEN = 0
    REPLAYED = 1
    KEY_REUSED = 2
    ID_TAKEN = 3
    SESSION_GONE = 5
    VERSION_CONFLICT = 6
    ANOTHER_SESSION = 7
    STATE_TOO_LARGE = 8
    NO_EARLIER_RESULT = 9


class UpdateReply(IntEnum):
    """Codes of update.lua."""

    WRITTEN = 0
    VERSION_CONFLICT = 1
    NOT_FOUND = 2
    SESSION_GONE = 5


class ReduceReply(IntEnum):
    """Codes of reduce.lua."""

    REDUCED = 0
    CHANGED = 1


class DeleteReply(IntEnum):
    """Codes of delete.lua."""

    REMOVED = 0
    VERSION_CONFLICT = 1
    NOT_FOUND = 2
    NOT_EXPIRED = 3
    DELETION_ENDED = 5


class ImportReply(IntEnum):
    """Codes of import.lua."""

    WRITTEN = 0
    ID_TAKEN = 3
    SESSION_GONE = 5


class CommitReply(IntEnum):
    """Codes that commit.lua adds to those of the script that it wraps."""

    LEASE_LOST = 4
    CANCELLED = 10
    TRIGGER_GONE = 11
    INPUTS_OUTDATED = 12


_COMMIT_ERRORS: Final[dict[int, tuple[type[Exception], str]]] = {
    CommitReply.LEASE_LOST: (LeaseLost, "the lease of lane {lane} is lost"),
    CommitReply.CANCELLED: (AnswerCancelled, "cancelled"),
    CommitReply.TRIGGER_GONE: (TriggerGone, "the trigger was deleted"),
    CommitReply.INPUTS_OUTDATED: (InputsOutdated, "shared breadcrumbs have changed"),
}


class CloseReply(IntEnum):
    """Codes of close.lua."""

    CLOSED = 0
    VERSION_CONFLICT = 1
    NOT_FOUND = 2


class AnnounceReply(IntEnum):
    """Error codes of announce.lua. Its other replies are times."""

    SESSION_GONE = 0
    LETTER_GONE = -1


def decode_create(reply: Reply, creation: Creation) -> Written:
    """Return the result of create.lua, or raise the error that it reports."""
    match reply[0]:
        case CreateReply.WRITTEN:
            id, by, content, created = creation.id, creation.by, creation.content, int(reply[2])
            session_version = None if content.session_id is None else int(reply[4])
            crumb = Breadcrumb(id, creation.owner, 1, created, created, 0, 0, by, by, content.json)
            crumb.with_document(content.document)
            return Written(id, 1, created, created, session_version=session_version, breadcrumb=crumb)
        case CreateReply.REPLAYED:
            first = UUID(bytes=reply[4])
            # With the same id, an earlier attempt of this call wrote it and its reply was lost.
            return Written(first, int(reply[1]), int(reply[2]), int(reply[3]), replayed=first != creation.id)
        case CreateReply.ID_TAKEN:
            return Written(creation.id, int(reply[1]), int(reply[2]), int(reply[3]), found=True)
    raise _create_error(reply, creation)


def _create_error(reply: Reply, creation: Creation) -> BreadcrumbsError:
    session = creation.content.session_id or ""
    match reply[0]:
        case CreateReply.KEY_REUSED:
            return IdempotencyMismatch(
                "this Idempotency-Key was already used with another body: use a new key for a new breadcrumb"
            )
        case CreateReply.SESSION_GONE:
            return _session_gone(session)
        case CreateReply.VERSION_CONFLICT:
            return _session_conflict(session, int(reply[1]), creation)
        case CreateReply.ANOTHER_SESSION:
            return AnotherSession(
                f"session {session!r} was created, deleted or replaced in the meantime: read it again"
            )
        case CreateReply.STATE_TOO_LARGE:
            return StateTooLarge(session, int(reply[1]), int(reply[2]))
    return _unknown_reply("create", reply)


def _session_conflict(session: str, current: int, creation: Creation) -> BreadcrumbsError:
    if not current:
        # The session would begin under this name. An invalid name is reported before the conflict.
        check_new_session_id(session)
    if creation.session_version == "*":
        return NotFound(f"session {session!r} not found")
    return VersionMismatch(current, creation.session_version or 0)


def decode_update(reply: Reply, update: Update) -> Written | None:
    """Return the result of update.lua, or None if another writer was faster. Raises the other errors."""
    match reply[0]:
        case UpdateReply.WRITTEN:
            base, content = update.base, update.content
            version, created, updated = int(reply[1]), int(reply[2]), int(reply[3])
            crumb = Breadcrumb(
                base.id,
                base.owner_id,
                version,
                created,
                updated,
                0,
                0,
                base.created_by,
                update.by,
                content.json,
            ).with_document(content.document)
            return Written(base.id, version, created, updated, breadcrumb=crumb)
        case UpdateReply.VERSION_CONFLICT:
            return None
        case UpdateReply.NOT_FOUND:
            raise NotFound("breadcrumb not found")
        case UpdateReply.SESSION_GONE:
            raise _session_gone(update.content.session_id or "")
    raise _unknown_reply("update", reply)


def decode_delete(reply: Reply) -> DeleteReply:
    """Return the code of delete.lua. The caller decides which codes are errors."""
    return DeleteReply(reply[0])


def check_import(reply: Reply, crumb: Breadcrumb) -> None:
    """Raise the error that import.lua reports, if any."""
    match reply[0]:
        case ImportReply.WRITTEN:
            return
        case ImportReply.ID_TAKEN:
            raise AlreadyExists(f"breadcrumb {crumb.id} already exists")
        case ImportReply.SESSION_GONE:
            raise SessionGone(f"session {crumb.session_id!r} is being deleted: import it after the deletion")
    raise _unknown_reply("import", reply)


def check_commit(reply: Reply, lane: int) -> None:
    """Raise the error if commit.lua refused the commit."""
    error = _COMMIT_ERRORS.get(reply[0])
    if error is not None:
        raise error[0](error[1].format(lane=lane))


def decode_close(reply: Reply, session: str, expected_version: int | None) -> int:
    """Return the time that identifies the deletion of a session.

    The deletion can have begun in an earlier call of close.lua.
    """
    match reply[0]:
        case CloseReply.CLOSED:
            return int(reply[2])
        case CloseReply.VERSION_CONFLICT:
            raise VersionMismatch(int(reply[1]), expected_version or 0)
        case CloseReply.NOT_FOUND:
            raise NotFound(f"session {session!r} not found")
    raise _unknown_reply("close", reply)


def decode_announce(reply: Any, session: str | None) -> int:
    """Return the time of the event that announce.lua wrote."""
    announced = int(reply)
    if announced == AnnounceReply.SESSION_GONE:
        raise SessionGone(f"session {session!r} is deleted or is being deleted")
    if announced == AnnounceReply.LETTER_GONE:
        raise NotFound("dead letter not found: it was already retried or discarded")
    return announced


def _session_gone(session: str) -> SessionGone:
    return SessionGone(f"session {session!r} is being deleted: it accepts no more writes")


def _unknown_reply(script: str, reply: Reply) -> StoreError:
    return StoreError(f"{script}.lua replied with an unknown code: {reply[0]!r}")
