from __future__ import annotations

from itertools import combinations
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from breadcrumbs.runtime.store.keys import Keys

OWNERS = [UUID(int=0), UUID(int=1), UUID(int=(1 << 128) - 1)]
KEYS = Keys("bc", 16)

names = st.text(st.sampled_from("ab:{}*\0é"), max_size=4)
owners = st.sampled_from(OWNERS)
lanes = st.integers(0, 15)
ids = st.binary(min_size=16, max_size=16)

spelled = st.one_of(
    st.tuples(st.just("body"), lanes, owners, ids),
    st.tuples(st.just("history"), lanes, owners, ids),
    st.tuples(st.just("signpost"), lanes, owners, ids),
    st.tuples(st.just("by_session"), lanes, owners, names, names),
    st.tuples(st.just("by_schema"), lanes, owners, names),
    st.tuples(st.just("by_tag"), lanes, owners, names),
    st.tuples(st.just("updated"), lanes, owners),
    st.tuples(st.just("schemas"), lanes, owners),
    st.tuples(st.just("events"), lanes),
    st.tuples(st.just("clock"), lanes),
    st.tuples(st.just("expiries"), lanes),
    st.tuples(st.just("idempotency"), lanes, owners, names, names),
    st.tuples(st.just("agents"), owners),
    st.tuples(st.just("selectors"), owners),
    st.tuples(st.just("tenants")),
    st.tuples(st.just("hygiene")),
)


def spell(parts: tuple[object, ...]) -> bytes:
    key: bytes = getattr(KEYS, str(parts[0]))(*parts[1:])
    return key


@given(st.lists(spelled, min_size=2, max_size=8, unique=True))
def test_no_two_names_share_a_key(parts: list[tuple[object, ...]]) -> None:
    for one, other in combinations(parts, 2):
        assert spell(one) != spell(other), (one, other)


@given(spelled)
def test_a_key_is_in_the_slot_of_its_lane_for_any_name(parts: tuple[object, ...]) -> None:
    lane = parts[1] if len(parts) > 1 and isinstance(parts[1], int) else 0
    assert key_slot(spell(parts)) == key_slot(KEYS.prefix(lane))


def test_a_session_of_the_longest_name_has_a_key() -> None:
    longest = "🙂" * 248
    assert KEYS.by_session(0, OWNERS[0], longest, "s").endswith(longest.encode() + b"s")


def test_each_lane_has_its_own_prefix() -> None:
    many = Keys("bc", 4096)
    prefixes = {many.prefix(lane) for lane in range(4096)}
    assert len(prefixes) == 4096
    # No prefix begins another one: the brace closes it.
    assert all(prefix.endswith(b"}") and prefix.count(b"}") == 1 for prefix in prefixes)


def test_namespaces_share_no_key() -> None:
    assert Keys("a", 1).meta != Keys("b", 1).meta
    assert Keys("a", 1).events(0) != Keys("b", 1).events(0)


def test_ids_and_owners_are_sixteen_bytes_not_text() -> None:
    owner, id = UUID("01234567-89ab-cdef-0123-456789abcdef"), bytes(range(16))
    assert KEYS.body(3, owner, id) == b"bc:{L03}b" + owner.bytes + id
