"""Codes of script replies: one name each, in the script's header and in Python."""

from __future__ import annotations

import re
from enum import IntEnum
from importlib.resources import files
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, build_content
from breadcrumbs.runtime.errors import (
    AnotherSession,
    BreadcrumbsError,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    SessionGone,
    StateTooLarge,
    StoreError,
    VersionMismatch,
)
from breadcrumbs.runtime.store.options import SessionVersion
from breadcrumbs.runtime.store.script_calls import Creation
from breadcrumbs.runtime.store.script_replies import (
    AnnounceReply,
    CloseReply,
    CommitReply,
    CreateReply,
    DeleteReply,
    ImportReply,
    ReduceReply,
    Reply,
    UpdateReply,
    decode_close,
    decode_create,
)

OWNER, ID, OTHER_ID = (UUID(int=number) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        ("create", CreateReply),
        ("update", UpdateReply),
        ("delete", DeleteReply),
        ("import", ImportReply),
        ("commit", CommitReply),
        ("close", CloseReply),
        ("announce", AnnounceReply),
        ("reduce", ReduceReply),
    ],
)
def test_the_header_of_a_script_lists_its_codes_by_name(script: str, codes: type[IntEnum]) -> None:
    source = files("breadcrumbs.runtime.store").joinpath(f"lua/{script}.lua").read_text()
    header = source.partition("]]")[0].partition("\nReply ")[2]
    listed = re.findall(r"^ *\{?(-?\d+)(?:,[^}]*)?\}? +([A-Z_]+)\b", header, re.MULTILINE)
    assert {name: int(code) for code, name in listed} == {code.name: code.value for code in codes}


def creation(session: str | None = "s", version: SessionVersion = None) -> Creation:
    new = BreadcrumbCreate(title="t", tags=[] if session is None else [f"session:{session}"])
    return Creation(0, OWNER, ID, new, build_content(new), None, session_version=version)


def test_a_created_breadcrumb_is_part_of_the_result() -> None:
    made = creation()
    written = decode_create([0, b"1", b"5", b"5", b"7"], made)
    assert (written.id, written.version, written.created, written.session_version) == (ID, 1, 5, 7)
    assert written.breadcrumb is not None
    assert (written.breadcrumb.id, written.breadcrumb.owner_id) == (ID, OWNER)
    assert written.breadcrumb.json == made.content.json


def test_a_breadcrumb_that_was_not_written_is_not_part_of_the_result() -> None:
    replayed = decode_create([CreateReply.REPLAYED, b"1", b"5", b"5", OTHER_ID.bytes], creation())
    assert replayed.replayed and replayed.id == OTHER_ID and replayed.breadcrumb is None
    own = decode_create([CreateReply.REPLAYED, b"1", b"5", b"5", ID.bytes], creation())
    assert not own.replayed
    found = decode_create([CreateReply.ID_TAKEN, b"2", b"5", b"6"], creation())
    assert found.found and found.version == 2 and found.breadcrumb is None


@pytest.mark.parametrize(
    ("reply", "made", "error"),
    [
        ([CreateReply.KEY_REUSED], creation(), IdempotencyMismatch),
        ([CreateReply.SESSION_GONE], creation(), SessionGone),
        ([CreateReply.VERSION_CONFLICT, b"3"], creation(version=2), VersionMismatch),
        ([CreateReply.VERSION_CONFLICT, b"0"], creation(version="*"), NotFound),
        ([CreateReply.VERSION_CONFLICT, b"0"], creation("a\u200bb", "*"), InvalidInput),
        ([CreateReply.ANOTHER_SESSION], creation(), AnotherSession),
        ([CreateReply.STATE_TOO_LARGE, b"9", b"8"], creation(), StateTooLarge),
        ([99], creation(), StoreError),
    ],
)
def test_each_refusal_of_a_create_raises_its_own_error(
    reply: Reply, made: Creation, error: type[BreadcrumbsError]
) -> None:
    with pytest.raises(error) as caught:
        decode_create(reply, made)
    assert type(caught.value) is error


def test_the_deletion_of_a_session_is_identified_by_its_time() -> None:
    assert decode_close([CloseReply.CLOSED, b"4", b"123"], "s", None) == 123
    with pytest.raises(VersionMismatch):
        decode_close([CloseReply.VERSION_CONFLICT, b"4"], "s", 3)
    with pytest.raises(NotFound):
        decode_close([CloseReply.NOT_FOUND], "s", None)
