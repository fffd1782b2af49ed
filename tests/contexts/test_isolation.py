"""R3: a context with scope `current` contains only its session, in any interleaving of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.retrieval import sources
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import OWNER, config, post
from tests.support.fake import FakeConnection

SESSIONS = ["1", "2", "1:2", "{L00}", "*", "a b"]
OTHER_OWNER = uuid4()

# Every kind of source: by schema, by tags, the newest one, with and without breadcrumbs of no session.
CURRENT: list[dict[str, Any]] = [
    {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 4}},
    {"key": "conversation", "schema_name": "agent.response.v1", "fetch": {"conversation_scope": "current"}},
    {"key": "tagged", "any_tags": ["red", "blue", "session:2"]},
    {"key": "narrow", "schema_name": "user.message.v1", "all_tags": ["red"], "any_tags": ["blue", "user:message"]},
    {"key": "catalogue", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}},
    {"key": "last", "schema_name": "agent.response.v1", "fetch": {"method": "latest", "conversation_scope": "current"}},
    {"key": "event", "fetch": {"method": "event_data"}},
]  # fmt: skip
WIDE: list[dict[str, Any]] = [
    {"key": "history", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all", "limit": 50}},
    {"key": "mine", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "user", "limit": 50}},
]


@dataclass(frozen=True)
class Step:
    """A post, or an edit or deletion of the last breadcrumb of a session."""

    kind: str
    session: str | None
    schema: str
    tags: tuple[str, ...]
    owner: UUID


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["post", "post", "post", "post", "edit", "delete"]),
        st.sampled_from([*SESSIONS, None]),
        st.sampled_from(["user.message.v1", "agent.response.v1", "tool.catalog.v1"]),
        st.lists(
            st.sampled_from(["red", "blue", "user:message", "user:ada", "user:bob"]), max_size=3, unique=True
        ).map(tuple),
        st.sampled_from([OWNER, OWNER, OTHER_OWNER]),
    ),
    min_size=2,
    max_size=14,
)


async def play(interleaving: list[Step], check: Callable[[Breadcrumb, Any, ContextConfig], None]) -> None:
    """Run an interleaving and check the context of every message in it."""
    store = await Store.open(lambda lanes: FakeConnection(lanes), lanes=3)
    narrow, wide = config(sources=CURRENT), config(sources=CURRENT + WIDE)
    last: dict[tuple[UUID, str | None], UUID] = {}
    try:
        for number, step in enumerate(interleaving):
            place = (step.owner, step.session)
            if step.kind == "post":
                crumb = await post(
                    store,
                    f"{number}",
                    session=step.session,
                    schema=step.schema,
                    tags=step.tags,
                    owner=step.owner,
                )
                last[place] = crumb.id
                if step.schema == "user.message.v1":
                    for chosen in (narrow, wide):
                        made = await build_context(store, chosen, crumb, hints=SchemaHints(store))
                        check(crumb, made, chosen)
            elif place in last and step.kind == "edit":
                await store.update(step.owner, last[place], BreadcrumbUpdate(tags=list(step.tags)))
            elif place in last:
                await store.delete(step.owner, last.pop(place))
    finally:
        await store.close()


def holds(trigger: Breadcrumb, made: Any, chosen: ContextConfig) -> None:
    for item in made.items:
        crumb = item.crumb
        assert crumb.owner_id == trigger.owner_id
        mine = crumb.session_id is not None and crumb.session_id == trigger.session_id
        if crumb.id == trigger.id:
            continue
        source = chosen.sources[item.number]
        if source.fetch.scope == "current":
            assert mine or (crumb.session_id is None and source.fetch.includes_shared)
        if source.fetch.scope == "user":
            users = {tag for tag in trigger.tags if tag.startswith("user:") and tag != "user:message"}
            assert users & set(crumb.tags)
        assert (item.place == "conversation") == mine
    for part in made.parts():  # R4: items of other sessions are separate
        if part["place"] == "conversation":
            ids = {item["id"] for item in part["items"]}
            assert ids <= {
                str(item.crumb.id) for item in made.items if item.crumb.session_id == trigger.session_id
            }
    assert [item.crumb.id for item in made.items].count(trigger.id) == 1
    if trigger.session_id is None:
        assert any("no session" in note for note in made.notes)


quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# In parts, because with CI=true all examples together would exceed the time limit on a loaded machine.
PARTS = 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_R3_a_context_with_scope_current_contains_only_its_own_session(part: int) -> None:
    @settings(quick, max_examples=settings().max_examples // PARTS)
    @given(steps)
    def property(interleaving: list[Step]) -> None:
        asyncio.run(play(interleaving, holds))

    property()


@pytest.mark.parametrize("mistake", ["no filter", "one more OR"])
def test_R3_the_property_fails_when_the_session_filter_is_removed(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The property must detect this error. `one more OR` is the bug that RCRT had."""

    def wrong(request: Any, source: Any, session: str) -> Any:
        if mistake == "one more OR":
            source = source.model_copy(update={"any_tags": (*source.any_tags, f"session:{session}")})
        return sources._Plan(listing=lambda: request.find(request.for_source(source)))

    monkeypatch.setattr(sources, "_plan_session", wrong)

    @settings(quick, max_examples=500, phases=[Phase.generate], database=None, derandomize=True)
    @given(steps)
    def property(interleaving: list[Step]) -> None:
        asyncio.run(play(interleaving, holds))

    with pytest.raises(AssertionError):
        property()


