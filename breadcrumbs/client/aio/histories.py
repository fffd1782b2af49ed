"""Message histories of agent frameworks. Each entry is a breadcrumb, in the order of the framework."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final, Unpack
from uuid import uuid4

from breadcrumbs.client.aio.client import AsyncClient
from breadcrumbs.client.entries import Entry, entry_digest
from breadcrumbs.client.errors import NotFound, VersionMismatch
from breadcrumbs.client.options import Listing
from breadcrumbs.client.requests import breadcrumb_path, if_match
from breadcrumbs.client.values import SESSION, Breadcrumb, Written
from breadcrumbs.runtime.breadcrumb.text import shorten_line

_ENTRY: Final = "entry:"
_DIGESTS_PER_REQUEST: Final = 64


class AsyncHistory:
    """The entries of one framework in one session."""

    def __init__(self, client: AsyncClient, session: str, schema_name: str, mark: str) -> None:
        """Entries have the tag `mark`. Removing an entry first removes this tag, so that it is not listed."""
        self._client = client
        self._session = session
        self._schema_name = schema_name
        self._mark = mark

    async def read(self, limit: int | None = None) -> list[Any]:
        """Return the last `limit` entries, oldest first. Without a limit, all entries."""
        if limit is not None and limit <= 0:
            return []
        found = await self._list(tags=[self._mark], limit=limit, sort="-created_at")
        return [crumb.context["entry"] for crumb in reversed(found)]

    async def add(self, entries: Iterable[Entry]) -> None:
        """Add entries in order. Each write is atomic. Entries with an id that are already stored are skipped."""
        given = [(entry, entry_digest(entry)) for entry in entries]
        # Idempotency keys expire, by default after a day. Look up the stored entries too.
        stored = await self._stored_digests([digest for _, digest in given if digest is not None])
        for entry, digest in given:
            if digest not in stored:
                await self._add_one(entry, digest)

    async def pop(self) -> Any | None:
        """Remove and return the newest entry. Concurrent callers get different entries."""
        while True:
            newest = await self._list(tags=[self._mark], limit=1, sort="-created_at")
            if not newest:
                return None
            (crumb,) = newest
            if await self._claim(crumb):
                await self._delete(crumb)
                return crumb.context["entry"]

    async def clear(self) -> None:
        """Remove all entries."""
        for crumb in await self._list(include_context=False):
            await self._delete(crumb)

    async def _add_one(self, entry: Entry, digest: str | None) -> None:
        key = digest
        while True:
            written = await self._create(entry, digest, key)
            if key is None or not written.replayed or await self._is_stored(written.id):
                return
            # The entry was removed after its key was used. Derive the next key from the removed breadcrumb, so that
            # concurrent callers still add the entry once.
            key = sha256(f"{key} {written.id}".encode()).hexdigest()

    async def _create(self, entry: Entry, digest: str | None, key: str | None) -> Written:
        return await self._client.create(
            self._schema_name,
            {"entry": entry.document},
            title=shorten_line(entry.title),
            tags=[self._mark] if digest is None else [self._mark, _ENTRY + digest],
            session=self._session,
            idempotency_key=key,
        )

    async def _stored_digests(self, digests: list[str]) -> set[str]:
        stored: set[str] = set()
        for start in range(0, len(digests), _DIGESTS_PER_REQUEST):
            tags = [_ENTRY + digest for digest in digests[start : start + _DIGESTS_PER_REQUEST]]
            for crumb in await self._list(tags=[self._mark], any_tags=tags, include_context=False):
                stored |= {tag.removeprefix(_ENTRY) for tag in crumb.tags if tag.startswith(_ENTRY)}
        return stored

    async def _claim(self, crumb: Breadcrumb) -> bool:
        """Claim an entry for this caller. Return False if another caller claimed it first."""
        claim = f"taken:{uuid4()}"
        try:
            await self._client.request(
                "PATCH",
                breadcrumb_path(crumb.id),
                json={"tags": [SESSION + self._session, claim]},
                headers=if_match(crumb.version),
                idempotent=True,
            )
        except VersionMismatch:
            # Also raised if our own claim succeeded but its reply was lost. Our tag distinguishes the two cases.
            return await self._has_tag(crumb.id, claim)
        except NotFound:
            return False
        return True

    async def _is_stored(self, id: str) -> bool:
        return await self._has_tag(id, self._mark)

    async def _has_tag(self, id: str, tag: str) -> bool:
        try:
            return tag in (await self._client.get_full(id)).tags
        except NotFound:
            return False

    async def _delete(self, crumb: Breadcrumb) -> None:
        try:
            await self._client.delete(crumb.id)
        except NotFound:
            pass  # another caller has deleted it

    async def _list(self, **wanted: Unpack[Listing]) -> list[Breadcrumb]:
        filters: Listing = {**wanted, "session": self._session, "schema_name": self._schema_name}
        return [crumb async for crumb in self._client.list(**filters)]
