"""Records of a tenant: saved selectors, agents and the tenant itself."""

from __future__ import annotations

from typing import Final, TypeVar
from uuid import UUID

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from pydantic import BaseModel

from breadcrumbs.runtime.access import policy, saved_selectors
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector, parse_selector
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import ID, Body, Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import (
    Agent,
    AgentChange,
    Done,
    SavedSelector,
    Tenant,
    TenantChange,
    TenantDeleted,
)
from breadcrumbs.runtime.store.records import SelectorRecord
from breadcrumbs.runtime.store.store import Store

_CONCURRENT_DELETES: Final = 16

_DONE: Final[Done] = {"ok": True}

_BodyModel = TypeVar("_BodyModel", bound=BaseModel)


_SELECTOR_EXAMPLE: Final = {"schema_name": "agent.response.v1", "all_tags": ["session:abc"]}

selectors_routes = Routes("Selectors")
agents_routes = Routes("Agents")
tenants_routes = Routes("Tenants")


# Selectors. An agent can access only its own.


@selectors_routes.operation(
    id="saveSelector",
    method="POST",
    path="/subscriptions/selectors",
    summary="Save a selector",
    uses_store="writes",
    body=Body(Selector, _SELECTOR_EXAMPLE),
    successes=(SuccessReply(200, "Selector saved.", SavedSelector),),
)
async def save_selector(call: HttpCall) -> Reply:
    selector = parse_selector(await call.json())
    return Reply.json(
        _selector_document(await saved_selectors.save(call.services.registry, call.principal, selector))
    )


@selectors_routes.operation(
    id="listSelectors",
    method="GET",
    path="/subscriptions/selectors",
    summary="List the selectors of the calling agent",
    successes=(SuccessReply(200, "The selectors.", list[SavedSelector]),),
)
async def list_selectors(call: HttpCall) -> Reply:
    own = await saved_selectors.list_own(call.services.registry, call.principal)
    return Reply.json([_selector_document(record) for record in own])


@selectors_routes.operation(
    id="replaceSelector",
    method="PUT",
    path="/subscriptions/selectors/{id}",
    summary="Replace a selector",
    uses_store="writes",
    parameters=(ID,),
    body=Body(Selector, _SELECTOR_EXAMPLE),
    successes=(SuccessReply(200, "Selector replaced.", Done),),
)
async def replace_selector(call: HttpCall) -> Reply:
    id, selector = call.path_id(), parse_selector(await call.json())
    await saved_selectors.replace(call.services.registry, call.principal, id, selector)
    return Reply.json(_DONE)


@selectors_routes.operation(
    id="deleteSelector",
    method="DELETE",
    path="/subscriptions/selectors/{id}",
    summary="Delete a selector",
    uses_store="writes",
    parameters=(ID,),
    successes=(SuccessReply(200, "Selector deleted.", Done),),
)
async def delete_selector(call: HttpCall) -> Reply:
    await saved_selectors.delete(call.services.registry, call.principal, call.path_id())
    return Reply.json(_DONE)


def _selector_document(record: SelectorRecord) -> SavedSelector:
    return {
        "id": record["id"],
        "owner_id": record["owner_id"],
        "agent_id": record["agent_id"],
        "selector": record["selector"],
    }


# Agents


@agents_routes.operation(
    id="listAgents",
    method="GET",
    path="/agents",
    summary="List the agents of the tenant",
    successes=(SuccessReply(200, "The agents.", list[Agent]),),
)
async def list_agents(call: HttpCall) -> Reply:
    principal = call.principal
    agents = await call.services.registry.agents(principal.owner_id)
    return Reply.json([agent for agent in agents if policy.may_see_agent(principal, UUID(agent["id"]))])


@agents_routes.operation(
    id="getAgent",
    method="GET",
    path="/agents/{id}",
    summary="Read an agent",
    parameters=(ID,),
    successes=(SuccessReply(200, "The agent.", Agent),),
)
async def get_agent(call: HttpCall) -> Reply:
    principal, id = call.principal, call.path_id()
    if not policy.may_see_agent(principal, id):
        raise NotFound("agent not found")
    return Reply.json(await call.services.registry.agent(principal.owner_id, id))


@agents_routes.operation(
    id="putAgent",
    method="POST",
    path="/agents/{id}",
    summary="Create or replace an agent",
    description=(
        "A token may write its own agent, and with the role `curator` any agent. The permissions of an agent come "
        "from its token, not from this record."
    ),
    uses_store="writes",
    parameters=(ID,),
    body=Body(AgentChange, {"roles": ["emitter", "subscriber"]}),
    successes=(SuccessReply(200, "Agent stored.", Done),),
)
async def put_agent(call: HttpCall) -> Reply:
    principal, id = call.principal, call.path_id()
    policy.check_agent_change(principal, id)
    change = parse_body(AgentChange, await call.json(), error="invalid record")
    await call.services.registry.put_agent(principal.owner_id, id, sorted(set(change.roles)))
    return Reply.json(_DONE)


