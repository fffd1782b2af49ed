"""Child process of growth.py: runs one peer system and times appends and turns in sessions of a given length.

    python -P bench/_peer.py NAME FOLDER URL

The URL is that of the server that the system uses: Redis, or PostgreSQL for Aegra.

It reads one JSON request per line, such as {"do": "append", "length": 1000, "count": 10}, and prints one JSON reply per
line. It imports nothing of this project, so that it also runs in an environment that has only the peer.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib
import importlib.metadata
import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

TEXT = ("the quick brown fox jumps over the lazy dog and says so in a chat window " * 3)[:200]
FILL_BATCH = 1_000


class Peer(Protocol):
    """A system with sessions. Each length has its own session, named after it."""

    async def fill(self, length: int) -> None:
        """Create the session with this number of messages."""

    async def append(self, length: int) -> None:
        """Add one message to the session."""

    async def turn(self, length: int) -> None:
        """Answer one message in the session with a model that takes no time."""

    async def close(self) -> None: ...


def load(module: str) -> Any:
    """Import a module of a peer. It is untyped here, because the peer need not be installed."""
    return importlib.import_module(module)


class OpenAiAgents:
    """Session of the OpenAI Agents SDK. A turn is `Runner.run` with the session."""

    def __init__(self, store: str, folder: Path, url: str, *, limit: int | None = None) -> None:
        agents = load("agents")
        agents.set_tracing_disabled(True)  # tracing sends data to OpenAI
        self._store, self._folder, self._url, self._limit = store, folder, url, limit
        self._sessions: dict[int, Any] = {}
        self._agent = agents.Agent(name="echo", instructions="Answer.", model=_echo_model())
        self._run = agents.Runner.run

    async def fill(self, length: int) -> None:
        memory = load("agents.memory")
        settings = memory.SessionSettings(limit=self._limit)
        if self._store == "sqlite":
            path = self._folder / "openai.db"
            session = memory.SQLiteSession(f"s{length}", path, session_settings=settings)
        else:
            redis_session = load("agents.extensions.memory.redis_session")
            session = redis_session.RedisSession.from_url(
                f"s{length}", url=self._url, session_settings=settings
            )
        self._sessions[length] = session
        roles = ("user", "assistant")
        items = [{"role": roles[number % 2], "content": TEXT} for number in range(length)]
        for start in range(0, length, FILL_BATCH):
            await session.add_items(items[start : start + FILL_BATCH])

    async def append(self, length: int) -> None:
        await self._sessions[length].add_items([{"role": "user", "content": TEXT}])

    async def turn(self, length: int) -> None:
        await self._run(self._agent, "Hello", session=self._sessions[length])

    async def close(self) -> None:
        for session in self._sessions.values():
            closed = session.close()
            if closed is not None:
                await closed


def _echo_model() -> Any:
    agents, types = load("agents"), load("openai.types.responses")
    model: Any = agents.Model

    class Echo(model):  # type: ignore[misc]
        """Answers at once with a constant text."""

        async def get_response(self, *args: Any, **more: Any) -> Any:
            text = types.ResponseOutputText(type="output_text", text="You said hello", annotations=[])
            message = types.ResponseOutputMessage(
                id=f"msg_{uuid4().hex}", type="message", role="assistant", status="completed", content=[text]
            )
            return agents.ModelResponse(output=[message], usage=agents.Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    return Echo()


class Adk:
    """Session service of google-adk on sqlite. A turn is `Runner.run_async` with an agent that answers at once."""

    def __init__(self, folder: Path) -> None:
        from google.adk.agents.base_agent import BaseAgent
        from google.adk.events.event import Event
        from google.adk.runners import Runner
        from google.adk.sessions.sqlite_session_service import SqliteSessionService
        from google.genai import types

        self._path = str(folder / "adk.db")
        self._service = SqliteSessionService(self._path)
        self._sessions: dict[int, Any] = {}

        def said(text: str, author: str) -> Any:
            content = types.Content(role=author, parts=[types.Part(text=text)])
            return Event(author=author, invocation_id=uuid4().hex, content=content)

        self._said, self._types = said, types

        class Echo(BaseAgent):
            """Answers at once with a constant text."""

            async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
                yield Event(
                    author=self.name,
                    invocation_id=ctx.invocation_id,
                    content=types.Content(role="model", parts=[types.Part(text="You said hello")]),
                )

        self._runner = Runner(app_name="bench", agent=Echo(name="echo"), session_service=self._service)

    async def fill(self, length: int) -> None:
        session = await self._service.create_session(app_name="bench", user_id="ann", session_id=f"s{length}")
        await self._service.append_event(session, self._said(TEXT, "user"))
        with sqlite3.connect(self._path) as database:  # one append takes milliseconds: copy the first event
            columns = "app_name, user_id, session_id, invocation_id, timestamp"
            copies = (
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {length - 1}) "
                f"INSERT INTO events (id, {columns}, event_data) SELECT 'c' || i, {columns}, "
                f"replace(event_data, id, 'c' || i) FROM events, n WHERE session_id = ?"
            )
            database.execute(copies, (session.id,))
        database.close()
        found = await self._service.get_session(app_name="bench", user_id="ann", session_id=session.id)
        assert found is not None
        assert len(found.events) == length
        self._sessions[length] = found

    async def append(self, length: int) -> None:
        await self._service.append_event(self._sessions[length], self._said(TEXT, "user"))

    async def turn(self, length: int) -> None:
        content = self._types.Content(role="user", parts=[self._types.Part(text="Hello")])
        async for _ in self._runner.run_async(user_id="ann", session_id=f"s{length}", new_message=content):
            pass

    async def close(self) -> None:
        await self._runner.close()


class LangGraph:
    """Thread of LangGraph with a saver on sqlite. A turn is `ainvoke` of a graph with one node."""

    def __init__(self, folder: Path) -> None:
        parts = load("langgraph.graph")

        async def answer(state: Any) -> dict[str, Any]:
            return {"messages": [("ai", "You said hello")]}

        graph = parts.StateGraph(parts.MessagesState)
        graph.add_node("answer", answer)
        graph.add_edge(parts.START, "answer")
        graph.add_edge("answer", parts.END)
        self._folder, self._graph = folder, graph
        self._compiled: Any = None

    async def _thread(self, length: int) -> tuple[Any, dict[str, Any]]:
        if self._compiled is None:
            savers = load("langgraph.checkpoint.sqlite.aio")
            saver = savers.AsyncSqliteSaver(await load("aiosqlite").connect(self._folder / "langgraph.db"))
            await saver.setup()
            self._compiled = self._graph.compile(checkpointer=saver)
        return self._compiled, {"configurable": {"thread_id": f"s{length}"}}

    async def fill(self, length: int) -> None:
        graph, thread = await self._thread(length)
        roles = ("human", "ai")
        await graph.aupdate_state(
            thread, {"messages": [(roles[n % 2], TEXT) for n in range(length)]}, as_node="answer"
        )

    async def append(self, length: int) -> None:
        graph, thread = await self._thread(length)
        await graph.aupdate_state(thread, {"messages": [("human", TEXT)]}, as_node="answer")

    async def turn(self, length: int) -> None:
        graph, thread = await self._thread(length)
        await graph.ainvoke({"messages": [("human", "Hello")]}, thread)

    async def close(self) -> None:
        if self._compiled is not None:
            await self._compiled.checkpointer.conn.close()


AEGRA_GRAPH = """
from langgraph.graph import END, START, MessagesState, StateGraph

