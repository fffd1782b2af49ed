"""Models that sessions can use."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.store.offered_models import OfferedModel, read_models

_closed = with_config(extra="forbid")  # other keys are not allowed

routes = Routes("Sessions")


@_closed
class ModelView(TypedDict):
    """A model that a session can use."""

    name: Annotated[str, Field(description="For `model` of `PATCH /sessions/{id}`")]
    model: Annotated[str, Field(description="The model itself, if `name` is an alias")]
    problem: NotRequired[Annotated[str, Field(description="Reason why it cannot be used now")]]


@_closed
class ModelList(TypedDict):
    """The models that the agent runners offer."""

    default: NotRequired[
        Annotated[str, Field(description="Model of sessions without a choice. Absent if no runner ever ran")]
    ]
    models: list[ModelView]
    may_choose: Annotated[bool, Field(description="Whether the token may choose the model of a session")]


@routes.operation(
    id="listModels",
    method="GET",
    path="/models",
    summary="List models",
    description=(
        "The models that a curator can choose for a session: the default model, the aliases and the offered models "
        "of the settings. The agent runners publish them when they start."
    ),
    successes=(SuccessReply(200, "The models.", ModelList),),
)
async def list_models(call: HttpCall) -> Reply:
    offer = await read_models(call.services.store)
    document: ModelList = {
        "models": [_model_view(model) for model in offer.models],
        "may_choose": policy.may_choose_model(call.principal),
    }
    if offer.default is not None:
        document["default"] = offer.default
    return Reply.json(document)


def _model_view(model: OfferedModel) -> ModelView:
    view: ModelView = {"name": model.name, "model": model.model}
    if model.problem is not None:
        view["problem"] = model.problem
    return view


async def admit_model_choice(call: HttpCall, name: str | None) -> str | None:
    """Check that the principal may choose the model, and that it is offered. None returns to the default."""
    policy.check_model_choice(call.principal)
    if name is None:
        return None
    offer = await read_models(call.services.store)
    found = offer.find(name)
    if found is None:
        names = ", ".join(model.name for model in offer.models[:20]) or "none"
        raise InvalidInput(f"this model is not offered. Offered models: {names}", where="model")
    if found.problem is not None:
        raise InvalidInput(f"this model cannot be used: {found.problem}", where="model")
    return found.name
