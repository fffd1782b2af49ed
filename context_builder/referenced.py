"""Loads the breadcrumbs that a stored context refers to.

Breadcrumbs that a reader may not see are marked as hidden. Explanations and rebuilt prompts use these breadcrumbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from breadcrumbs.context_builder.archiving import archived_hints
from breadcrumbs.context_builder.item_cuts import Cut, cut_texts
from breadcrumbs.context_builder.references import ContextRecord, NotAContext, Reference, read_record
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.retrieval.model_view import find_hints, model_content
from breadcrumbs.runtime.retrieval.schema_hints import DEFINES_PREFIX, applies_to_all_sessions
from breadcrumbs.runtime.schema_names import SCHEMA_DEFINITION
from breadcrumbs.runtime.store.store import Store

_GROUP_SIZE: Final = 8  # references that are loaded together, with up to two versions of each in memory
_REFERENCE_BYTES: Final = 1_024  # added to the byte budget per reference, even if its breadcrumb is gone

_VersionKey: TypeAlias = tuple[UUID, int]
_R = TypeVar("_R", bound=Reference)


@dataclass(frozen=True, slots=True)
class Reader:
    """Permissions of the reader of an explanation."""

    may_see: Callable[[Breadcrumb], bool] | None = None
    """None if the reader may see all breadcrumbs."""
    conceals_gone: bool = False
    """Treat deleted breadcrumbs as hidden, because a client could have invented the reference to test for an id."""

    def sees(self, crumb: Breadcrumb) -> bool:
        return self.may_see is None or self.may_see(crumb)


UNRESTRICTED: Final = Reader()


class LoadedVersion(NamedTuple):
    """Version that a context refers to, with the newest version of the breadcrumb."""

    then: Breadcrumb
    newest: Breadcrumb

    @property
    def size(self) -> int:
        """The bytes that were read."""
        return len(self.then.json) + (0 if self.newest is self.then else len(self.newest.json))


class ReferencedBreadcrumbs:
    """Breadcrumbs that references of a context point to, as they are stored now."""

    def __init__(
        self,
        versions: dict[_VersionKey, LoadedVersion],
        hidden: set[_VersionKey],
        record: ContextRecord,
        definitions: dict[str, Breadcrumb],
        archived: dict[str, Any],
    ) -> None:
        self._versions = versions
        self._hidden = hidden
        self._recorded_hints = record.hints
        self._definitions = definitions
        self._archived = archived

    @classmethod
    async def load(
        cls,
        store: Store,
        owner: UUID,
        record: ContextRecord,
        references: Iterable[Reference],
        reader: Reader = UNRESTRICTED,
    ) -> ReferencedBreadcrumbs:
        """Load the referenced versions concurrently, each one once."""
        wanted = list({(reference.id, reference.version) for reference in references})
        loaded = await gather(*(load_version(store, owner, *key) for key in wanted))
        versions = {key: found for key, found in zip(wanted, loaded, strict=True) if found is not None}
        # A breadcrumb that became secret is secret in its older versions too.
        hidden = {
            key
            for key, found in versions.items()
            if not (reader.sees(found.then) and reader.sees(found.newest))
        }
        if reader.conceals_gone:
            hidden |= set(wanted) - versions.keys()
        schemas = {found.then.schema_name or "" for found in versions.values()}
        definitions, archived = await _load_definitions(store, owner, record, schemas)
        return cls(versions, hidden, record, definitions, archived)

    @property
    def size(self) -> int:
        """The bytes that were read."""
        return sum(found.size for found in self._versions.values())

    def is_hidden(self, reference: Reference) -> bool:
        """Return whether the reader may not see the breadcrumb."""
        return (reference.id, reference.version) in self._hidden

    def get(self, reference: Reference) -> Breadcrumb | None:
        """Return the referenced version, or None if it was deleted or has expired."""
        found = self._versions.get((reference.id, reference.version))
        return None if found is None else found.then

    def content(self, crumb: Breadcrumb, cut: Cut | None = None) -> dict[str, Any] | None:
        """Return the content that the model was shown, cut as in the context.

        The hints of a deleted schema definition are in the archive. Return None if they are not there either. Without
        the hints, the content could contain something that they had hidden.
        """
        schema = crumb.schema_name or ""
        hints, _ = find_hints(crumb, self._definitions)
        hints = hints or self._archived.get(schema)
        if hints is None and schema in self._recorded_hints and schema not in self._definitions:
            return None
        content = model_content(crumb, hints)
        return content if cut is None else cut_texts(content, cut.kept)


async def load_context(
    store: Store, owner: UUID, id: UUID, version: int | None
) -> tuple[Breadcrumb, ContextRecord]:
    """Return a version of a context and its record.

    Without a version, return the newest.
    """
    if version is None:
        context = await store.get(owner, id, count_read=False)
    else:
        context = await store.get_version(owner, id, version)
    try:
        return context, read_record(context)
    except NotAContext as error:
        raise NotFound(str(error)) from None


async def load_version(store: Store, owner: UUID, id: UUID, version: int) -> LoadedVersion | None:
    """Return a version and the newest version of a breadcrumb.

    Return None if one of them no longer exists.
    """
    try:
        newest = await store.get(owner, id, count_read=False)
        then = newest if newest.version == version else await store.get_version(owner, id, version)
    except NotFound:
        return None
    return LoadedVersion(then, newest)


def group_references(references: Sequence[_R]) -> Iterator[Sequence[_R]]:
    """Split references into groups that are loaded together."""
    for start in range(0, len(references), _GROUP_SIZE):
        yield references[start : start + _GROUP_SIZE]


def cost_of(group: Sequence[Reference], loaded: ReferencedBreadcrumbs) -> int:
    """Return the bytes that a group counts against the budget of a page."""
    return loaded.size + len(group) * _REFERENCE_BYTES


async def _load_definitions(
    store: Store, owner: UUID, record: ContextRecord, schemas: set[str]
) -> tuple[dict[str, Breadcrumb], dict[str, Any]]:
    """Return the schema definitions whose hints the context used, and the hints of deleted ones, by schema."""
    wanted = list(schemas & record.hints.keys())
    loaded = await gather(*(load_version(store, owner, *record.hints[name]) for name in wanted))
    found = dict(zip(wanted, loaded, strict=True))
    definitions = {
        schema: version.then
        for schema, version in found.items()
        if version is not None and all(defines(one, schema) for one in version)
    }
    deleted = {schema: record.hints[schema] for schema, version in found.items() if version is None}
    return definitions, await archived_hints(store, owner, deleted)


def defines(crumb: Breadcrumb, schema: str) -> bool:
    """Return whether a breadcrumb is a valid definition of a schema.

    This must be checked, because a client can write a context that refers to any breadcrumb.
    """
    return (
        crumb.schema_name == SCHEMA_DEFINITION
        and DEFINES_PREFIX + schema in crumb.tags
        and applies_to_all_sessions(crumb)
    )
