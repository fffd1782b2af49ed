"""Dead letters: list, retry and discard them. The paths are those of RCRT."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import ID, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import SESSION_GONE
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import DeadLetterView, Done, Requeued
from breadcrumbs.runtime.sessions.retries import retry_letter
from breadcrumbs.runtime.workers.dead_letters import DeadLetters

_DONE: Final[Done] = {"ok": True}
_REQUEUED: Final[Requeued] = {"requeued": True}


routes = Routes("Dead letters")


@routes.operation(
    id="listDeadLetters",
    method="GET",
    path="/dlq",
    summary="List dead letters",
    description="Events that failed every attempt of a context builder or an agent runner, newest first.",
    successes=(SuccessReply(200, "The dead letters.", list[DeadLetterView]),),
)
async def list_letters(call: HttpCall) -> Reply:
    letters = await DeadLetters(call.services.store).all(call.principal.owner_id)
    return Reply.json([letter.shown() for letter in letters])


@routes.operation(
    id="retryDeadLetter",
    method="POST",
    path="/dlq/{id}/retry",
    summary="Retry a dead letter",
    description="The same kind of worker handles the event again from the start. A retry never duplicates an answer.",
    uses_store="writes",
    parameters=(ID,),
    successes=(SuccessReply(200, "The event is queued again.", Requeued),),
    may_fail=(SESSION_GONE,),
)
async def retry_one(call: HttpCall) -> Reply:
    store = call.services.store
    await retry_letter(store, await DeadLetters(store).get(call.principal.owner_id, call.path_id()))
    return Reply.json(_REQUEUED)


@routes.operation(
    id="discardDeadLetter",
    method="DELETE",
    path="/dlq/{id}",
    summary="Discard a dead letter",
    parameters=(ID,),
    successes=(SuccessReply(200, "Dead letter discarded.", Done),),
)
async def discard_letter(call: HttpCall) -> Reply:
    letters = DeadLetters(call.services.store)
    await letters.discard(await letters.get(call.principal.owner_id, call.path_id()))
    return Reply.json(_DONE)
