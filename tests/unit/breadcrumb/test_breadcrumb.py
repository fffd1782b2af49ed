from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
    build_content,
    merge_patch,
    parse_time,
)
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS, session_of
from breadcrumbs.runtime.breadcrumb.ttl import NEVER, Expiry
from breadcrumbs.runtime.errors import InvalidInput, SessionConflict
from breadcrumbs.runtime.store import record

OWNER, AGENT = UUID(int=1), UUID(int=2)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def stored(**fields: Any) -> Breadcrumb:
    content = build_content(BreadcrumbCreate.parse(fields))
    return Breadcrumb(uuid4(), OWNER, 1, 1_000, 1_000, 0, 0, AGENT, AGENT, content.json)


def changed(crumb: Breadcrumb, fields: dict[str, Any], *, merge: bool = False) -> dict[str, Any]:
    after = crumb.apply_change(BreadcrumbUpdate.parse(fields), merge_context=merge)
    document: dict[str, Any] = orjson.loads(build_content(after).json)
    return document


class TestInput:
    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"tags": "a"}, "tags"),
            ({"tags": [""]}, "tags.0"),
            ({"tags": ["a", " "]}, "tags.1"),
            ({"tags": ["a\nb"]}, "tags.0"),
            ({"tags": ["a\x00"]}, "tags.0"),
            ({"tags": ["a\u2028b"]}, "tags.0"),
            ({"tags": ["\x85"]}, "tags.0"),
            ({"tags": ["x" * (MAX_TAG_LENGTH + 1)]}, "tags.0"),
            ({"tags": [f"{n}" for n in range(MAX_TAGS + 1)]}, "tags"),
            ({"tags": [1]}, "tags.0"),
            ({"tags": ["\ud800"]}, "tags.0"),
            ({"schema_name": ""}, "schema_name"),
            ({"schema_name": "a\tb"}, "schema_name"),
            ({"schema_name": "x" * 201}, "schema_name"),
            ({"title": "a\nb"}, "title"),
            ({"title": "x" * 501}, "title"),
            ({"title": None}, "title"),
            ({"description": "x" * 10_001}, "description"),
            ({"context": []}, "context"),
            ({"context": None}, "context"),
            ({"visibility": "secret"}, "visibility"),
            ({"sensitivity": "none"}, "sensitivity"),
            ({"ttl": "tomorrow"}, "ttl"),
            ({"ttl": "2030-01-01T00:00:00"}, "ttl"),
            ({"ttl_type": "sometimes"}, "ttl_type"),
            ({"ttl_config": {"duration": "soon"}}, "ttl_config.duration"),
            ({"llm_hints": "none"}, "llm_hints"),
        ],
    )
    def test_every_invalid_field_is_refused_with_its_location(
        self, fields: dict[str, Any], where: str
    ) -> None:
        with pytest.raises(InvalidInput) as refused:
            BreadcrumbCreate.parse(fields)
        assert [complaint.where for complaint in refused.value.complaints] == [where]

    @pytest.mark.parametrize("field", ["id", "owner_id", "version", "created_at", "updated_by", "checksum"])
    def test_fields_that_the_store_sets_are_refused(self, field: str) -> None:
        for model in (BreadcrumbCreate, BreadcrumbUpdate):
            with pytest.raises(InvalidInput) as refused:
                model.parse({field: "x"})
            assert "set by the store" in refused.value.complaints[0].message

    def test_an_unknown_field_is_refused_with_a_hint_to_use_context(self) -> None:
        with pytest.raises(InvalidInput) as refused:
            BreadcrumbCreate.parse({"message": "hello"})
        assert "`context`" in refused.value.complaints[0].message

    def test_errors_are_reported_together_up_to_a_limit(self) -> None:
        with pytest.raises(InvalidInput) as refused:
            BreadcrumbCreate.parse({"title": 1, "tags": [""] * 60})
        assert len(refused.value.complaints) == 20

    @pytest.mark.parametrize("document", [None, [], "x", 1])
    def test_a_body_that_is_not_an_object_is_refused(self, document: object) -> None:
        with pytest.raises(InvalidInput):
            BreadcrumbCreate.parse(document)

    def test_an_empty_change_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="empty"):
            BreadcrumbUpdate.parse({})

    @pytest.mark.parametrize("spelling", ["Public", "PUBLIC", "public"])
    def test_the_spellings_of_rcrt_are_accepted(self, spelling: str) -> None:
        assert BreadcrumbCreate.parse({"visibility": spelling}).visibility == "public"

    @pytest.mark.parametrize(
        "tag", ["a:b:c", "*", "[a-z]", "{L00}", "a b", "é", "🙂", "%s", "\\", "session", "x" * MAX_TAG_LENGTH]
    )
    def test_colons_globs_braces_and_spaces_are_legal(self, tag: str) -> None:
        assert BreadcrumbCreate.parse({"tags": [tag]}).tags == [tag]

    def test_hints_that_cannot_be_applied_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="llm_hints"):
            build_content(BreadcrumbCreate.parse({"llm_hints": {"mode": "nonsense"}}))


