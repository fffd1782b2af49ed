"""Answers that are being written: the text so far, for clients that join in the middle.

Each session with such an answer has one hash (kind `P` in keys.py). The fields of an answer are

    <turn> <id>                          head: run, JSON
    <turn> <id> <run> <number>           piece: JSON, numbered from 0

`<turn>` is the time of the event and the kind of the worker, so a commit that acknowledges the event removes the
answers of all agents in the turn. `<run>` identifies the attempt. A reader uses only pieces of the run in the head, up
to the first missing number, so it never mixes two attempts.

Pieces are saved without waiting (`save`), because the answer must not wait for them. They can get lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.fence import EndedAnswers, Lease
from breadcrumbs.runtime.store.store import Store

_PROGRESS, _DISCARD = Script("progress"), Script("discard")

_TIME_BYTES: Final = 8
_ID_BYTES: Final = 16
_RUN_BYTES: Final = 16
_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """One attempt to write an answer. A later attempt is greater, also if another worker makes it."""

    fence: int
    """The fence number of the lease. It increases with each holder of the lane."""
    number: int
    """Number of the run in the process of the worker."""

    def encode(self) -> bytes:
        return self.fence.to_bytes(_RUN_BYTES // 2) + self.number.to_bytes(_RUN_BYTES // 2)

    @classmethod
    def decode(cls, raw: bytes) -> Run:
        return cls(int.from_bytes(raw[: _RUN_BYTES // 2]), int.from_bytes(raw[_RUN_BYTES // 2 :]))


NO_RUN: Final = Run(0, 0)
"""The run of an answer that is not saved. Workers of earlier versions do not send a run."""


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """Place of a running answer in the store, with the right to write it."""

    lease: Lease
    owner: UUID
    session: str
    event: int
    """Time of the event that the answer belongs to."""
    id: UUID
    run: Run
    keep_seconds: float
    """The text so far is removed after this time without a new piece, in case the worker dies."""

    @property
    def field(self) -> bytes:
        return turn_fields(self.event, self.lease.kind) + self.id.bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A running answer as it is stored."""

    id: UUID
    run: Run
    head: bytes
    pieces: list[bytes]
    """The pieces of the head's run, without a gap."""


def next_run(lease: Lease, number: int) -> Run:
    """Return the run of an attempt under a lease."""
    fence = lease.value.partition(b" ")[0]
    return Run(int(fence) if fence.isdigit() else 0, number)


def turn_fields(event: int, kind: str) -> bytes:
    """Return the beginning of all fields of a turn."""
    name = kind.encode()
    return event.to_bytes(_TIME_BYTES) + len(name).to_bytes(2) + name


def ended_answers(owner: UUID, session: str, event: int, kind: str, id: UUID | None = None) -> EndedAnswers:
    """Return the running answers of a turn, or only the one with this id."""
    return EndedAnswers(owner, session, turn_fields(event, kind) + (b"" if id is None else id.bytes))


def _progress_call(
    store: Store, answer: SavedAnswer, head: bytes, number: int, piece: bytes
) -> tuple[list[bytes], list[bytes | str | int]]:
    """Return keys and arguments of progress.lua. The piece with number 0 begins a run."""
    lane, keys, field = answer.lease.lane, store.keys, answer.field
    return [
        keys.running(lane, answer.owner, answer.session),
        keys.lease(lane, answer.lease.kind),
        keys.session(lane, answer.owner, answer.session),
        keys.body(lane, answer.owner, answer.id.bytes),
    ], [
        answer.lease.value,
        answer.event,
        field,
        answer.run.encode() + head,
        _piece_field(field, answer.run.encode(), number),
        piece,
        int(number == 0),
        int(answer.keep_seconds * 1000),
    ]


async def save_now(store: Store, answer: SavedAnswer, head: bytes, number: int, piece: bytes) -> bool:
    """Like `save`, but wait for the reply. Return whether the piece was saved."""
    keys, args = _progress_call(store, answer, head, number, piece)
    return bool(await store.connection.run(answer.lease.lane, _PROGRESS, keys, args))


def save(store: Store, answer: SavedAnswer, head: bytes, number: int, piece: bytes) -> None:
    """Save the next piece of a running answer without waiting. An empty piece saves only the head."""
    keys, args = _progress_call(store, answer, head, number, piece)
    # EVAL instead of EVALSHA: without a reply there is no second try with the source.
    store.connection.post(answer.lease.lane, b"EVAL", _PROGRESS.source, len(keys), *keys, *args)


def discard(store: Store, lease: Lease, ended: EndedAnswers) -> None:
    """Remove running answers without waiting, after a turn that ended without an answer or an error."""
    keys = [
        store.keys.running(lease.lane, ended.owner, ended.session),
        store.keys.lease(lease.lane, lease.kind),
    ]
    store.connection.post(lease.lane, b"EVAL", _DISCARD.source, len(keys), *keys, lease.value, ended.fields)


async def end_before(store: Store, owner: UUID, session: str, time: int) -> None:
    """Remove the running answers of a session whose events are older than `time`."""
    lane = store.keys.session_lane(owner, session)
    key = store.keys.running(lane, owner, session)
    fields = await store.connection.call(lane, b"HKEYS", key)
    if ended := [field for field in fields if _event_time(field) < time]:
        await store.connection.call(lane, b"HDEL", key, *ended)


async def read(store: Store, owner: UUID, session: str) -> list[StoredAnswer]:
    """Return the running answers of a session, the oldest turn first.

    Commits and the deletion of a session remove what they end. Processes of earlier versions do not, so answers that
    are already written, and those of an earlier session of the same name, are left out here.
    """
    lane, keys = store.keys.session_lane(owner, session), store.keys
    flat, times = await store.connection.call_all(
        [
            (lane, (b"HGETALL", keys.running(lane, owner, session))),
            (lane, (b"HMGET", keys.session(lane, owner, session), b"closing", b"entered", b"created")),
        ]
    )
    began = _session_beginning(*times)
    if not flat or began is None:
        return []
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    heads = sorted(field for field in fields if len(field) == _head_length(field))
    answers = [_stored_answer(fields, field) for field in heads if _event_time(field) >= began]
    written = await store.connection.call_all(
        [(lane, (b"EXISTS", keys.body(lane, owner, answer.id.bytes))) for answer in answers]
    )
    return [answer for answer, is_written in zip(answers, written, strict=True) if not is_written]


def _session_beginning(closing: bytes | None, entered: bytes | None, created: bytes | None) -> int | None:
    """Return the time when a session began, as in progress.lua. None: it was deleted."""
    began = entered or created
    return None if closing is not None or began is None else int(began)


def _event_time(field: bytes) -> int:
    return int.from_bytes(field[:_TIME_BYTES])


def _head_length(field: bytes) -> int:
    """Return the length of the head field of the same answer."""
    return _TIME_BYTES + 2 + int.from_bytes(field[_TIME_BYTES : _TIME_BYTES + 2]) + _ID_BYTES


def _stored_answer(fields: dict[bytes, bytes], field: bytes) -> StoredAnswer:
    value = fields[field]
    raw_run, head = value[:_RUN_BYTES], value[_RUN_BYTES:]
    pieces: list[bytes] = []
    while (piece := fields.get(_piece_field(field, raw_run, len(pieces)))) is not None:
        pieces.append(piece)
    return StoredAnswer(UUID(bytes=field[-_ID_BYTES:]), Run.decode(raw_run), head, pieces)


def _piece_field(field: bytes, run: bytes, number: int) -> bytes:
    return field + run + number.to_bytes(_NUMBER_BYTES)