@agents_routes.operation(
    id="deleteAgent",
    method="DELETE",
    path="/agents/{id}",
    summary="Delete an agent",
    uses_store="writes",
    parameters=(ID,),
    successes=(SuccessReply(200, "Agent deleted.", Done),),
)
async def delete_agent(call: HttpCall) -> Reply:
    await call.services.registry.delete_agent(call.principal.owner_id, call.path_id())
    return Reply.json(_DONE)


# Tenants. A token can access only its own.


@tenants_routes.operation(
    id="listTenants",
    method="GET",
    path="/tenants",
    summary="List your tenant",
    successes=(SuccessReply(200, "The tenant, if it has a name.", list[Tenant]),),
)
async def list_tenants(call: HttpCall) -> Reply:
    try:
        return Reply.json([await call.services.registry.tenant(call.principal.owner_id)])
    except NotFound:
        return Reply.json([])


@tenants_routes.operation(
    id="getTenant",
    method="GET",
    path="/tenants/{id}",
    summary="Read your tenant",
    parameters=(ID,),
    successes=(SuccessReply(200, "The tenant.", Tenant),),
)
async def get_tenant(call: HttpCall) -> Reply:
    return Reply.json(await call.services.registry.tenant(_own_tenant(call)))


@tenants_routes.operation(
    id="putTenant",
    method="POST",
    path="/tenants/{id}",
    summary="Name your tenant",
    uses_store="writes",
    parameters=(ID,),
    body=Body(TenantChange, {"name": "Example"}),
    successes=(SuccessReply(200, "Tenant stored.", Done),),
)
async def put_tenant(call: HttpCall) -> Reply:
    owner = _own_tenant(call)
    change = parse_body(TenantChange, await call.json(), error="invalid record")
    await call.services.registry.put_tenant(owner, change.name)
    return Reply.json(_DONE)


@tenants_routes.operation(
    id="renameTenant",
    method="PUT",
    path="/tenants/{id}",
    summary="Rename your tenant",
    uses_store="writes",
    parameters=(ID,),
    body=Body(TenantChange, {"name": "Another example"}),
    successes=(SuccessReply(200, "Tenant renamed.", Done),),
)
async def rename_tenant(call: HttpCall) -> Reply:
    owner = _own_tenant(call)
    change = parse_body(TenantChange, await call.json(), error="invalid record")
    await call.services.registry.tenant(owner)
    await call.services.registry.put_tenant(owner, change.name)
    return Reply.json(_DONE)


@tenants_routes.operation(
    id="deleteTenant",
    method="DELETE",
    path="/tenants/{id}",
    summary="Delete your tenant and all of its data",
    description="Deletes every breadcrumb with its history, every agent and every selector. This cannot be undone.",
    uses_store="writes",
    parameters=(ID,),
    successes=(SuccessReply(200, "Tenant deleted.", TenantDeleted),),
)
async def delete_tenant(call: HttpCall) -> Reply:
    owner = _own_tenant(call)
    deleted = await _delete_all(call.services.store, owner)
    had_records = await call.services.registry.forget(owner)
    if not had_records and not deleted:
        raise NotFound("tenant not found: it has no data")
    body: TenantDeleted = {"ok": True, "deleted": deleted}
    return Reply.json(body)


def _own_tenant(call: HttpCall) -> UUID:
    """Return the tenant in the path. Raises `NotFound` if it is not the tenant of the token."""
    id = call.path_id()
    policy.check_tenant(call.principal, id)
    return id


async def _delete_all(store: Store, owner: UUID) -> int:
    """Delete all breadcrumbs of an owner, several at a time. Returns their number."""
    deleted = 0

    async def work(ids: MemoryObjectReceiveStream[UUID]) -> None:
        nonlocal deleted
        async with ids:
            async for id in ids:
                try:
                    await store.delete(owner, id)
                    deleted += 1
                except NotFound:
                    pass  # expired or deleted since it was listed

    send, receive = anyio.create_memory_object_stream[UUID](_CONCURRENT_DELETES)
    async with anyio.create_task_group() as group, send:
        for _ in range(_CONCURRENT_DELETES):
            group.start_soon(work, receive.clone())
        receive.close()
        async for crumb in store.walk(owner, Query()):
            await send.send(crumb.id)
    await store.forget_usage(owner)
    return deleted


OPERATIONS: Final = (*selectors_routes, *agents_routes, *tenants_routes)
