"""Kills agent runners between the commits of turns with three tool calls, and counts effects and paid replies.

The tools append lines to a file, and the model is an HTTP server that notes each reply that it has sent completely. So
both are counted from outside. One runner works at a time on one turn: it kills itself after a commit or beside an
effect, or the model server kills it before it replies. The next runner takes the turn over.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from tests.support import effects
from tests.support.conversations import ALICE, ASSISTANT, ERROR, MESSAGE, Chat, eventually
from tests.support.fleet import Fleet
from tests.support.killable_worker import Running, Trap

WORDS = ("one", "two", "three")
LEASE_SECONDS = 30.0
COMMITS = 7
"""Commits of the runner in a turn: see `Plan`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn: how its model calls three tools, and when its runner dies."""

    turn: str
    at_once: bool
    """All calls are in one reply. Otherwise each is in a reply of its own."""
    keyed: bool
    """The tool is idempotent."""
    point: str
    """`after commit N`, `before effect …`, `after effect …` or `in model N`."""

    @property
    def tool(self) -> str:
        return effects.NAMES[self.keyed]

    @property
    def replies(self) -> int:
        """Number of model replies of the turn."""
        return 2 if self.at_once else 4


def plans(run: str) -> Iterator[Plan]:
    """Return endless plans. Every point is reached with both forms of calls and both tools."""
    for number in count():
        for at_once in (False, True):
            for keyed in (False, True):
                models = 2 if at_once else 4
                turn = f"{run}-{number}-{int(at_once)}{int(keyed)}"
                points = [
                    *(f"after commit {commit}" for commit in range(1, COMMITS + 1)),
                    *(f"{when} effect {turn}/{word}" for when in ("before", "after") for word in WORDS),
                    *(f"in model {call}" for call in range(models)),
                ]
                yield Plan(turn, at_once, keyed, points[number % len(points)])


class PaidModel(ThreadingHTTPServer):
    """A model server that calls three tools. It notes each reply that it has sent."""

    daemon_threads = True

    def __init__(self, effects_file: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Replies)
        self.effects_file = effects_file
        self.plans: dict[str, Plan] = {}
        self.paid: Counter[tuple[str, int]] = Counter()
        """Replies that were sent, by turn and number."""
        self.asked: dict[tuple[str, int], float] = {}
        """When each reply was last asked for."""
        self.told_unknown: set[str] = set()
        """Turns whose model was told that an outcome is unknown."""
        self.victims: dict[tuple[str, int], int] = {}
        """Processes that die instead of getting a reply, by turn and number of the reply."""
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> PaidModel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def reply(self, messages: list[dict[str, Any]]) -> tuple[str, int, dict[str, Any]]:
        """Return the turn, the number of the reply and its message."""
        turn = next(m["content"] for m in reversed(messages) if m["role"] == "user").split()[-1]
        plan = self.plans[turn]
        asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
        since = messages[asked:]
        number = sum(1 for message in since if message.get("tool_calls"))
        if any("is unknown" in str(message["content"]) for message in since if message["role"] == "tool"):
            self.told_unknown.add(turn)
        words = WORDS if plan.at_once else WORDS[number : number + 1]
        if number == plan.replies - 1:
            return turn, number, {"role": "assistant", "content": f"done {turn}"}
        calls = [
            {
                "id": f"call-{number}-{word}",
                "type": "function",
                "function": {
                    "name": plan.tool,
                    "arguments": json.dumps({"path": str(self.effects_file), "turn": turn, "word": word}),
                },
            }
            for word in words
        ]
        return turn, number, {"role": "assistant", "content": f"step {number}", "tool_calls": calls}


class _Replies(BaseHTTPRequestHandler):
    server: PaidModel
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked_at = time.time()
        turn, number, message = self.server.reply(body["messages"])
        self.server.asked[turn, number] = asked_at
        if (victim := self.server.victims.pop((turn, number), None)) is not None:
            os.kill(victim, signal.SIGKILL)
            self.close_connection = True
            return
        finish = "tool_calls" if "tool_calls" in message else "stop"
        document = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
        }
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.server.paid[turn, number] += 1

    def log_message(self, *_: object) -> None:
        return


@dataclass
class Outcome:
    """Counts of a run."""

    turns: int = 0
    kills: int = 0
    effects: int = 0
    unknown: int = 0
    """Responses with the outcome `unknown`."""
    told: int = 0
    """Turns whose model was told so."""
    problems: list[str] = field(default_factory=list)
    points: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        return (
            f"{self.turns} turns, {self.kills} kills, {self.effects} effects, {self.unknown} unknown outcomes in "
            f"{self.told} turns; problems: {len(self.problems)}"
        )


def agents_folder(folder: Path) -> Path:
    """Write a folder with one agent that has both tools."""
    definition = {
        "agent_id": ASSISTANT,
        "tools": list(effects.NAMES),
        "subscriptions": {
            "selectors": [{"schema_name": "agent.context.v1", "all_tags": [f"consumer:{ASSISTANT}"]}]
        },
    }
    path = folder / "agents"
    path.mkdir()
    (path / "agent.json").write_text(json.dumps(definition))
    return path


@dataclass
class StepKills:
    """Runs plans on a fleet, one after the other."""

    running: Fleet
    model: PaidModel
    outcome: Outcome = field(default_factory=Outcome)

    @classmethod
    def prepare(cls, running: Fleet, model: PaidModel, folder: Path) -> StepKills:
        running.post = replace(
            running.post,
            # A runner that loses its lane on a slow machine could not store a reply, which would be paid for again.
            # The lanes of a killed runner are taken over before the lease expires.
            lease_seconds=LEASE_SECONDS,
            model=f"{model.url}#test",
            agents=str(agents_folder(folder)),
            tools=effects.SPECS,
        )
        return cls(running, model)

    async def run(self, plan: Plan) -> None:
        """Run one turn whose runner dies at the point of the plan, and check what came of it."""
        self.model.plans[plan.turn] = plan
        in_model = plan.point.startswith("in model")
        worker = await self.running.start("run-agents", Trap("" if in_model else plan.point))
        await self._is_ready(worker)
        if in_model:
            self.model.victims[plan.turn, int(plan.point.split()[-1])] = worker.pid
        await self._say(plan)
        assert await anyio.to_thread.run_sync(worker.ended.wait, self.running.patience), plan
        assert worker.code == -signal.SIGKILL, (plan, worker.code)
        self.outcome.kills += 1
        self.outcome.points[plan.point.split(f" {plan.turn}/")[0]] += 1
        open_calls = await self._open_calls(plan)
        successor = await self.running.start("run-agents")
        await self._has_outcome(plan)
        self.running.nursery.send(successor, signal.SIGTERM)
        assert await anyio.to_thread.run_sync(successor.ended.wait, self.running.patience), plan
        await self._check(plan, open_calls)

    async def _is_ready(self, worker: Running) -> None:
        async def has_all_lanes() -> bool:
            store = self.running.store
            held = await store.connection.call_all(
                [(lane, (b"GET", store.keys.lease(lane, "agents"))) for lane in range(store.lanes)]
            )
            return all(lease is not None and f"-{worker.pid}-".encode() in lease for lease in held)

        await eventually(has_all_lanes, f"runner {worker.pid} has no lanes", self.running.patience)

    async def _say(self, plan: Plan) -> None:
        new = BreadcrumbCreate.parse(
            {
                "schema_name": MESSAGE,
                "title": "m",
                "tags": ["user:message", f"session:{plan.turn}"],
                "context": {"message": f"Go {plan.turn}"},
            }
        )
        await self.running.store.create(ALICE, new)

    async def _has_outcome(self, plan: Plan) -> None:
        chat = Chat(self.running.store)

        async def ended() -> bool:
            return bool(await chat.answers(plan.turn) or await chat.all(plan.turn, ERROR))

        await eventually(ended, f"{plan} was not answered", self.running.patience)

    async def _open_calls(self, plan: Plan) -> set[str]:
        """Return the calls that the dead runner had started, and whose responses it had not stored.

        The calls of one reply run at the same time, so there can be several. How many depends on the order in which
        their commits came.
        """
        chat = Chat(self.running.store)
        # The server may still have to read a commit that the runner sent before it died. It has, after this reply.
        await chat.all(plan.turn, MESSAGE)
        started = await chat.all(plan.turn, "tool.started.v1")
        ended = await chat.all(plan.turn, "tool.response.v1")
        return _requests_of(started) - _requests_of(ended)

    async def _check(self, plan: Plan, open_calls: set[str]) -> None:
        """Compare what was counted from outside with what must have happened."""
        chat, found, outcome = Chat(self.running.store), list[str](), self.outcome
        outcome.turns += 1
        answers = [answer.context["message"] for answer in await chat.answers(plan.turn)]
        texts = [f"step {number}" for number in range(plan.replies - 1)]
        if answers != ["\n\n".join([*texts, f"done {plan.turn}"])]:
            found.append(f"answers {answers}, errors {[e.context for e in await chat.all(plan.turn, ERROR)]}")
        for number in range(plan.replies):
            if (times := self.model.paid[plan.turn, number]) != 1:
                found.append(f"reply {number} was paid for {times} times")
        stored = [*await chat.all(plan.turn, "agent.step.v1"), *await chat.answers(plan.turn)]
        for number, crumb in enumerate(stored):
            if self.model.asked[plan.turn, number] > datetime.fromisoformat(crumb.created_at).timestamp():
                found.append(f"reply {number} was asked for again after it was stored")
        done = [
            one for one in effects.read_effects(self.model.effects_file) if one[0].startswith(f"{plan.turn}/")
        ]
        counted = Counter(word for word, _ in (dict.fromkeys(done) if plan.keyed else done))
        found += [f"effect {word} happened {times} times" for word, times in counted.items() if times > 1]
        responses = await chat.all(plan.turn, "tool.response.v1")
        statuses = [crumb.context["status"] for crumb in responses]
        unknown = statuses.count("unknown")
        told = _requests_of([crumb for crumb in responses if crumb.context["status"] == "unknown"])
        if told != (set() if plan.keyed else open_calls):
            found.append(f"unknown outcomes of {told}, but the dead runner left {open_calls} open")
        if len(open_calls) > (len(WORDS) if plan.at_once else 1):
            found.append(f"{open_calls} were open at the same time")
        if len(statuses) != len(WORDS) or set(statuses) - {"success", "unknown"}:
            found.append(f"responses {statuses}")
        if plan.keyed and (unknown or len(counted) != len(WORDS)):
            found.append(f"an idempotent tool did not run: {statuses}, {counted}")
        if statuses.count("success") > len(counted):
            found.append(f"a success without an effect: {statuses}, {counted}")
        if bool(unknown) != (plan.turn in self.model.told_unknown):
            found.append(f"{unknown} unknown outcomes, but the model was told otherwise")
        outcome.effects += sum(counted.values())
        outcome.unknown += unknown
        outcome.told += bool(unknown)
        outcome.problems += [f"{plan}: {problem}" for problem in found]


def _requests_of(crumbs: list[Breadcrumb]) -> set[str]:
    return {crumb.context["request_id"] for crumb in crumbs}