class TestSessionRule:
    def test_tags_name_one_session_or_none(self) -> None:
        assert session_of(["a", "session:x", "b"]) == "x"
        assert session_of(["a", "sessions:x", "Session:y"]) is None
        assert session_of(["session:a:b"]) == "a:b"
        with pytest.raises(SessionConflict):
            session_of(["session:x", "session:y"])

    @given(session=st.text(min_size=1, max_size=20), by_tag=st.booleans())
    def test_a_missing_session_tag_or_session_id_is_added(self, session: str, by_tag: bool) -> None:
        fields = {"tags": [f"session:{session}"]} if by_tag else {"context": {"session_id": session}}
        try:
            content = build_content(BreadcrumbCreate.parse(fields))
        except InvalidInput:
            assert not session.isprintable() or not session.strip()
            return
        document = orjson.loads(content.json)
        assert content.session_id == session
        assert document["tags"] == [f"session:{session}"]
        assert document["context"] == {"session_id": session}

    def test_objects_of_the_caller_are_not_modified(self) -> None:
        fields = {"tags": ["a"], "context": {"session_id": "s"}}
        new = BreadcrumbCreate.parse(fields)
        build_content(new)
        assert new.tags == ["a"] and fields == {"tags": ["a"], "context": {"session_id": "s"}}

    def test_duplicate_tags_are_removed(self) -> None:
        content = build_content(BreadcrumbCreate.parse({"tags": ["b", "a", "b"]}))
        assert content.tags == ("b", "a")


class TestChange:
    def test_given_fields_replace_and_others_stay(self) -> None:
        crumb = stored(title="t", tags=["a"], context={"x": 1, "y": 2}, description="d", schema_name="s.v1")
        assert changed(crumb, {"context": {"z": 3}}) == {
            "title": "t",
            "tags": ["a"],
            "context": {"z": 3},
            "schema_name": "s.v1",
            "description": "d",
        }
        assert crumb.context == {"x": 1, "y": 2}, "a version never changes"

    def test_null_clears_a_field(self) -> None:
        crumb = stored(title="t", tags=["a"], context={"x": 1}, description="d", visibility="private")
        cleared = {"title": None, "tags": None, "context": None, "description": None, "visibility": None}
        assert changed(crumb, cleared) == {"title": "", "tags": [], "context": {}}

    @given(
        json_values.filter(lambda value: isinstance(value, dict)),
        json_values.filter(lambda value: isinstance(value, dict)),
    )
    def test_a_merge_follows_rfc_7396(self, target: dict[str, Any], patch: dict[str, Any]) -> None:
        def rfc(target: Any, patch: Any) -> Any:
            if isinstance(patch, dict):
                result = dict(target) if isinstance(target, dict) else {}
                for name, value in patch.items():
                    if value is None:
                        result.pop(name, None)
                    else:
                        result[name] = rfc(result.get(name), value)
                return result
            return patch

        before = orjson.dumps(target)
        assert merge_patch(target, patch) == rfc(target, patch)
        assert orjson.dumps(target) == before

    @pytest.mark.parametrize(
        ("target", "patch", "result"),
        [  # the examples of RFC 7396
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"a": "b"}, ["c"], ["c"]),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ],
    )
    def test_merges_match_the_examples_of_rfc_7396(self, target: Any, patch: Any, result: Any) -> None:
        assert merge_patch(target, patch) == result

    @pytest.mark.parametrize("merge", [True, False])
    @pytest.mark.parametrize("claim", ["other", 5, ["s"], {"s": 1}, True, ""])
    def test_an_update_cannot_change_the_session(self, claim: Any, merge: bool) -> None:
        for crumb in (stored(tags=["session:s"]), stored()):
            with pytest.raises(SessionConflict):
                changed(crumb, {"context": {"session_id": claim}}, merge=merge)

    def test_a_ttl_is_replaced_completely(self) -> None:
        crumb = stored(ttl_type="hybrid", ttl_config={"duration": "1h", "max_reads": 5})
        assert changed(crumb, {"title": "x"})["ttl_config"] == {"duration": "PT1H", "max_reads": 5}
        after = changed(crumb, {"ttl": "2030-01-01T00:00:00Z"})
        assert after["ttl"] == "2030-01-01T00:00:00.000000Z"
        assert "ttl_config" not in after and "ttl_type" not in after
        lifted = changed(crumb, {"ttl_type": None})
        assert not {name for name in lifted if name.startswith("ttl")}

    @given(
        st.fixed_dictionaries(
            {"title": st.sampled_from(["", "t"]), "tags": st.lists(st.sampled_from("abc"), unique=True)},
            optional={
                "context": st.dictionaries(st.sampled_from("xy"), json_values, max_size=2),
                "ttl_config": st.sampled_from([{"duration": "400d"}, {"duration": 0.5}, {"max_reads": 2}]),
                "ttl": st.sampled_from(["2030-01-01T01:02:03.456789+02:00"]),
                "llm_hints": st.sampled_from([{"exclude": ["$.x"]}]),
                "visibility": st.sampled_from(["public", "team", "private"]),
            },
        )
    )
    def test_a_change_of_one_field_changes_nothing_else(self, fields: dict[str, Any]) -> None:
        crumb = stored(**fields)
        assert changed(crumb, {"title": "new"}) == crumb.document | {"title": "new"}


