"""The history of somebody else's conversation, for agent frameworks: one breadcrumb an entry, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from breadcrumbs.client.core import Core, title_of
from breadcrumbs.client.effects import Operation
from breadcrumbs.client.errors import NotFound, VersionMismatch
from breadcrumbs.client.values import SESSION, Breadcrumb, Written


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
        for entry in entries:
            written = yield from self._create(entry, _key(entry))
            if written.replayed and not (yield from self._is_there(written.id)):
                yield from self._create(entry, None)  # it was taken out, and comes in again

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
            try:
                yield from self.core.update(
                    crumb.id,
                    {"tags": [SESSION + self.session]},
                    expected_version=crumb.version,
                    merge_context=False,
                )
            except (VersionMismatch, NotFound):
                continue  # somebody else was faster
            yield from self._delete(crumb)
            return crumb.context["entry"]

    def clear(self) -> Operation[None]:
        """Take out all that is there."""
        found = yield from self.core.collect(
            session=self.session, schema_name=self.schema_name, include_context=False
        )
        for crumb in found:
            yield from self._delete(crumb)

    def _create(self, entry: Entry, key: str | None) -> Operation[Written]:
        return self.core.create(
            {
                "schema_name": self.schema_name,
                "title": title_of(entry.title),
                "tags": [self.mark],
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


def _key(entry: Entry) -> str | None:
    """With the content: an id that is used again for something else is something else."""
    if entry.id is None:
        return None
    return sha256(orjson.dumps([entry.id, entry.document], option=orjson.OPT_SORT_KEYS)).hexdigest()
