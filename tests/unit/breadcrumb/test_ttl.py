from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ttl import NEVER, Expiry, TtlConfig, TtlType, parse_duration, plan_expiry
from breadcrumbs.runtime.errors import InvalidInput

MOMENT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
AT = times.from_datetime(MOMENT)
HOUR = 3_600_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        (0.25, 0.25),
        ("90s", 90),
        ("1.5m", 90),
        (" 15m ", 900),
        ("12h", 43_200),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("PT1H30M", 5_400),
        ("P1D", 86_400),
        ("P1DT0.5S", 86_400.5),
        ("P2W", 1_209_600),
        (timedelta(hours=1), 3_600),
        ("36500d", 36500 * 86_400),
    ],
)
def test_durations_are_parsed_in_all_documented_forms(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", "s", "m5", "5", "5x", "5 m", "-5m", "+5m", "P", "PT", "P1Y", "P1M", "pt1h", "1h30m", "∞", "nan", None, True,
        [], {}, 0, -1, "0s", "PT0S", "36501d", 10**400, float("nan"), float("inf"), "9" * 400 + "s", timedelta(-1),
    ],
)  # fmt: skip
def test_an_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=36500)))
def test_a_stored_duration_is_read_back_unchanged(duration: timedelta) -> None:
    config = TtlConfig(duration=duration)
    again = TtlConfig.model_validate(config.model_dump(mode="json", exclude_unset=True))
    assert again.duration is not None
    assert abs(again.duration - duration) <= timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "stored"), [("15m", "PT15M"), ("7d", "P7D"), ("365d", "P365DT0S"), ("P400DT1H", "P400DT1H")]
)
def test_a_duration_is_stored_without_years(text: str, stored: str) -> None:
    assert TtlConfig(duration=text).model_dump(mode="json", exclude_unset=True) == {"duration": stored}


@pytest.mark.parametrize(
    "config",
    [
        {"max_reads": 0},
        {"max_reads": -1},
        {"max_reads": 1.5},
        {"max_reads": 10**10},
        {"duration_seconds": 0},
        {"duration_seconds": float("inf")},
        {"hybrid_mode": "some"},
        {"unknown": 1},
        {"duration": "soon"},
    ],
)
def test_an_invalid_ttl_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TtlConfig.model_validate(config)


@pytest.mark.parametrize(
    ("kind", "ttl", "config", "expected"),
    [
        (None, None, None, NEVER),
        (None, None, {}, NEVER),
        ("never", None, None, NEVER),
        ("never", MOMENT, {"duration": "1h", "max_reads": 3}, NEVER),
        (None, MOMENT, None, Expiry(at=AT)),
        ("datetime", MOMENT, {"max_reads": 3}, Expiry(at=AT)),
        (None, MOMENT, {"duration": "1h"}, Expiry(at=AT)),
        (None, None, {"duration": "1h"}, Expiry(after=HOUR)),
        (None, None, {"duration_seconds": 3600}, Expiry(after=HOUR)),
        ("duration", None, {"duration": "1h", "duration_seconds": 5}, Expiry(after=HOUR)),
        (None, None, {"max_reads": 3}, Expiry(max_reads=3)),
        ("usage", MOMENT, {"max_reads": 3}, Expiry(max_reads=3)),
        ("hybrid", MOMENT, {"max_reads": 3}, Expiry(at=AT, max_reads=3)),
        ("hybrid", None, {"max_reads": 3, "duration": "1h"}, Expiry(after=HOUR, max_reads=3)),
        ("hybrid", MOMENT, {"max_reads": 3, "duration": "1h"}, Expiry(at=AT, max_reads=3)),
        (
            "hybrid",
            MOMENT,
            {"max_reads": 3, "hybrid_mode": "all"},
            Expiry(at=AT, max_reads=3, needs_all=True),
        ),
    ],
)
def test_a_ttl_becomes_the_expiry_that_the_store_enforces(
    kind: TtlType | None, ttl: datetime | None, config: dict[str, Any] | None, expected: Expiry
) -> None:
    assert plan_expiry(kind, ttl, None if config is None else TtlConfig.model_validate(config)) == expected


@pytest.mark.parametrize(
    ("kind", "ttl", "config", "where"),
    [
        ("datetime", None, {"duration": "1h"}, "ttl"),
        ("duration", MOMENT, {}, "ttl_config.duration"),
        ("usage", MOMENT, {"duration": "1h"}, "ttl_config.max_reads"),
        ("hybrid", MOMENT, {}, "ttl_config.max_reads"),
        ("hybrid", None, {"max_reads": 1}, "ttl"),
        (None, datetime(1969, 12, 31, tzinfo=UTC), None, "ttl"),
        (None, datetime(1, 1, 1, tzinfo=UTC), None, "ttl"),
        (None, datetime(9999, 1, 1, tzinfo=UTC), None, "ttl"),
        (None, datetime(2256, 1, 1, tzinfo=UTC), None, "ttl"),
    ],
)
def test_missing_and_out_of_range_values_are_refused_with_their_location(
    kind: TtlType | None, ttl: datetime | None, config: dict[str, Any] | None, where: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan_expiry(kind, ttl, None if config is None else TtlConfig.model_validate(config))
    assert refused.value.complaints[0].where == where


@given(st.datetimes(datetime(1970, 1, 1), datetime(2255, 1, 1)))
def test_times_survive_as_microseconds(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)
    microseconds = times.from_datetime(aware)
    assert datetime.fromisoformat(times.to_text(microseconds)) == aware
    assert int(float(microseconds)) == microseconds, "scores are doubles"
