"""Recorded conversations as test cases.

A recording (`breadcrumbs.proofs.recording`) is a JSON file. A test of three lines replays it:

    def test_demo(crumbs: Crumbs) -> None:
        crumbs.replay("test_demo.json")

The agents, the tools and the context config are those of the project where the recording says `"project"`, and
otherwise those in the recording. Models and tools return the recorded replies. The prompts and answers must be equal.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, OnDelta, ToolCall
from breadcrumbs.agents.models.streaming import stream_words
from breadcrumbs.agents.setups import definition_document
from breadcrumbs.agents.tools import Tool, Toolbox, ToolContext, ToolResult
from breadcrumbs.client.errors import AgentFailed
from breadcrumbs.composition.own_agents import collect_agents
from breadcrumbs.proofs.recording import FORMAT
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.testing.answers import CheckedAnswer
from breadcrumbs.testing.differences import difference, indent, show_prompt

if TYPE_CHECKING:
    from breadcrumbs.testing.crumbs import Crumbs
    from breadcrumbs.testing.project import Project

PROJECT: Final = "project"
"""Value of an agent or config that the project contains. The test then uses the one of the project."""

_ADVICE = "If the change is intended, accept it with: pytest --update-recordings"


def bind_to_project(recording: dict[str, Any], project: Project) -> dict[str, Any]:
    """Return a recording that names the agents and configs of a project, where they are equal to the recorded ones.

    The test then fails when they change.
    """
    agents = {name: _bound_agent(name, value, project) for name, value in recording["agents"].items()}
    configs = {
        consumer: PROJECT if value == project.config_document(consumer) else value
        for consumer, value in recording["configs"].items()
    }
    return {**recording, "agents": agents, "configs": configs}


def _bound_agent(name: str, recorded: Any, project: Project) -> Any:
    found = project.agents.get(name)
    return recorded if found is None or definition_document(found.definition) != recorded else PROJECT


def write_test(recording: Mapping[str, Any], path: Path) -> list[Path]:
    """Write a recording and the test that replays it. Return both files."""
    name = path.stem if path.stem.startswith("test_") else f"test_{path.stem}"
    test, data = path.with_name(f"{name}.py"), path.with_name(f"{name}.json")
    save(recording, data)
    test.write_text(
        f'"""Recorded from the session {json.dumps(recording["session"])[1:-1]}. The conversation is in '
        f'{data.name}."""\n\n'
        "from breadcrumbs.testing import Crumbs\n\n\n"
        f"def {_identifier(name)}(crumbs: Crumbs) -> None:\n"
        f'    crumbs.replay("{data.name}")\n',
        "utf-8",
    )
    return [test, data]


