"""Export and import: one breadcrumb with its history is one line of JSON.

    {"breadcrumb": {"id", "owner_id", "version", "created_at", "updated_at", "created_by"?, "updated_by"?,
                    "expires_at"?, "reads_left"?, …content}, "history": [{…an older version}, …]}

A history that is larger than a line should be goes on in lines that follow, each with some of the versions:

    {"history_of": {"id", "owner_id", "version", "created_at"}, "history": [{…an older version}, …]}

Ids, versions, times and history survive. What comes in is validated as if a client had sent it, so a file
that was edited by hand cannot put anything into the store that the API would have refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, content_of, parse_time
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, depth, parse_json
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.ttl import NEVER, Expiry
from breadcrumbs.runtime.errors import AlreadyExists, InvalidInput, NotFound
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.history import VersionPage
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.store import Store

_SET_BY_THE_STORE = (
    "id", "owner_id", "version", "created_at", "updated_at", "created_by", "updated_by", "expires_at",
    "reads_left", "ttl_source",
)  # fmt: skip

_NAMES_A_BREADCRUMB = ("id", "owner_id", "version", "created_at")

# Not NEVER: all that counts is that there was a default. When it ends is in `expires_at`.
_SOME_DEFAULT = Expiry(after=1)

_AT_ONCE = 64
_LINE_BYTES = WALK_BYTES
"""A line ends after about so many bytes of older versions. Import and export have a few such lines in memory."""
_SHORT_HISTORY = _LINE_BYTES // _AT_ONCE
"""Histories up to this size are read side by side."""


# One line


def encode(crumb: Breadcrumb, history: Iterable[Breadcrumb] = ()) -> bytes:
    """A line, without its line break."""
    line: dict[str, Any] = {"breadcrumb": _document(crumb)}
    if older := [_document(version) for version in history]:
        line["history"] = older
    return orjson.dumps(line)


@dataclass(frozen=True, slots=True)
class MoreHistory:
    """Some older versions of a breadcrumb that stood in an earlier line."""

    newest: Breadcrumb
    """The newest version: its id, owner, version and time of creation."""
    versions: list[Breadcrumb]


def encode_more(newest: Breadcrumb, versions: Iterable[Breadcrumb]) -> bytes:
    """A line that goes on with the history of a breadcrumb."""
    of = {name: _document(newest)[name] for name in _NAMES_A_BREADCRUMB}
    return orjson.dumps({"history_of": of, "history": [_document(version) for version in versions]})


def decode(raw: bytes, *, owner: UUID | None = None) -> tuple[Breadcrumb, list[Breadcrumb]]:
    """A breadcrumb and its older versions. `owner` wins over the owner in the line."""
    found = decode_line(raw, owner=owner)
    if isinstance(found, MoreHistory):
        raise InvalidInput(
            "this line is the rest of a history: the breadcrumb is in an earlier one", where="line"
        )
    return found


def decode_line(
    raw: bytes, *, owner: UUID | None = None
) -> tuple[Breadcrumb, list[Breadcrumb]] | MoreHistory:
    """The content of a line."""
    # A breadcrumb lies one or two levels deeper in a line than in a request.
    line = parse_json(raw, levels=MAX_DEPTH + 2)
    if isinstance(line, dict) and isinstance(line.get("history_of"), dict):
        return _more_history(line, owner)
    if not isinstance(line, dict) or not isinstance(line.get("breadcrumb"), dict):
        raise InvalidInput('a line looks like {"breadcrumb": {…}, "history": […]}', where="line")
    _check_fields(line, {"breadcrumb", "history"})
    crumb = _breadcrumb(line["breadcrumb"], owner, "breadcrumb")
    history = _versions(line, owner)
    _check_history(crumb, history)
    return crumb, history


def _more_history(line: dict[str, Any], owner: UUID | None) -> MoreHistory:
    _check_fields(line, {"history_of", "history"})
    of, where = line["history_of"], "history_of"
    _check_fields(of, set(_NAMES_A_BREADCRUMB))
    versions = _versions(line, owner)
    if not versions:
        raise InvalidInput("history must have a version", where="history")
    newest = replace(
        versions[0],
        id=_uuid(of, "id", where),
        owner_id=owner or _uuid(of, "owner_id", where),
        version=_integer(of, "version", where, lowest=1),
        created=_time(of, "created_at", where),
    )
    _check_history(newest, versions)
    return MoreHistory(newest, versions)


def _check_fields(line: dict[str, Any], known: set[str]) -> None:
    if unknown := line.keys() - known:
        raise InvalidInput(f"there is no field {sorted(unknown)[0]!r} here", where=sorted(unknown)[0])


def _versions(line: dict[str, Any], owner: UUID | None) -> list[Breadcrumb]:
    versions = line.get("history", [])
    if not isinstance(versions, list) or not all(isinstance(version, dict) for version in versions):
        raise InvalidInput("history must be a list of older versions", where="history")
    return [_breadcrumb(version, owner, f"history.{n}") for n, version in enumerate(versions)]


def _document(crumb: Breadcrumb) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": str(crumb.id),
        "owner_id": str(crumb.owner_id),
        "version": crumb.version,
        "created_at": crumb.created_at,
        "updated_at": crumb.updated_at,
    }
    if crumb.created_by is not None:
        document["created_by"] = str(crumb.created_by)
    if crumb.updated_by is not None:
        document["updated_by"] = str(crumb.updated_by)
    if crumb.expires:
        document["expires_at"] = times.to_text(crumb.expires)
    if crumb.max_reads:
        document["reads_left"] = crumb.max_reads
    return document | crumb.document


def _breadcrumb(document: dict[str, Any], owner: UUID | None, where: str) -> Breadcrumb:
    if depth(document) > MAX_DEPTH:
        raise InvalidInput(f"the JSON nests deeper than {MAX_DEPTH} levels: flatten it", where=where)
    given = {name: document[name] for name in _SET_BY_THE_STORE if name in document}
    source = given.get("ttl_source")
    if source not in (None, "explicit", "schema-default"):
        raise InvalidInput("ttl_source must be 'explicit' or 'schema-default'", where=f"{where}.ttl_source")
    content = content_of(
        BreadcrumbCreate.parse({name: value for name, value in document.items() if name not in given}),
        default_ttl=_SOME_DEFAULT if source == "schema-default" else NEVER,
    )
    created, updated = _time(given, "created_at", where), _time(given, "updated_at", where)
    if updated < created:
        raise InvalidInput("updated_at lies before created_at", where=f"{where}.updated_at")
    return Breadcrumb(
        _uuid(given, "id", where),
        owner or _uuid(given, "owner_id", where),
        _integer(given, "version", where, lowest=1),
        created,
        updated,
        _time(given, "expires_at", where) if "expires_at" in given else 0,
        _integer(given, "reads_left", where) if "reads_left" in given else 0,
        _uuid(given, "created_by", where) if "created_by" in given else None,
        _uuid(given, "updated_by", where) if "updated_by" in given else None,
        content.json,
    )


def _check_history(crumb: Breadcrumb, history: list[Breadcrumb]) -> None:
    versions = [version.version for version in history]
    if len(set(versions)) != len(versions) or any(version >= crumb.version for version in versions):
        raise InvalidInput(
            "the versions in history must differ, and come before the breadcrumb's own", where="history"
        )
    for number, version in enumerate(history):
        if (version.id, version.owner_id) != (crumb.id, crumb.owner_id):
            raise InvalidInput("this is a version of another breadcrumb", where=f"history.{number}.id")
        if version.session_id != crumb.session_id:
            raise InvalidInput("a breadcrumb stays in its session", where=f"history.{number}.tags")


def _uuid(given: dict[str, Any], name: str, where: str) -> UUID:
    return parse_id(_text(given, name, where), what=f"{where}.{name}")


def _time(given: dict[str, Any], name: str, where: str) -> int:
    return parse_time(_text(given, name, where), where=f"{where}.{name}")


def _text(given: dict[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is missing, or is not text", where=f"{where}.{name}")
    return value


def _integer(given: dict[str, Any], name: str, where: str, *, lowest: int = -(1 << 31)) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 1 << 31:
        raise InvalidInput(f"{name} must be a whole number from {lowest} on", where=f"{where}.{name}")
    return value


# Many lines


async def export_lines(
    store: Store, owner: UUID, query: Query, *, history: bool = True
) -> AsyncIterator[bytes]:
    """Everything a query finds, the oldest first where the query does not say otherwise."""
    waiting: list[Breadcrumb] = []
    size = 0
    async for crumb in store.walk(owner, query):
        waiting.append(crumb)
        size += len(crumb.json)
        if len(waiting) == _AT_ONCE or size >= _LINE_BYTES:
            async for line in _encode_all(store, waiting, history=history):
                yield line
            waiting, size = [], 0
    async for line in _encode_all(store, waiting, history=history):
        yield line


async def _encode_all(store: Store, crumbs: list[Breadcrumb], *, history: bool) -> AsyncIterator[bytes]:
    pages: dict[UUID, VersionPage | None] = {}

    async def begin(crumb: Breadcrumb) -> None:
        try:
            pages[crumb.id] = await store.history_page(crumb.owner_id, crumb.id, max_bytes=_SHORT_HISTORY)
        except NotFound:
            pages[crumb.id] = None  # deleted meanwhile

    async with anyio.create_task_group() as tasks:
        for crumb in crumbs:
            if history and crumb.version > 1:
                tasks.start_soon(begin, crumb)
    for crumb in crumbs:
        if crumb.id not in pages:
            yield encode(crumb)
        elif (page := pages.pop(crumb.id)) is not None:
            async for line in _encode_history(store, page):
                yield line


async def _encode_history(store: Store, page: VersionPage) -> AsyncIterator[bytes]:
    """A breadcrumb with all of its versions, in as many lines as it takes."""
    newest, older = page.newest, page.versions[1:]
    if page.next_before is None:
        yield encode(newest, older)
        return
    # The first version has what the breadcrumb set of its session's state: it belongs to the first line.
    first: list[Breadcrumb] = []
    try:
        first = [await store.get_version(newest.owner_id, newest.id, 1)]
    except NotFound:
        pass  # an import has left it out, or all of it was deleted meanwhile
    yield encode(newest, [*older, *first])
    before: int | None = page.next_before
    while before is not None:
        try:
            page = await store.history_page(newest.owner_id, newest.id, before=before, max_bytes=_LINE_BYTES)
        except NotFound:
            return  # deleted meanwhile: what was exported is as it was
        if versions := [version for version in page.versions if version.version > 1]:
            yield encode_more(newest, versions)
        before = page.next_before


@dataclass(slots=True)
class BadLine:
    number: int
    message: str


@dataclass(slots=True)
class Imported:
    """What an import did; grows while it runs."""

    lines: int = 0
    written: int = 0
    already_there: int = 0
    expired: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)
    left_out: set[tuple[UUID, UUID]] = field(default_factory=set)
    """Owner and id of what was not written, so that more of its history may come and is no fault."""


async def import_lines(
    store: Store, lines: Iterable[bytes], *, owner: UUID | None = None, dry_run: bool = False
) -> AsyncIterator[Imported]:
    """Write what is not there yet; gives the count so far every now and then, and at the end.

    Bad lines are noted and left out. To repeat an import is safe: an id that is there stays as it is.
    """
    count = Imported()
    waiting: list[tuple[int, bytes]] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            waiting.append((number, line))
            size += len(line)
        if len(waiting) == _AT_ONCE or size >= _LINE_BYTES:
            await _import_all(store, waiting, owner, dry_run, count)
            waiting, size = [], 0
            yield count
    await _import_all(store, waiting, owner, dry_run, count)
    count.bad_lines.sort(key=lambda bad: bad.number)
    yield count


async def _import_all(
    store: Store, lines: list[tuple[int, bytes]], owner: UUID | None, dry_run: bool, count: Imported
) -> None:
    known: set[tuple[UUID, UUID]] = set()

    more: list[tuple[int, MoreHistory]] = []

    async def take_in(crumb: Breadcrumb, history: list[Breadcrumb]) -> None:
        if record.is_gone(crumb, store.now()):
            count.expired += 1
            count.left_out.add((crumb.owner_id, crumb.id))
            return
        try:
            if dry_run:
                await _would_restore(store, crumb)
            else:
                await store.restore(crumb, history)
        except AlreadyExists:
            count.already_there += 1
        else:
            count.written += 1

    async with anyio.create_task_group() as tasks:
        for number, raw in lines:
            count.lines += 1
            try:
                found = decode_line(raw, owner=owner)
            except InvalidInput as error:
                count.bad_lines.append(BadLine(number, _in_words(error)))
                continue
            if isinstance(found, MoreHistory):
                more.append((number, found))
                continue
            crumb, history = found
            if (crumb.owner_id, crumb.id) in known:
                count.already_there += 1  # twice in one batch: both would find it missing
                continue
            known.add((crumb.owner_id, crumb.id))
            tasks.start_soon(take_in, crumb, history)
    for number, rest in more:
        newest = rest.newest
        if dry_run or (newest.owner_id, newest.id) in count.left_out:
            continue
        if not await store.extend_history(newest, rest.versions):
            count.bad_lines.append(BadLine(number, "history_of: the breadcrumb is not in an earlier line"))


async def _would_restore(store: Store, crumb: Breadcrumb) -> None:
    try:
        await store.get(crumb.owner_id, crumb.id, count_read=False)
    except NotFound:
        return
    raise AlreadyExists(f"breadcrumb {crumb.id} is there already")


def _in_words(error: InvalidInput) -> str:
    complaint = error.complaints[0]
    # "body" and "line" are all of it: there is no place to point at.
    return (
        complaint.message
        if complaint.where in ("", "body", "line")
        else f"{complaint.where}: {complaint.message}"
    )
