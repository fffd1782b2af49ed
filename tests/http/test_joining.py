"""Joining an answer in progress: the text so far, then the deltas, then the answer."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, OnDelta
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.events import deltas
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.sse import Parser
from breadcrumbs.runtime.store.store import Store
from tests.http.conftest import KEY, KEYS, OTHER_KEY, OWNER
from tests.http.test_stream import Live, Stream, live
from tests.support.conversations import Working, eventually, opened, working

DELTA = "agent.response.delta"


class Writing:
    """A model that writes pieces. It stops before a piece with a name in braces until the test allows it."""

    name = "writing"

    def __init__(self, *attempts: list[str | float | Exception], reasoning: str = "") -> None:
        self._attempts = list(attempts)
        self._reasoning = reasoning
        self._gate = anyio.Event()
        self.waits = anyio.Event()
        self.requests: list[ModelRequest] = []

    def go_on(self) -> None:
        self._gate.set()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        assert on_delta is not None and request.observer is not None
        steps = self._attempts[min(len(self.requests), len(self._attempts) - 1)]
        self.requests.append(request)
        if self._reasoning:
            await request.observer.reason(self._reasoning)
        text = ""
        for step in steps:
            match step:
                case Exception():
                    raise step
                case float():
                    await anyio.sleep(step)
                case "{wait}":
                    self.waits.set()
                    await self._gate.wait()
                case str():
                    text += step
                    await on_delta(step)
        return ModelReply(text)

    async def close(self) -> None:
        return None


@asynccontextmanager
async def chatting(
    url: str,
    model: Any,
    owner: UUID = DEVELOPER,
    backoff: Callable[[int], float] = lambda _: 0.05,
    **settings: Any,
) -> AsyncIterator[tuple[Live, Working]]:
    """Run a server, and workers with their own connection."""
    namespace = f"t{secrets.token_hex(6)}"
    async with (
        live(url, namespace=namespace, **settings) as site,
        opened(url, lanes=site.store.lanes, namespace=namespace) as store,
        working(store, model, owner=owner, backoff=backoff) as team,
    ):
        yield site, team


class Shown:
    """The text that a client shows. It applies each delta as the documentation says."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.history: list[str] = []
        self.notices: list[dict[str, Any]] = []

    def add(self, delta: dict[str, Any]) -> None:
        assert delta["offset"] <= len(self.text), f"a piece is missing before {delta}"
        self.text = self.text[: delta["offset"]] + delta["text"]
        self.reasoning = self.reasoning[: delta.get("reasoning_offset", 0)] + delta.get("reasoning", "")
        self.history.append(self.text)
        if "notice" in delta:
            self.notices.append(delta["notice"])


async def frames(stream: Stream) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    event, data = "message", ""
    async for line in stream._lines:
        if line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:"):
            data = line[5:].strip()
        elif not line:
            if data:
                yield event, orjson.loads(data)
            event, data = "message", ""


async def show_until_outcome(stream: Stream, shown: Shown) -> dict[str, Any]:
    """Show deltas until the answer or the error. Nothing of the answer may follow."""
    async for event, data in frames(stream):
        if event == DELTA:
            shown.add(data)
        elif data.get("schema_name") in ("agent.response.v1", "agent.error.v1"):
            return data
    raise AssertionError("the stream ended")


async def running_keys(site: Live) -> list[bytes]:
    keys: list[bytes] = await site.store.connection.call(0, b"KEYS", site.store.keys.meta[:-4] + b"{*}P*")
    return keys


@pytest.mark.parametrize("seed", range(6))
async def test_a_client_that_joins_at_any_time_shows_a_prefix_and_then_the_answer(
    standalone_server: Any, seed: int
) -> None:
    dice = random.Random(seed)

    def pieces(name: str, count: int) -> list[str | float | Exception]:
        steps: list[str | float | Exception] = []
        for number in range(count):
            steps += [f"{name}{number} ", dice.choice([0.0, 0.005, 0.02, 0.05, 0.15])]
        return steps

    first: list[str | float | Exception] = pieces("x", dice.randint(2, 12))
    attempts = (
        [[*first, ModelError("overloaded", retry=True)], pieces("y", 25)] if seed % 2 else [pieces("y", 30)]
    )
    texts = ["".join(step for step in steps if isinstance(step, str)) for steps in attempts]
    finals: list[tuple[Shown, dict[str, Any]]] = []
    async with chatting(standalone_server.url, Writing(*attempts)) as (site, team):

        async def client(query: dict[str, Any], delay: float) -> None:
            await anyio.sleep(delay)
            async with site.stream(**query) as stream:
                shown = Shown()
                finals.append((shown, await show_until_outcome(stream, shown)))

        queries: list[dict[str, Any]] = [{"session_id": "s"}, {"any_tags": ["session:s", "x"]}, {}]
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(client, queries[number % 3], dice.uniform(0, 1.0))
                await team.say("s", "Hello")
    for shown, outcome in finals:
        assert outcome["context"]["message"] == texts[-1].strip()
        for text in shown.history:
            assert any(whole.startswith(text) for whole in texts), text
    assert sum(len(shown.history) > 1 for shown, _ in finals) > 3, (
        "too few clients joined while it was written"
    )


