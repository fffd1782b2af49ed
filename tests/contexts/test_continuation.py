"""A continued conversation has the same bytes as a context that is assembled completely, in any session.

Each run is a random session with a random config: messages, answers in time, late or to old messages, messages that
wait, edits, deletions, imports, hidden breadcrumbs, attachments, hints, other users. Each turn is built twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest

from breadcrumbs.context_builder import builder, continuation
from breadcrumbs.context_builder.assembly import assemble, find_sources_to_extend, select, waits_for_its_turn
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.continuation import Conversation, continue_conversation, conversation_of
from breadcrumbs.context_builder.past import reassemble
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.sources import Fetched, Source
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    SHIPPED,
    book_of,
    building,
    config,
    document,
    texts,
)
from tests.contexts.test_assembly import Words

RUNS = 250
NOTE: dict[str, Any] = {"key": "notes", "schema_name": "note.v1"}
PAGE: dict[str, Any] = {"key": "pages", "schema_name": "page.content.v1", "fetch": {"limit": 2}}
CONFIGS: list[dict[str, Any]] = [
    {"limits": [{"key": "conversation", "limit": 8, "keep": 4}]},
    {"limits": [{"key": "conversation", "limit": 9, "keep": 2}], "formatting": {"max_tokens": 20, "keep_tokens": 9}},
    {"limits": [{"key": "conversation", "limit": 7}]},
    {"sources": [MESSAGES | {"fetch": {"limit": 5, "keep": 2}}, ANSWERS | {"fetch": {"limit": 4}}]},
    {"sources": [MESSAGES, ANSWERS, NOTE, PAGE], "formatting": {"max_tokens": 30}},
    {"sources": [MESSAGES | {"key": "asked"}, ANSWERS], "limits": [{"key": "asked", "limit": 6, "keep": 3}]},
    {"sources": [MESSAGES, ANSWERS, MESSAGES | {"key": "last", "fetch": {"method": "latest"}}]},
    {"sources": [MESSAGES, ANSWERS, {"key": "tagged", "any_tags": ["topic:x"], "fetch": {"limit": 3}}]},
    {"sources": [MESSAGES | {"max_tokens": 2}, ANSWERS], "exclude": {"schema_names": ["note.v1"]}},
    {"sources": [MESSAGES, ANSWERS, {"key": "now", "fetch": {"method": "event_data"}}]},
]  # fmt: skip


ODD_STEPS = ("edit", "delete", "import", "note", "answer")
ODD = (*ODD_STEPS, "tags", "fields", "late")
"""Things that happen with a different probability in each session."""


class Session:
    """A session, and what the sources of a config find in it."""

    def __init__(self, random: Random, one: ContextConfig) -> None:
        self.random = random
        self.config = one
        self.crumbs: dict[UUID, Breadcrumb] = {}
        self.waiting: list[UUID] = []
        self.oddness = {kind: random.choice([0.0, 0.0, 0.0, 0.05, 0.15]) for kind in ODD}
        self.last: Conversation | None = None
        self.continued = 0
        self._ids = count(1)
        self._times = count(1000)

    def write(self, schema: str, *, at: int | None = None, **fields: Any) -> Breadcrumb:
        random = self.random
        words = " ".join(["word"] * random.randrange(1, 4))
        tags = ["session:s", random.choice(["topic:x", "user:b"]) if self.is_odd("tags") else "user:a"]
        context = {"message": words, "session_id": "s"} | fields
        document = {"title": "", "schema_name": schema, "tags": tags, "context": context}
        if self.is_odd("fields"):
            hints = {"llm_hints": {"exclude": ["extra"]}}
            document |= random.choice([{"visibility": "private"}, {"sensitivity": "secret"}, hints])
        time = next(self._times) if at is None else at
        made = Breadcrumb(
            UUID(int=next(self._ids) << 64 | time), OWNER, 1, time, time, 0, 0, None, None, orjson.dumps(document)
        )  # fmt: skip
        self.crumbs[made.id] = made
        return made

    def is_odd(self, kind: str) -> bool:
        return self.random.random() < self.oddness[kind]

    def step(self) -> None:
        """Write a message and build the context of the oldest that waits, or change the session."""
        random, known = self.random, list(self.crumbs.values())
        match next((kind for kind in ODD_STEPS if self.is_odd(kind)), "message"):
            case "message":
                message = self.write("user.message.v1", extra="x")
                if not message.is_withheld:
                    self.waiting.append(message.id)
                while self.waiting and not self.is_odd("late"):
                    self.turn(self.crumbs[self.waiting.pop(0)])
            case "edit" if known:
                old = random.choice(known)
                document = old.document | {"context": old.context | {"message": "edited"}}
                self.crumbs[old.id] = Breadcrumb(
                    old.id, OWNER, old.version + 1, old.created, old.created + 1, 0, 0, None, None,
                    orjson.dumps(document),
                )  # fmt: skip
            case "delete" if known and not self.waiting:
                del self.crumbs[random.choice(known).id]
            case "import":
                schema = random.choice(["user.message.v1", "agent.response.v1"])
                self.write(schema, at=random.randrange(1, 1000))
            case "note":
                self.write(random.choice(["note.v1", "page.content.v1"]))
            case "answer" if known:  # of a client, to an older message or to none
                older = random.choice(known[-14:-4] or known)
                question = random.choice([str(older.id), str(older.id), "unknown", 7])
                self.write("agent.response.v1", trigger_id=question)

    def turn(self, trigger: Breadcrumb) -> None:
        one = self.config
        fetched = self._fetch(one.first_sources, trigger)
        continued = None
        if self.last is not None:
            continued = continue_conversation(self.last, one, trigger, fetched, Words())
        parts, explanation, conversation = self._assemble(trigger, fetched)
        if continued is not None:
            self.continued += 1
            assert orjson.dumps(continued.parts) == orjson.dumps(parts), "in the parts"
            assert orjson.dumps(continued.explanation) == orjson.dumps(explanation), "in the explanation"
        self.last = conversation if continued is None else continued
        if not self.is_odd("late"):
            self.write("agent.response.v1", trigger_id=str(trigger.id), creator={"agent_id": "a"})

    def _assemble(
        self, trigger: Breadcrumb, fetched: Fetched
    ) -> tuple[list[dict[str, Any]], dict[str, Any], Conversation | None]:
        """Build a context as the context builder does."""
        one = self.config
        complete = self._fetch(one.first_sources, trigger, refilled=True)
        selection = select(one, trigger, complete.items(trigger), complete.sources, complete.counts)
        if further := find_sources_to_extend(one, selection):
            sources = [further.get(number, source) for number, source in enumerate(one.first_sources)]
            complete = self._fetch(sources, trigger, refilled=True)
            selection = select(one, trigger, complete.items(trigger), complete.sources, complete.counts)
        items = complete.items(trigger)
        assembled = assemble(one, trigger, items, counter=Words(), selection=selection)
        parts = assembled.parts()
        explanation = assembled.explain(parts)
        return parts, explanation, conversation_of(one, complete, assembled, parts, explanation)

    def _fetch(self, sources: Iterable[Source], trigger: Breadcrumb, *, refilled: bool = False) -> Fetched:
        listed = sources if isinstance(sources, tuple) else list(sources)
        results: list[list[Breadcrumb] | None] = []
        counts: dict[int, int] = {}
        for number, source in enumerate(listed):
            if source.fetch.method == "event_data":
                results.append(None)
                continue
            newest_first = sorted(
                filter(_matcher(source), self.crumbs.values()), key=lambda crumb: crumb.position, reverse=True
            )
            waiting = [
                crumb
                for crumb in newest_first
                if refilled and waits_for_its_turn(self.config, trigger, crumb)
            ]
            others = [crumb for crumb in newest_first if crumb not in waiting]
            found = [*waiting, *others[: source.fetch.max_items]]
            results.append(sorted(found, key=lambda crumb: crumb.position, reverse=True))
            if number in self.config.counted_sources:
                counts[number] = sum(crumb.created <= trigger.created for crumb in newest_first)
        return Fetched(listed, results, [], counts, trigger.created)


def _matcher(source: Source) -> Callable[[Breadcrumb], bool]:
    return lambda crumb: (
        source.schema_name in (None, crumb.schema_name)
        and (not source.any_tags or not set(source.any_tags).isdisjoint(crumb.tags))
    )


def run(numbers: Iterable[int]) -> int:
    """Run random sessions. Return the number of continued contexts."""
    continued = 0
    for number in numbers:
        random = Random(number)
        session = Session(random, config(**CONFIGS[number % len(CONFIGS)]))
        try:
            for _ in range(40):
                session.step()
        except AssertionError as error:
            raise AssertionError(f"{error} of session {number}") from error
        continued += session.continued
    return continued


def test_a_continued_conversation_has_the_bytes_of_an_assembled_context() -> None:
    assert run(range(RUNS)) > RUNS


def test_a_chat_with_the_shipped_config_is_assembled_only_at_the_steps_of_its_window() -> None:
    session = Session(Random(1), parse_configs(SHIPPED.read_bytes())[0])
    plain = {"title": "", "tags": ["session:s", "user:message"]}
    for turn in range(100):
        time = 2 * turn + 1
        context: dict[str, Any] = {"message": "hello", "session_id": "s"}
        document = plain | {"schema_name": "user.message.v1", "context": context}
        trigger = Breadcrumb(UUID(int=time), OWNER, 1, time, time, 0, 0, None, None, orjson.dumps(document))
        session.crumbs[trigger.id] = trigger
        session.oddness = dict.fromkeys(ODD, 0.0)
        session.turn(trigger)
        answer = next(reversed(session.crumbs.values()))
        document = plain | {
            "schema_name": "agent.response.v1",
            "context": {**context, "trigger_id": str(trigger.id)},
        }
        del session.crumbs[answer.id]
        session.crumbs[UUID(int=time + 1)] = Breadcrumb(
            UUID(int=time + 1), OWNER, 1, time + 1, time + 1, 0, 0, None, None, orjson.dumps(document)
        )
    assert session.continued >= 90


async def test_the_builder_continues_the_contexts_that_it_has_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    continued: list[bool] = []

    def counted(*arguments: Any) -> Conversation | None:
        conversation = continue_conversation(*arguments)
        continued.append(conversation is not None)
        return conversation

    monkeypatch.setattr(builder, "continue_conversation", counted)
    changes = {"sources": [MESSAGES | {"fetch": {"limit": 9, "keep": 3}}]}
    async with building(store, book_of(store, document(**changes))) as running:
        for number in range(12):
            context = await running.say(f"message {number}", "s")
    assert texts(context)[-1] == "message 11"
    assert continued == [*[True] * 8, False, True, True]
    for version in range(1, 13):
        assert (await reassemble(store, OWNER, context.id, version, config(**changes))).same


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "windows": lambda patch: patch.setattr(continuation, "_are_all_in_windows", lambda *_: True),
    "questions": lambda patch: patch.setattr(continuation, "_lacks_question", lambda *_: False),
    "changes": lambda patch: patch.setattr(continuation, "_find_new", _new_by_id),
    "order and visibility": lambda patch: patch.setattr(continuation, "_follows", lambda *_: True),
    "kinds of sources": lambda patch: patch.setattr(
        ContextConfig, "conversation_sources", property(lambda self: frozenset(range(len(self.sources))))
    ),
}


def _new_by_id(old: list[Breadcrumb], crumbs: list[Breadcrumb]) -> list[Breadcrumb]:
    known = {crumb.id for crumb in old}
    return [crumb for crumb in crumbs if crumb.id not in known]


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_continuation_without_one_of_its_rules_is_detected(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[rule](monkeypatch)
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        run(range(RUNS))
