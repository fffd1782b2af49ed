"""Finds the outcome of a message: its answer, or the error that replaces it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import AGENT_ERROR, AGENT_RESPONSE
from breadcrumbs.runtime.sessions.outcome_matching import is_outcome
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.turn_retries import last_retry_time

_FIRST_PAGE: Final = 200  # the outcome is nearly always among the next 200 breadcrumbs after the message


def outcome_kind(outcome: Breadcrumb) -> Literal["answer", "error"]:
    """Return the kind of an outcome, as it is named in API replies."""
    return "error" if outcome.schema_name == AGENT_ERROR else "answer"


async def find_outcome(
    store: Store, principal: Principal, message: Breadcrumb, *, agent: str | None = None
) -> Breadcrumb | None:
    """Return the stored outcome of a message, or None.

    The outcome is an answer, or the last error if there is no answer. Errors from before the last retry of the turn are
    ignored. `agent` limits the search to outcomes of this agent, also later in the chain of the message.
    """
    owner, errors = principal.owner_id, list[Breadcrumb]()

    def is_answer(crumb: Breadcrumb) -> bool:
        found = is_outcome(crumb.schema_name, crumb.context, str(message.id), agent)
        if found and crumb.schema_name == AGENT_ERROR:
            errors.append(crumb)
            return False
        return found

    async def first_answer(query: Query) -> Breadcrumb | None:
        async for crumb in store.walk(owner, query):
            if is_answer(crumb):
                return crumb
        return None

    query = policy.restrict_query(
        principal, Query(session_id=message.session_id, created_since=message.created, sort="created_at")
    )
    near = await store.list(owner, replace(query, limit=_FIRST_PAGE, max_bytes=WALK_BYTES))
    answer = next(filter(is_answer, near.items), None)
    if answer is None and near.next_cursor is not None:
        # Search by schema first, which skips all other breadcrumbs. An agent can use another schema for its answers,
        # so all breadcrumbs are read if no error is found either.
        answer = await first_answer(replace(query, schema_names=(AGENT_RESPONSE, AGENT_ERROR)))
        if answer is None and not errors:
            answer = await first_answer(query)
    if answer is not None or not errors:
        return answer
    return errors[-1] if errors[-1].created > await last_retry_time(store, message) else None