async def test_a_client_that_joins_during_a_pause_gets_the_text_so_far(standalone_server: Any) -> None:
    model = Writing(["one ", "two ", 0.2, "{wait}", "three"])
    async with chatting(standalone_server.url, model) as (site, team):
        await team.say("s", "Hello")
        await model.waits.wait()
        async with site.stream(session_id="s") as stream:
            first = await stream.next(kind=DELTA, within=1)
            assert (first["offset"], first["text"]) == (0, "one two ")
            assert len(await running_keys(site)) == 1
            shown = Shown()
            shown.add(first)
            model.go_on()
            outcome = await show_until_outcome(stream, shown)
        assert shown.text == outcome["context"]["message"] == "one two three"
        assert await running_keys(site) == [], "the text so far must end with the answer"


async def test_a_repeated_request_joins_the_answer_with_wait(standalone_server: Any) -> None:
    model = Writing(["one ", "two ", 0.2, "{wait}", "three"])
    async with (
        chatting(standalone_server.url, model) as (site, _),
        httpx.AsyncClient(base_url=site.url) as client,
    ):
        request: dict[str, Any] = {
            "url": "/sessions/s/messages",
            "json": {"message": "Hello"},
            "headers": {"Idempotency-Key": "k", "Accept": "text/event-stream"},
        }
        async with client.stream("POST", **request):
            await model.waits.wait()
        parser, shown = Parser(), Shown()
        async with client.stream("POST", **request) as response:
            async for piece in response.aiter_bytes():
                for event in parser.feed(piece):
                    if event.event == "delta":
                        shown.add(orjson.loads(event.text))
                        model.go_on()
        assert shown.history[0] == "one two " and shown.text == "one two three"


async def test_only_a_token_that_sees_the_deltas_gets_the_text_so_far(standalone_server: Any) -> None:
    model = Writing(["secret ", "text", 0.2, "{wait}", "."])
    async with (
        chatting(standalone_server.url, model, owner=OWNER, api_keys=KEYS) as (site, team),
        httpx.AsyncClient(base_url=site.url) as client,
    ):

        async def token(key: str, **wanted: Any) -> dict[str, str]:
            answer = await client.post("/auth/token", json=wanted, headers={"X-API-Key": key})
            assert answer.status_code == 200, answer.text
            return {"Authorization": f"Bearer {answer.json()['token']}"}

        await team.say("mine", "Hello")
        await team.say("other", "Hello too")
        await model.waits.wait()
        own = await token(KEY, session_id="mine")
        for headers in (own, await token(KEY)):
            async with site.stream(headers=headers, session_id="mine") as stream:
                assert (await stream.next(kind=DELTA, within=2))["text"] == "secret text"
        foreign = [
            await token(OTHER_KEY),
            await token(KEY, session_id="third"),
            await token(KEY, user_id="eve"),
        ]
        for headers in foreign:
            async with site.stream(headers=headers, any_tags=["session:mine", "session:other"]) as stream:
                with pytest.raises(TimeoutError):
                    await stream.next(kind=DELTA, within=0.4)
        async with site.stream(headers=own, any_tags=["session:other"]) as stream:
            with pytest.raises(TimeoutError):
                await stream.next(kind=DELTA, within=0.4)
        model.go_on()


