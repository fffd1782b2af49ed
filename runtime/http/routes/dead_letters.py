"""What workers have given up on: look at it, try it again, throw it away. RCRT's paths."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.http.api.operations import ID, Answer, Call, Operation
from breadcrumbs.runtime.http.api.problems import SESSION_GONE
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import DeadLetterView, Done, Requeued
from breadcrumbs.runtime.sessions.retries import retry_letter
from breadcrumbs.runtime.workers.dead_letters import DeadLetters

_DONE: Final[Done] = {"ok": True}
_REQUEUED: Final[Requeued] = {"requeued": True}


async def list_letters(call: Call) -> Reply:
    letters = await DeadLetters(call.services.store).all(call.principal.owner_id)
    return Reply.json([letter.shown() for letter in letters])


async def retry_one(call: Call) -> Reply:
    store = call.services.store
    await retry_letter(store, await DeadLetters(store).get(call.principal.owner_id, call.id()))
    return Reply.json(_REQUEUED)


async def discard_letter(call: Call) -> Reply:
    letters = DeadLetters(call.services.store)
    await letters.discard(await letters.get(call.principal.owner_id, call.id()))
    return Reply.json(_DONE)


OPERATIONS: Final = (
    Operation(
        id="listDeadLetters",
        method="GET",
        path="/dlq",
        group="Dead letters",
        summary="List what failed for good",
        description="Events that a context builder or an agent runner has given up on, the newest first.",
        handle=list_letters,
        answers=(Answer(200, "The dead letters.", list[DeadLetterView]),),
    ),
    Operation(
        id="retryDeadLetter",
        method="POST",
        path="/dlq/{id}/retry",
        group="Dead letters",
        summary="Try it again",
        description="The same kind of worker handles it once more, from the beginning; a message is not doubled.",
        handle=retry_one,
        uses_store="writes",
        parameters=(ID,),
        answers=(Answer(200, "It is being tried again.", Requeued),),
        may_fail=(SESSION_GONE,),
    ),
    Operation(
        id="discardDeadLetter",
        method="DELETE",
        path="/dlq/{id}",
        group="Dead letters",
        summary="Throw it away",
        handle=discard_letter,
        parameters=(ID,),
        answers=(Answer(200, "It is gone.", Done),),
    ),
)