class TestLimits:
    def test_a_breadcrumb_without_a_ttl_gets_the_default_of_its_schema(self) -> None:
        default = Expiry(after=5)
        said_nothing = build_content(BreadcrumbCreate.parse({}), default_ttl=default)
        assert said_nothing.expiry == default
        assert orjson.loads(said_nothing.json)["ttl_source"] == "schema-default"
        never = build_content(BreadcrumbCreate.parse({"ttl_type": "never"}), default_ttl=default)
        assert never.expiry == NEVER
        assert orjson.loads(never.json)["ttl_source"] == "explicit"
        assert "ttl_source" not in orjson.loads(build_content(BreadcrumbCreate.parse({})).json)

    @pytest.mark.parametrize("value", [1 << 64, "\ud800", object(), {1: 2}, {"a", "b"}])
    def test_invalid_json_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput, match="JSON"):
            build_content(BreadcrumbCreate(context={"value": value}))


class TestViews:
    def test_the_full_view_contains_all_set_fields_and_no_others(self) -> None:
        crumb = stored(schema_name="s.v1", title="t", tags=["a"], context={"b": 1, "a": 2})
        view = crumb.full_view()
        assert view["id"] == str(crumb.id) and view["version"] == 1
        assert view["created_at"] == view["updated_at"] == "1970-01-01T00:00:00.001000Z"
        assert view["created_by"] == str(AGENT)
        assert view["size_bytes"] == len(b'{"a":2,"b":1}')
        assert None not in view.values()
        assert "expires_at" not in view and "description" not in view
        same = stored(context={"a": 2, "b": 1})
        assert same.full_view()["checksum"] == view["checksum"], (
            "of the content, whatever the order of its keys"
        )

    def test_a_list_item_contains_its_context_on_request(self) -> None:
        crumb = stored(title="t", context={"a": 1})
        assert set(crumb.list_item()) == {"id", "title", "tags", "version", "created_at", "updated_at"}
        assert crumb.list_item(include_context=True)["context"] == {"a": 1}


class TestRecord:
    @given(
        version=st.integers(1, 1 << 40),
        moment=st.integers(0, 1 << 53),
        reads=st.integers(-9, 9),
        by=st.none() | st.uuids(),
        json=st.binary(),
    )
    def test_a_body_is_read_back_as_it_was_written(
        self, version: int, moment: int, reads: int, by: UUID | None, json: bytes
    ) -> None:
        if by == UUID(int=0):
            by = None
        crumb = Breadcrumb(uuid4(), OWNER, version, moment, moment + 1, 0, reads, by, None, json)
        assert record.decode(OWNER, crumb.id, record.encode(crumb)) == crumb

    @pytest.mark.parametrize(
        ("expires", "max_reads", "gone"),
        [(0, 0, False), (99, 0, True), (100, 0, True), (101, 0, False), (99, 5, True), (99, -1, False)],
    )
    def test_expiry_is_decided_by_time_and_reads(self, expires: int, max_reads: int, gone: bool) -> None:
        crumb = Breadcrumb(uuid4(), OWNER, 1, 1, 1, expires, max_reads, None, None, b"{}")
        assert record.is_gone(crumb, 100) is gone


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-16T09:00:00Z", datetime(2026, 11, 16, 9, tzinfo=UTC)),
        ("2026-11-16T09:00:00.123456+01:00", datetime(2026, 11, 16, 8, 0, 0, 123456, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_read_with_their_zone(text: str, moment: datetime) -> None:
    assert parse_time(text, where="since") == int(moment.timestamp()) * 1_000_000 + moment.microsecond


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-16",
        "2026-11-16T09:00:00",
        "2026-13-01T00:00:00Z",
        "1969-01-01T00:00:00Z",
        "9999-01-01T00:00:00Z",
        "1",
    ],
)
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_time(text, where="since")
    assert refused.value.complaints[0].where == "since"
