"""Agents that answer users' messages, and the choice of one of them for a session."""

from __future__ import annotations

from typing import Annotated, Final, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.published_agents import PublishedAgent, has_runner, read_publications

_closed = with_config(extra="forbid")  # other keys are not allowed

_MAX_NAMED: Final = 20
"""Maximum number of agents that an error lists."""

routes = Routes("Sessions")


@_closed
class AnsweringAgent(TypedDict):
    """An agent that answers users' messages."""

    agent_id: Annotated[str, Field(description="For `agent` of `PATCH /sessions/{id}`")]
    description: NotRequired[str]
    model: NotRequired[Annotated[str, Field(description="The model that its definition names")]]
    consumer: NotRequired[Annotated[str, Field(description="The consumer whose contexts it answers")]]
    fallback: NotRequired[
        Annotated[bool, Field(description="Whether it leaves messages to other agents that match")]
    ]


@_closed
class AnsweringAgents(TypedDict):
    """The agents that answer users' messages."""

    agents: list[AnsweringAgent]
    answering: Annotated[Answering, Field(description="The rule for messages that several agents match")]
    may_choose: Annotated[bool, Field(description="Whether the token may choose the agent of a session")]
    running: Annotated[
        bool,
        Field(description="Whether a process that runs agents is alive. Otherwise messages wait for one"),
    ]


@routes.operation(
    id="listAnsweringAgents",
    method="GET",
    path="/agents/answering",
    summary="List the agents that answer users",
    description=(
        "The agents that a curator can choose for a session: those of the installation, of `agent.def.v1` breadcrumbs, "
        "and of programs that are running. An agent that reacts only to other breadcrumbs, or only to messages with a "
        "certain tag, is not listed. Edits of definitions appear within a second."
    ),
    successes=(SuccessReply(200, "The agents.", AnsweringAgents),),
)
async def list_answering_agents(call: HttpCall) -> Reply:
    agents = await call.services.agents.answering(call.principal.owner_id)
    published = await read_publications(call.services.store)
    document: AnsweringAgents = {
        "agents": [_agent_view(agent) for agent in agents],
        "answering": published.answering or call.services.settings.answering,
        "may_choose": policy.may_choose_agent(call.principal),
        "running": await has_runner(call.services.store),
    }
    return Reply.json(document)


def _agent_view(agent: PublishedAgent) -> AnsweringAgent:
    view: AnsweringAgent = {"agent_id": agent.agent_id}
    if agent.description:
        view["description"] = agent.description
    if agent.model is not None:
        view["model"] = agent.model
    if agent.consumers:
        view["consumer"] = agent.consumers[0]
    if agent.fallback:
        view["fallback"] = True
    return view


async def admit_agent_choice(call: HttpCall, agent_id: str | None) -> str | None:
    """Check that the principal may choose the agent, and that it answers users. None: all agents answer."""
    policy.check_agent_choice(call.principal)
    if agent_id is None:
        return None
    names = [agent.agent_id for agent in await call.services.agents.answering(call.principal.owner_id)]
    if agent_id not in names:
        listed = ", ".join(names[:_MAX_NAMED]) or "none"
        raise InvalidInput(f"no such agent answers users' messages. Agents that do: {listed}", where="agent")
    return agent_id
