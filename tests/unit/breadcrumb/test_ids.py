from __future__ import annotations

import time
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.breadcrumb.ids import MAX_LANES, derived_id, home_lane, lane_for, new_id, parse_id
from breadcrumbs.runtime.errors import InvalidInput

OWNER, OTHER = UUID(int=1), UUID(int=2)


@given(lanes=st.integers(1, MAX_LANES), data=st.data())
def test_an_id_contains_its_lane(lanes: int, data: st.DataObject) -> None:
    lane = data.draw(st.integers(0, lanes - 1))
    assert home_lane(new_id(lane), lanes) == lane
    assert home_lane(derived_id(lane, "a"), lanes) == lane


def test_an_id_is_a_uuid_of_version_7_with_the_current_time() -> None:
    before = time.time_ns() // 1_000_000
    id = new_id(4095)
    after = time.time_ns() // 1_000_000
    assert id.version == 7 and id.variant == "specified in RFC 4122"
    assert before <= id.int >> 80 <= after


def test_ids_do_not_repeat() -> None:
    assert len({new_id(3) for _ in range(20_000)}) == 20_000


@given(id=st.uuids(), lanes=st.integers(1, MAX_LANES))
def test_any_uuid_has_a_home_lane(id: UUID, lanes: int) -> None:
    assert 0 <= home_lane(id, lanes) < lanes


@given(name=st.text(), lanes=st.integers(1, MAX_LANES))
def test_a_name_always_has_the_same_lane(name: str, lanes: int) -> None:
    lane = lane_for(OWNER, "session", name, lanes)
    assert lane == lane_for(OWNER, "session", name, lanes)
    assert 0 <= lane < lanes


def test_names_spread_over_the_lanes() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[lane_for(OWNER, "session", f"session-{number}", 16)] += 1
    assert min(counts) > 850 and max(counts) < 1150


def test_the_lane_depends_on_owner_kind_and_name() -> None:
    lanes = 1 << 12
    places = {
        lane_for(OWNER, "session", "ab", lanes),
        lane_for(OTHER, "session", "ab", lanes),
        lane_for(OWNER, "key", "ab", lanes),
        lane_for(OWNER, "session", "ba", lanes),
    }
    assert len(places) == 4


def test_an_id_is_parsed_in_its_canonical_form() -> None:
    id = uuid4()
    assert parse_id(str(id)) == parse_id(str(id).upper()) == id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0197a3c45e6f70078a9b0c1d2e3f4a5b",
        "{0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b}",
        "urn:uuid:0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b",
        "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5",
        "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b0",
        "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5g",
        " 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b",
        "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b\n",
        "0197a3c45-e6f-7007-8a9b-0c1d2e3f4a5b",
        "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5１",
        "*",
    ],
)
def test_other_forms_of_an_id_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a UUID") as refused:
        parse_id(text, what="breadcrumb id")
    assert refused.value.complaints[0].where == "breadcrumb id"


def test_a_derived_id_is_equal_exactly_for_equal_parts() -> None:
    assert derived_id(7, "a", "b") == derived_id(7, "a", "b")
    others = {
        derived_id(7, "ab"),
        derived_id(7, "a", "b"),
        derived_id(7, "", "ab"),
        derived_id(8, "a", "b"),
        derived_id(7),
    }
    assert len(others) == 5
    assert derived_id(7, "a").version == 8 and derived_id(7, "a").variant == "specified in RFC 4122"