async def test_the_original_scenario_is_isolated(store: Store) -> None:
    """The question "What did I say?" in session 1 sees only "Hello session 1", not session 2."""
    await post(store, "Hello session 1", session="1")
    await post(store, "Hello session 2", session="2")
    question = await post(store, "What did I say?", session="1")
    made = await build_context(store, config(), question, hints=SchemaHints(store))
    assert [item.content["message"] for item in made.items] == ["Hello session 1", "What did I say?"]


async def test_scope_user_finds_only_other_sessions_of_the_user(store: Store) -> None:
    wide = config(
        sources=[{"key": "mine", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "user"}}]
    )
    await post(store, "ada in 1", session="1", tags=("user:ada", "user:message"))
    await post(store, "bob in 2", session="2", tags=("user:bob", "user:message"))
    await post(store, "nobody", session="3", tags=("user:message",))
    question = await post(store, "now", session="4", tags=("user:message", "user:ada"))
    made = await build_context(store, wide, question, hints=SchemaHints(store))
    assert [(item.content["message"], item.place) for item in made.items] == [
        ("ada in 1", "elsewhere"),
        ("now", "conversation"),
    ]


async def test_scope_user_without_a_user_finds_nothing_and_reports_it(store: Store) -> None:
    wide = config(
        sources=[{"key": "mine", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "user"}}]
    )
    await post(store, "ada in 1", session="1", tags=("user:ada",))
    question = await post(store, "now", session="4", tags=("user:message",))
    made = await build_context(store, wide, question, hints=SchemaHints(store))
    assert len(made.items) == 1
    assert made.notes == ["mine: the session has no user, so there is no user to search for"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"fetch": {"limit": 2}}, ["second", "now"]),
        ({"fetch": {"limit": 2}, "any_tags": ["talk", "chat"]}, ["second", "now"]),
        ({"fetch": {"limit": 2, "conversation_scope": "user"}}, ["second", "now"]),
        ({"fetch": {"method": "latest"}, "all_tags": ["noted"]}, ["first", "now"]),
    ],
)
async def test_waiting_messages_use_no_budget_of_earlier_ones(
    store: Store, changes: dict[str, Any], shown: list[str]
) -> None:
    tags = ("talk", "user:ada")
    await post(store, "first", session="s", tags=(*tags, "noted"))
    await post(store, "second", session="s", tags=tags)
    question = await post(store, "now", session="s", tags=tags)
    await post(store, "elsewhere", session="t", tags=("talk", "user:bob"))
    later = [await post(store, text, session="s", tags=(*tags, "noted")) for text in ("third", "fourth")]
    source = {"key": "said", "schema_name": "user.message.v1", **changes}
    made = await build_context(store, config(sources=[source]), question, hints=SchemaHints(store))
    assert [item.content["message"] for item in made.items] == shown
    assert made.left_out and {left.reason for left in made.left_out} == {"not yet its turn"}
    assert {left.crumb.id for left in made.left_out} <= {message.id for message in later}


async def test_waiting_messages_do_not_hide_later_answers(store: Store) -> None:
    """In a source of several schemas, the answer to an earlier message can be newer than the trigger."""
    await post(store, "first", session="s", tags=("talk",))
    question = await post(store, "now", session="s", tags=("talk",))
    await post(store, "third", session="s", tags=("talk",))
    await post(store, "re: first", session="s", tags=("talk",), schema="agent.response.v1")
    for text in ("fourth", "fifth", "sixth"):
        await post(store, text, session="s", tags=("talk",))
    source = {"key": "said", "any_tags": ["talk"], "fetch": {"limit": 3}}
    made = await build_context(store, config(sources=[source]), question, hints=SchemaHints(store))
    assert [item.content["message"] for item in made.items] == ["first", "re: first", "now"]


async def test_scope_current_never_widens_without_a_session(store: Store) -> None:
    await post(store, "somebody's", session="1")
    await post(store, "nobody's")
    question = await post(store, "now")
    made = await build_context(store, config(), question, hints=SchemaHints(store))
    assert [item.content["message"] for item in made.items] == ["now"]
    assert len(made.notes) == 2 and "no conversation to read" in made.notes[0]


CATALOGUE = {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}}


@pytest.mark.parametrize(
    "source", [CATALOGUE, {**CATALOGUE, "all_tags": ["tools"]}], ids=["index", "listing"]
)
async def test_only_breadcrumbs_for_all_sessions_reach_all_sessions(store: Store, source: Any) -> None:
    """A user's breadcrumb without a session is visible to that user only and hides nothing from others."""

    async def catalogue(text: str, *users: str, **fields: Any) -> None:
        tags = ("tools", *users)
        await post(store, text, schema="tool.catalog.v1", tags=tags, **fields)

    async def told(*users: str, session: str | None = "s") -> list[Any]:
        trigger = await post(store, "hello", session=session, tags=("user:message", *users))
        made = await build_context(store, config(sources=[source]), trigger, hints=SchemaHints(store))
        return [item.crumb.context["message"] for item in made.items if item.place == "shared"]

    assert await told() == []
    await catalogue("eve's own", "user:eve")
    assert await told() == []
    for number in range(40):  # in every lane
        await catalogue(f"real {number}")
    for number in range(40):
        await catalogue(f"eve's {number}", "user:eve")
        await catalogue("private", visibility="private")
        await catalogue("secret", sensitivity="secret")
    assert await told() == ["real 39"]
    assert await told("user:ada") == ["real 39"]
    assert await told("user:ada", session=None) == ["real 39"]
    assert await told("user:eve") == ["eve's 39"]
