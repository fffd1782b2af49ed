"""Lists, changes and loads saved selectors, within the rights of a principal."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.breadcrumb.selectors import Selector, parse_selector
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.records import Registry, SelectorRecord, SelectorSaver, saver_of


async def list_own(registry: Registry, principal: Principal) -> list[SelectorRecord]:
    """Return the selectors that the principal may list and change."""
    records = await registry.selectors(principal.owner_id)
    return [record for record in records if policy.owns_selector(principal, *saver_of(record))]


async def save(registry: Registry, principal: Principal, selector: Selector) -> SelectorRecord:
    saver = SelectorSaver(principal.agent_id, principal.session_id, principal.user_id)
    return await registry.add_selector(principal.owner_id, saver, selector)


async def replace(registry: Registry, principal: Principal, id: UUID, selector: Selector) -> None:
    record = await _get_own(registry, principal, id)
    await registry.replace_selector(principal.owner_id, record, selector)


async def delete(registry: Registry, principal: Principal, id: UUID) -> None:
    await _get_own(registry, principal, id)
    await registry.delete_selector(principal.owner_id, id)


async def get_usable(registry: Registry, principal: Principal, id: UUID) -> Selector:
    """Return a selector that a stream of the principal may use."""
    record = await registry.selector(principal.owner_id, id)
    if not policy.may_use_selector(principal, *saver_of(record)):
        raise NotFound("selector not found")
    return parse_selector(record["selector"])


async def list_usable(registry: Registry, principal: Principal, agent_id: UUID) -> list[Selector]:
    """Return the selectors that an agent has saved and that a stream of the principal may use."""
    return [
        parse_selector(record["selector"])
        for record in await registry.selectors(principal.owner_id)
        if record["agent_id"] == str(agent_id) and policy.may_use_selector(principal, *saver_of(record))
    ]


async def _get_own(registry: Registry, principal: Principal, id: UUID) -> SelectorRecord:
    record = await registry.selector(principal.owner_id, id)
    if not policy.owns_selector(principal, *saver_of(record)):
        raise NotFound("selector not found")
    return record