async def test_a_client_that_joined_later_stops_the_answer_within_a_second(standalone_server: Any) -> None:
    model = Writing(["one ", 0.2, "{wait}", "two"])
    async with chatting(standalone_server.url, model) as (site, team):
        message = await team.say("s", "Hello")
        await model.waits.wait()
        async with site.stream(session_id="s") as stream, httpx.AsyncClient(base_url=site.url) as second:
            assert (await stream.next(kind=DELTA, within=2))["text"] == "one "
            cancel = {"schema_name": "agent.cancel.v1", "title": "stop", "tags": ["session:s"], "context": {}}
            assert (await second.post("/breadcrumbs", json=cancel)).status_code == 201
            with anyio.fail_after(1):
                outcome = await show_until_outcome(stream, Shown())
        assert outcome["context"]["cancelled"] is True
        assert outcome["context"]["trigger_id"] == str(message.id)
        assert await running_keys(site) == []
        async with site.stream(session_id="s") as late:
            with pytest.raises(TimeoutError):
                await late.next(kind=DELTA, within=0.3)


async def test_a_deleted_session_takes_its_running_answer_with_it(standalone_server: Any) -> None:
    model = Writing(["one ", 0.2, "{wait}", "two"])
    async with chatting(standalone_server.url, model) as (site, team):
        await team.say("s", "Hello")
        await model.waits.wait()
        await eventually(lambda: has_keys(site, 1), "the text was not saved")
        async with httpx.AsyncClient(base_url=site.url) as client:
            assert (await client.delete("/sessions/s")).status_code in (200, 204)
        assert await running_keys(site) == []


async def test_a_message_that_is_deleted_between_two_attempts_leaves_no_text(standalone_server: Any) -> None:
    model = Writing(["one ", 0.2, ModelError("overloaded", retry=True)], ["two"])
    async with chatting(standalone_server.url, model, backoff=lambda _: 1.0) as (site, team):
        message = await team.say("s", "Hello")
        keep_session = {"schema_name": "note.v1", "title": "note", "tags": ["session:s"], "context": {}}
        await team.store.create(team.owner, BreadcrumbCreate.parse(keep_session))
        async with site.stream(session_id="s") as stream:
            while "notice" not in await stream.next(kind=DELTA, within=3):
                pass
        assert await has_keys(site, 1)
        for found in (*await team.all("s", "agent.context.v1"), message):
            await team.store.delete(team.owner, found.id)
        await eventually(lambda: has_keys(site, 0), "the text of the deleted message is still there")
        assert len(model.requests) == 1


async def test_a_client_that_joins_a_long_answer_gets_all_of_it_in_parts(standalone_server: Any) -> None:
    """The text is nearly as long as an answer can be (1 MiB)."""
    pieces = [f"{number:07} " * 4_000 for number in range(32)]
    steps: list[str | float | Exception] = [step for piece in pieces for step in (piece, 0.01)]
    text = "".join(pieces)
    model = Writing([*steps, 1.2, "{wait}", "end"])
    async with chatting(standalone_server.url, model) as (site, team):
        await team.say("s", "Hello")
        await model.waits.wait()
        for _ in range(2):
            async with site.stream(session_id="s") as stream:
                shown = Shown()
                with anyio.fail_after(10):
                    while len(shown.text) < len(text):
                        shown.add(await stream.next(kind=DELTA, within=3))
                        assert text.startswith(shown.text)
                lengths = [0, *map(len, shown.history)]
                assert max(b - a for a, b in itertools.pairwise(lengths)) <= 1 << 18
        async with site.stream(session_id="s") as stream:
            shown = Shown()
            shown.add(await stream.next(kind=DELTA, within=3))
            model.go_on()
            outcome = await show_until_outcome(stream, shown)
        answer = outcome["context"]["message"]
        assert answer == text + "end"
        assert all(answer.startswith(shown_text) for shown_text in shown.history)
        assert await running_keys(site) == []


async def test_a_long_answer_is_shown_as_a_whole_and_saved_in_part(
    standalone_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltas, "MAX_SAVED_CHARACTERS", 100)
    sent: list[Delta] = []
    publish = deltas.publish

    def record(store: Store, lane: int, delta: Delta) -> None:
        sent.append(delta)
        publish(store, lane, delta)

    monkeypatch.setattr(deltas, "publish", record)
    pieces: list[str | float | Exception] = [step for _ in range(30) for step in ("x" * 10, 0.05)]
    model = Writing([*pieces, 0.2, "{wait}", "end"])
    async with chatting(standalone_server.url, model) as (site, team):
        async with site.stream(session_id="s") as stream:
            await team.say("s", "Hello")
            await model.waits.wait()
            async with site.stream(session_id="s") as late:
                text = (await late.next(kind=DELTA, within=1))["text"]
                assert 0 < len(text) <= 100 and set(text) == {"x"}
            model.go_on()
            shown = Shown()
            outcome = await show_until_outcome(stream, shown)
        assert shown.text == outcome["context"]["message"] == "x" * 300 + "end"
        assert max(len(delta.before) for delta in sent) <= 120, (
            "deltas must not repeat all text since the last save"
        )
        assert await running_keys(site) == []