async def answer(state):
    return {"messages": [("ai", "You said hello")]}

graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
graph = graph.compile()
"""


class Aegra:
    """Server of Aegra with a graph of one node. A turn is a run over HTTP whose stream is read to its end."""

    def __init__(self, folder: Path, url: str) -> None:
        load("aegra_api")
        (folder / "graph.py").write_text(AEGRA_GRAPH)
        (folder / "aegra.json").write_text('{"graphs": {"echo": "./graph.py:graph"}}')
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        settings = {"DATABASE_URL": url, "AEGRA_CONFIG": str(folder / "aegra.json"), "LOG_LEVEL": "ERROR"}
        self._server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "aegra_api.main:app",
                f"--port={self._port}",
                "--log-level=error",
            ],
            cwd=folder,
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
        )
        self._wait_until_ready()
        self._threads: dict[int, str] = {}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise ImportError("the server of Aegra did not start") from None
                time.sleep(0.2)

    def _post(self, path: str, body: Any) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {data[:300]!r}")
        return data

    async def fill(self, length: int) -> None:
        self._threads[length] = json.loads(self._post("/threads", {}))["thread_id"]
        self._run(length, "Hello")  # a thread without a run has no graph
        roles = ("human", "ai")
        messages = [(roles[n % 2], TEXT) for n in range(length - 2)]
        values = {"values": {"messages": messages}, "as_node": "answer"}
        self._post(f"/threads/{self._threads[length]}/state", values)

    async def append(self, length: int) -> None:
        values = {"values": {"messages": [("human", TEXT)]}, "as_node": "answer"}
        self._post(f"/threads/{self._threads[length]}/state", values)

    async def turn(self, length: int) -> None:
        self._run(length, "Hello")

    def _run(self, length: int, text: str) -> None:
        run = {"assistant_id": "echo", "stream_mode": ["updates"], "input": {"messages": [("human", text)]}}
        printed = self._post(f"/threads/{self._threads[length]}/runs/stream", run)
        if b"You said hello" not in printed:
            raise RuntimeError(f"no answer: {printed[:500]!r}")

    async def close(self) -> None:
        self._server.terminate()
        self._server.wait(20)


def version(package: str) -> str:
    return importlib.metadata.version(package)


def opened(name: str, folder: Path, url: str) -> tuple[Peer, str]:
    """Return the system and its version. Raise ImportError if it is not installed."""
    if name.startswith("openai-agents"):
        store = "sqlite" if "SQLite" in name else "redis"
        limit = 10 if "limit" in name else None
        return OpenAiAgents(store, folder, url, limit=limit), version("openai-agents")
    if name.startswith("google-adk"):
        return Adk(folder), version("google-adk")
    if name.startswith("Aegra"):
        return Aegra(folder, url), version("aegra-api")
    found: Peer = LangGraph(folder)
    return found, f"{version('langgraph')}, saver {version('langgraph-checkpoint-sqlite')}"


async def timed(peer: Peer, request: dict[str, Any]) -> list[float]:
    """Run an action some times, but start none after the given seconds. Return the microseconds of each."""
    act = peer.append if request["do"] == "append" else peer.turn
    taken: list[float] = []
    deadline = time.monotonic() + request["seconds"]
    for _ in range(request["count"]):
        began = time.perf_counter()
        await act(request["length"])
        taken.append((time.perf_counter() - began) * 1e6)
        if time.monotonic() > deadline:
            break
    return taken


async def main(name: str, folder: Path, url: str) -> None:
    logging.disable(logging.WARNING)
    try:
        peer, its_version = opened(name, folder, url)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"version": its_version}), flush=True)
    try:
        await serve(peer)
    finally:
        await peer.close()


async def serve(peer: Peer) -> None:
    """Do what the parent asks for, until it closes the pipe."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "fill":
            began = time.monotonic()
            await peer.fill(request["length"])
            reply: dict[str, Any] = {"seconds": time.monotonic() - began}
        else:
            reply = {"us": await timed(peer, request)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
