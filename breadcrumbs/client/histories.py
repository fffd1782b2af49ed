"""The history of somebody else's conversation, for agent frameworks: one breadcrumb an entry, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import orjson

from breadcrumbs.client.core import Core, json_of, title_of
from breadcrumbs.client.effects import Operation
from breadcrumbs.client.errors import NotFound, VersionMismatch
from breadcrumbs.client.values import SESSION, Breadcrumb, Written

_ENTRY: Final = "entry:"
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """What a framework wants kept, as JSON."""

    document: Any
    id: str | None = None
    """Where the framework gives its entries ids that never come again: the same entry twice is kept once."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The entries of one framework in one session."""

    core: Core
    session: str
    schema_name: str
    mark: str
    """A tag that every entry carries. One that is being taken out loses it first."""

    def read(self, limit: int | None = None) -> Operation[list[Any]]:
        """The last entries, the oldest first; None: all."""
        if limit is not None and limit <= 0:
            return []
        found = yield from self.core.collect(
            session=self.session,
            schema_name=self.schema_name,
            tags=[self.mark],
            limit=limit,
            sort="-created_at",
        )
        return [crumb.context["entry"] for crumb in reversed(found)]

    def add(self, entries: Iterable[Entry]) -> Operation[None]:
        """One after the other, each whole or not at all."""
        given = [(entry, _digest(entry)) for entry in entries]
        # Looked up, for the server forgets idempotency keys after a day.
        there = yield from self._digests_there([digest for _, digest in given if digest is not None])
        for entry, digest in given:
            if digest not in there:
                yield from self._add(entry, digest)

    def _add(self, entry: Entry, digest: str | None) -> Operation[None]:
        key = digest
        while True:
            written = yield from self._create(entry, digest, key)
            if key is None or not written.replayed or (yield from self._is_there(written.id)):
                return
            # It was taken out, and comes in again: once, whoever else adds it again too.
            key = sha256(f"{key} {written.id}".encode()).hexdigest()

    def _digests_there(self, digests: list[str]) -> Operation[set[str]]:
        there: set[str] = set()
        for start in range(0, len(digests), _AT_ONCE):
            found = yield from self.core.collect(
                session=self.session,
                schema_name=self.schema_name,
                tags=[self.mark],
                any_tags=[_ENTRY + digest for digest in digests[start : start + _AT_ONCE]],
                include_context=False,
            )
            there |= {
                tag.removeprefix(_ENTRY) for crumb in found for tag in crumb.tags if tag.startswith(_ENTRY)
            }
        return there

    def pop(self) -> Operation[Any | None]:
        """Take out the newest entry. Of many who do so at once each gets another one."""
        while True:
            newest = yield from self.core.collect(
                session=self.session,
                schema_name=self.schema_name,
                tags=[self.mark],
                limit=1,
                sort="-created_at",
            )
            if not newest:
                return None
            (crumb,) = newest
            if (yield from self._take(crumb)):
                yield from self._delete(crumb)
                return crumb.context["entry"]

    def _take(self, crumb: Breadcrumb) -> Operation[bool]:
        """Make an entry ours alone; False: somebody else was faster."""
        ours = f"taken:{uuid4()}"
        try:
            yield from self.core.update(
                crumb.id,
                {"tags": [SESSION + self.session, ours]},
                expected_version=crumb.version,
                merge_context=False,
                repeatable=True,
            )
        except VersionMismatch:
            # Or it was us, and the answer was lost: another one must not go for that.
            try:
                now = yield from self.core.get(crumb.id, full=True)
            except NotFound:
                return False
            return ours in now.tags
        except NotFound:
            return False
        return True

    def clear(self) -> Operation[None]:
        """Take out all that is there."""
        found = yield from self.core.collect(
            session=self.session, schema_name=self.schema_name, include_context=False
        )
        for crumb in found:
            yield from self._delete(crumb)

    def _create(self, entry: Entry, digest: str | None, key: str | None) -> Operation[Written]:
        return self.core.create(
            {
                "schema_name": self.schema_name,
                "title": title_of(entry.title),
                "tags": [self.mark] if digest is None else [self.mark, _ENTRY + digest],
                "context": {"entry": entry.document},
            },
            session=self.session,
            idempotency_key=key,
        )

    def _is_there(self, id: str) -> Operation[bool]:
        try:
            crumb = yield from self.core.get(id, full=True)
        except NotFound:
            return False
        return self.mark in crumb.tags

    def _delete(self, crumb: Breadcrumb) -> Operation[None]:
        try:
            yield from self.core.delete(crumb.id, expected_version=None)
        except NotFound:
            pass  # by somebody who clears the same session


def _digest(entry: Entry) -> str | None:
    """With the content: an id that is used again for something else is something else."""
    if entry.id is None:
        return None
    return sha256(json_of([entry.id, entry.document], option=orjson.OPT_SORT_KEYS)).hexdigest()