async def test_deltas_of_an_earlier_version_are_passed_on_unchanged(standalone_server: Any) -> None:
    """Its workers do not number their attempts, and save nothing."""
    async with live(standalone_server.url, namespace=f"t{secrets.token_hex(6)}") as site:
        fields: dict[str, Any] = {
            "owner_id": str(DEVELOPER),
            "session_id": "s",
            "agent_id": "a",
            "trigger_id": "t",
        }
        fields |= {"tags": ["session:s"], "breadcrumb_id": str(UUID(int=1))}
        pieces = [("Hello", 0), ("you", 0), (" there", 3), ("!", 20)]
        async with site.stream(session_id="s") as stream:
            await anyio.sleep(0.2)
            for text, offset in pieces:
                payload = orjson.dumps({**fields, "text": text, "offset": offset})
                await site.store.connection.call(0, b"PUBLISH", site.store.keys.deltas(), payload)
                got = await stream.next(kind=DELTA, within=2)
                assert (got["text"], got["offset"]) == (text, offset)


async def has_keys(site: Live, count: int) -> bool:
    return len(await running_keys(site)) == count


async def test_a_client_sees_why_the_model_is_called_again(standalone_server: Any) -> None:
    model = Writing([ModelError("too many requests (429)", retry=True)], ["here I am"])
    async with chatting(standalone_server.url, model, backoff=lambda _: 1.5) as (site, team):
        async with site.stream(session_id="s") as stream:
            await team.say("s", "Hello")
            live_notice = (await stream.next(kind=DELTA, within=3))["notice"]
            assert live_notice["reason"] == "too many requests (429)"
            assert live_notice["attempt"] == 2 and live_notice["retry_in"] == 1.5
            async with site.stream(session_id="s") as later:
                joined = (await later.next(kind=DELTA, within=1))["notice"]
            assert joined["retry_at"] == live_notice["retry_at"] and joined["retry_in"] <= 1.5
            shown = Shown()
            outcome = await show_until_outcome(stream, shown)
        assert outcome["context"]["message"] == shown.text == "here I am"
        assert shown.notices == []


async def test_reasoning_is_sent_and_stored_apart_from_the_answer(standalone_server: Any) -> None:
    model = Writing(["The answer.", 0.2, "{wait}"], ["Another."], reasoning="I wonder about zebras")
    async with (
        chatting(standalone_server.url, model) as (site, team),
        httpx.AsyncClient(base_url=site.url) as client,
    ):
        message = await team.say("s", "Hello")
        await model.waits.wait()
        async with site.stream(session_id="s") as stream:
            shown = Shown()
            shown.add(await stream.next(kind=DELTA, within=1))
            assert (shown.text, shown.reasoning) == ("The answer.", "I wonder about zebras")
            model.go_on()
            outcome = await show_until_outcome(stream, shown)
        assert outcome["context"]["model_reasoning"] == "I wonder about zebras"
        assert outcome["context"]["message"] == outcome["context"]["content"] == "The answer."
        await team.answer_to(message)
        await team.answer_to(await team.say("s", "And now?"))
        contexts = await team.all("s", "agent.context.v1")
        assert "The answer." in str([crumb.context for crumb in contexts])
        assert "zebras" not in str([crumb.context for crumb in contexts])
        answer = await client.post("/sessions/s/fork", json={"id": "f"})
        assert answer.status_code == 201
        copies = await team.all("f", "agent.response.v1")
        assert copies[0].context["model_reasoning"] == "I wonder about zebras", "people can still read it"
        await team.answer_to(await team.say("f", "And in the fork?"))
        contexts += await team.all("f", "agent.context.v1")
        assert "The answer." in str(model.requests[-1].messages)
        assert "zebras" not in str([crumb.context for crumb in contexts])
        assert "zebras" not in str([request.messages for request in model.requests])
