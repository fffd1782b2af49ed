"""Checks of new and changed breadcrumbs at the HTTP edge: definitions, and messages that are addressed to an agent.

An unusable definition is refused here, with the position of each error. Otherwise it would be stored, and its error
would appear later, in a place where its author does not look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.json_positions import LocatedJson, NotJson
from breadcrumbs.runtime.breadcrumb.nearest_names import nearest_name
from breadcrumbs.runtime.breadcrumb.session_rule import session_of
from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.http.answering import CheckDefinition
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.schema_names import ADDRESSEE, AGENT_DEFINITION, CONTEXT_CONFIG, USER_MESSAGE
from breadcrumbs.runtime.store.batched_reads import choices_of
from breadcrumbs.runtime.store.published_agents import MAX_AGENT_NAME

_DEFINITIONS: Final = (AGENT_DEFINITION, CONTEXT_CONFIG)
_MAX_NAMED: Final = 20
"""Maximum number of agents that an error lists."""
_MAX_LOCATED_BYTES: Final = 1 << 18
"""Size of a body up to which the lines of errors are looked up."""

Admit = Callable[[Breadcrumb, BreadcrumbUpdate], BreadcrumbUpdate]


# Definitions


def check_definition(call: HttpCall, new: BreadcrumbCreate, raw: bytes) -> None:
    """Raise `InvalidInput` if a new breadcrumb is an unusable definition. `raw` is the body of the request."""
    if new.schema_name in _DEFINITIONS:
        _raise_if_unusable(call.services.agents.check_definition, new, raw)


def _raise_if_unusable(check: CheckDefinition, new: BreadcrumbCreate, raw: bytes = b"") -> None:
    errors = [_in_context(error) for error in check(new)]
    if errors:
        errors = _located(errors, raw)
        first = errors[0]
        more = f" ({len(errors)} errors)" if len(errors) > 1 else ""
        raise InvalidInput(
            f"this {new.schema_name} cannot be used, so it was not stored{more}: {first.where}: {first.message}",
            complaints=errors,
        )


def _in_context(error: Complaint) -> Complaint:
    """Return an error with its position in the breadcrumb. Errors without a pointer are not inside of the context."""
    if error.pointer is None:
        return replace(error, pointer="/" + error.where)
    where = f"context.{error.where}" if error.where else "context"
    return replace(error, where=where, pointer="/context" + error.pointer)


def _located(errors: Sequence[Complaint], raw: bytes) -> list[Complaint]:
    """Return errors with their lines and columns in the body of the request."""
    if not raw or len(raw) > _MAX_LOCATED_BYTES:
        return list(errors)
    try:
        text = LocatedJson(raw)
    except NotJson:
        return list(errors)
    located = []
    for error in errors:
        line, column = text.locate(_path_of(error.pointer or ""), key="unknown field" in error.message)
        located.append(replace(error, line=line, column=column))
    return located


def _path_of(pointer: str) -> list[str | int]:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    return [int(part) if part.isdigit() else part for part in parts]


# Addressed messages


async def check_addressee(call: HttpCall, new: BreadcrumbCreate) -> None:
    """Check that a new message is addressed to an agent that can answer it, by a principal that may choose it."""
    if new.schema_name != USER_MESSAGE or ADDRESSEE not in new.context:
        return
    name, principal, where = new.context[ADDRESSEE], call.principal, f"context.{ADDRESSEE}"
    if not isinstance(name, str) or not 0 < len(name) <= MAX_AGENT_NAME:
        raise InvalidInput(f"{ADDRESSEE} must be the agent_id of an agent", where=where)
    await _check_may_address(call, new, name)
    names = await call.services.agents.addressable(principal.owner_id, new)
    if name not in names:
        close = nearest_name(name, names)
        advice = "" if close is None else f" Did you mean {close!r}?"
        listed = ", ".join(names[:_MAX_NAMED]) or "none"
        raise InvalidInput(
            f"no agent {name!r} answers this message.{advice} Agents that do: {listed}", where=where
        )


async def _check_may_address(call: HttpCall, new: BreadcrumbCreate, name: str) -> None:
    """Check that the message is not for another agent than the one that a curator chose for the session."""
    session = session_of(new.tags) or new.context.get("session_id")
    store = call.services.store
    if not isinstance(session, str) or policy.may_choose_agent(call.principal):
        return
    (choices,) = await store.read_batch(choices_of(store, call.principal.owner_id, session))
    policy.check_addressee(call.principal, choices.agent, name)


# Changes


def admit_changes(call: HttpCall, *, merges: bool) -> Admit:
    """Return a function that checks a change of a breadcrumb. `merges`: the context is a merge patch."""
    return partial(_admit_change, call.principal, call.services.agents.check_definition, merges)


def _admit_change(
    principal: Principal, check: CheckDefinition, merges: bool, crumb: Breadcrumb, change: BreadcrumbUpdate
) -> BreadcrumbUpdate:
    admitted = _keep_addressee(crumb, policy.admit_change(principal, crumb, change), merges=merges)
    changed = admitted.model_fields_set & {"context", "schema_name", "tags", "visibility", "sensitivity"}
    after = admitted.schema_name or crumb.schema_name
    if changed and after in _DEFINITIONS:
        _raise_if_unusable(check, crumb.apply_change(admitted, merge_context=merges))
    return admitted


def _keep_addressee(crumb: Breadcrumb, change: BreadcrumbUpdate, *, merges: bool) -> BreadcrumbUpdate:
    """Refuse to change the agent that a message is addressed to: the first one can have answered already."""
    if crumb.schema_name != USER_MESSAGE or change.context is None:
        return change
    before: Any = crumb.context.get(ADDRESSEE)
    if change.context.get(ADDRESSEE, before) != before:
        raise InvalidInput(
            "the agent of a message cannot be changed: post a new message", where=f"context.{ADDRESSEE}"
        )
    if merges or before is None:
        return change
    return change.model_copy(update={"context": {**change.context, ADDRESSEE: before}})