def save(recording: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(recording, indent=2, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> dict[str, Any]:
    """Read a recording. Raise `StartupError` if it is missing or invalid."""
    try:
        recording = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StartupError(f"recording {path} not found") from None
    except ValueError as error:
        raise StartupError(f"{path} is not a recording: {error}") from None
    if not isinstance(recording, dict) or recording.get("recording") != FORMAT:
        raise StartupError(f"{path} is not a recording of format {FORMAT}: export it again")
    return recording


def replay_file(crumbs: Crumbs, path: Path, *, update: bool = False) -> list[CheckedAnswer]:
    """Replay a recording and compare. With `update`, write the actual prompts and answers into the file instead."""
    __tracebackhide__ = True
    recording = load(path)
    try:
        answers = _Replay(crumbs, recording, path.name, update=update).run()
    finally:
        crumbs.stop()
    if update:
        save(recording, path)
    return answers


class _Replay:
    """One replay of a recording."""

    def __init__(self, crumbs: Crumbs, recording: dict[str, Any], name: str, *, update: bool) -> None:
        self._crumbs = crumbs
        self._recording = recording
        self._name = name
        self._update = update
        self._prompts: dict[str, list[Any]] = defaultdict(list)
        self._results = _Results()
        self._models = {agent: _RecordedModel() for agent in recording["agents"]}

    def run(self) -> list[CheckedAnswer]:
        __tracebackhide__ = True
        crumbs, recording = self._crumbs, self._recording
        for consumer, config in recording["configs"].items():
            crumbs.post_config(self._config(consumer, config))
        for agent, definition in recording["agents"].items():
            self._start(agent, definition)
        elsewhere = crumbs.session()
        for shared in recording.get("shared", ()):
            fields = {name: value for name, value in shared.items() if name != "session"}
            (elsewhere.post if "session" in shared else crumbs.share)(**fields)
        conversation = crumbs.session(f"recorded-{uuid4()}")
        answers: list[CheckedAnswer] = []
        for number, turn in enumerate(recording["turns"], 1):
            for before in turn.get("before", ()):
                conversation.post(**before)
            answers += self._turn(number, turn, conversation)
        return answers

    def _config(self, consumer: str, config: Any) -> Mapping[str, Any]:
        if config != PROJECT:
            found: Mapping[str, Any] = config
            return found
        document = self._crumbs.project.config_document(consumer)
        if document is None:
            raise StartupError(f"{self._name}: the project has no context config for {consumer!r}")
        return document

    def _start(self, agent_id: str, definition: Any) -> None:
        found = self._agent(agent_id, definition)
        tools = self._results.replaced(self._crumbs.toolbox())
        self._crumbs.run(found, model=None if found.function else self._models[agent_id], tools=tools)

    def _agent(self, agent_id: str, definition: Any) -> ActiveAgent:
        if definition == PROJECT:
            return self._crumbs.project.agent(agent_id)
        known = self._crumbs.project.agents.get(agent_id)
        if known is not None and known.function is not None:
            return known
        if definition is None:
            raise StartupError(
                f"{self._name}: the definition of {agent_id!r} was not stored. Add it to the file"
            )
        return collect_agents([definition]).agents[0]

    def _turn(self, number: int, turn: dict[str, Any], conversation: Any) -> list[CheckedAnswer]:
        __tracebackhide__ = True
        for outcome in turn["answers"]:
            self._models[outcome["agent"]].take(outcome)
            self._results.take(outcome)
        if not turn["answers"]:
            return []
        options = {name: turn[name] for name in ("tags", "context") if name in turn}
        posted = conversation.session.say(turn["message"], wait=False, **options)
        answers: list[CheckedAnswer] = []
        for outcome in turn["answers"]:
            answer = self._outcome(number, outcome, conversation, posted.id)
            answers += [] if answer is None else [answer]
        return answers

    def _outcome(
        self, number: int, outcome: dict[str, Any], conversation: Any, message: str
    ) -> CheckedAnswer | None:
        __tracebackhide__ = True
        agent = outcome["agent"]
        where = f"{self._name}, message {number}, {agent}"
        try:
            answer = CheckedAnswer(
                self._crumbs, conversation.session.wait(message, agent=agent, timeout=20.0)
            )
        except AgentFailed as error:
            if "error" in outcome:
                return None
            raise AssertionError(f"{where}: the agent failed: {error}") from error
        if "error" in outcome:
            raise AssertionError(f"{where}: expected the error {outcome['error']!r}, got {answer.text!r}")
        self._compare_prompts(where, outcome, answer)
        self._compare_tools(where, agent, answer)
        if self._update:
            outcome["answer"] = answer.text
        elif answer.text != outcome["answer"]:
            shown = difference(outcome["answer"], answer.text)
            raise AssertionError(f"{where}: the answer changed:\n{indent(shown)}\n{_ADVICE}")
        return answer

    def _compare_prompts(self, where: str, outcome: dict[str, Any], answer: CheckedAnswer) -> None:
        __tracebackhide__ = True
        agent, actual = outcome["agent"], answer.prompts
        if not self._update and len(actual) != len(outcome["calls"]):
            raise AssertionError(
                f"{where}: the agent called its model {len(actual)} times, recorded are {len(outcome['calls'])}"
            )
        for step, (call, prompt) in enumerate(zip(outcome["calls"], actual, strict=True), 1):
            before = self._prompts[agent]
            if self._update:
                call["prompt"] = _change(before, prompt)
            elif (recorded := call.get("prompt")) is not None:
                expected = [*before[: recorded["keeps"]], *recorded["adds"]]
                if expected != prompt:
                    shown = difference(show_prompt(expected), show_prompt(prompt)) or difference(
                        json.dumps(expected, indent=1), json.dumps(prompt, indent=1)
                    )
                    raise AssertionError(
                        f"{where}: the prompt of model call {step} changed:\n{indent(shown)}\n{_ADVICE}"
                    )
            self._prompts[agent] = list(prompt)

    def _compare_tools(self, where: str, agent: str, answer: CheckedAnswer) -> None:
        __tracebackhide__ = True
        recorded = self._recording.setdefault("tools", {})
        if self._update:
            recorded[agent] = answer.tool_schemas
        elif agent in recorded and recorded[agent] != answer.tool_schemas:
            shown = difference(
                json.dumps(recorded[agent], indent=1), json.dumps(answer.tool_schemas, indent=1)
            )
            raise AssertionError(f"{where}: the tools of the prompt changed:\n{indent(shown)}\n{_ADVICE}")


def _change(before: list[Any], now: list[Any]) -> dict[str, Any]:
    keeps = 0
    while keeps < min(len(before), len(now)) and before[keeps] == now[keeps]:
        keeps += 1
    return {"keeps": keeps, "adds": now[keeps:]}


class _RecordedModel:
    """Returns the recorded replies of one agent."""

    name = "recorded"

    def __init__(self) -> None:
        self._replies: deque[ModelReply | ModelError] = deque()

    def take(self, outcome: Mapping[str, Any]) -> None:
        """Prepare the replies of the next turn."""
        self._replies.clear()
        if "error" in outcome:
            self._replies.append(ModelError(outcome["error"], retry=False))
            return
        for call in outcome["calls"]:
            if (reply := call.get("reply")) is not None:
                tools = tuple(
                    ToolCall(one["id"], one["name"], one["arguments"]) for one in reply.get("tools", ())
                )
                finish = "tool_calls" if tools else "stop"
                self._replies.append(ModelReply(reply["text"], tools, finish_reason=finish))

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        if not self._replies:
            raise ModelError("the model was called more often than in the recording", retry=False)
        reply = self._replies.popleft()
        if isinstance(reply, ModelError):
            raise reply
        await stream_words(reply.text, on_delta)
        return reply

    async def close(self) -> None:
        return None


class _Results:
    """The recorded results of tool calls, in order."""

    def __init__(self) -> None:
        self._recorded: list[Mapping[str, Any]] = []

    def take(self, outcome: Mapping[str, Any]) -> None:
        for call in outcome.get("calls", ()):
            self._recorded += call.get("reply", {}).get("tools", ())

    def replaced(self, tools: Iterable[Tool]) -> Toolbox:
        """Return the same tools, which return recorded results."""
        return Toolbox([_RecordedTool(tool, self) for tool in tools])

    def find(self, name: str, arguments: str) -> ToolResult:
        for number, one in enumerate(self._recorded):
            if one["name"] == name and one["arguments"] == arguments:
                del self._recorded[number]
                result = one["result"]
                return ToolResult("error" not in result, result.get("output"), result.get("error"), 0.0)
        return ToolResult(False, None, f"the recording has no result of {name} with these arguments", 0.0)


class _RecordedTool(Tool):
    """A tool that does not run. Its name, description and parameters are those of the real one."""

    def __init__(self, tool: Tool, results: _Results) -> None:
        self.__dict__.update(vars(tool))
        self._results = results

    async def run(self, arguments: str | dict[str, Any], context: ToolContext) -> ToolResult:
        return self._results.find(self.name, str(arguments))


def _identifier(name: str) -> str:
    made = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return made if made.isidentifier() else f"test_{made}"
