"""Records the usage of models: tokens and costs per owner, day, agent, model, user and session.

The commit that follows a model call adds its usage in the same script (`spent.lua`), so a repeated commit is counted
once. The counters of an owner are in each lane, one hash per month, and readers add up the lanes. The names of the
fields begin with the two digits of the day (UTC):

    07                      all calls of the day
    07a<agent>\\0<model>     calls of one agent with one model
    07u<user>               calls for one user

A session has its sum in its facts (`n`, field `usage`). It is deleted with the session. The other counters stay,
because the money was spent. Values are integers: see `Amounts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self, TypeAlias
from uuid import UUID

from breadcrumbs.runtime.store.keys import Keys

COST_UNITS: Final = 1_000_000_000
"""Costs are stored in billionths of the currency of the price table."""
MAX_FIELDS: Final = 100_000
"""Maximum number of counters of an owner in one lane and month. More agents and users are counted as `(other)`."""
OTHER: Final = "(other)"
"""Agent, model or user of the calls above the maximum, and of erased users."""

SEPARATOR: Final = b"\0"
"""Stands between agent and model in the name of a field."""

_Call: TypeAlias = tuple[list[bytes], list[bytes | str | int]]


class Amounts(NamedTuple):
    """Sums of model calls."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the provider read from its cache."""
    reasoning_tokens: int = 0
    """The part of the output that the model used for its reasoning."""
    cost: int = 0
    """In billionths of the currency."""
    unpriced: int = 0
    """Number of calls of models without a known price."""
    unreported: int = 0
    """Number of calls whose tokens the model server did not report."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(mine + its for mine, its in zip(self, other, strict=True)))

    def encode(self) -> bytes:
        return b" ".join(b"%d" % value for value in self)

    @classmethod
    def decode(cls, raw: bytes | None) -> Self:
        """Return stored amounts. A store of another version can have fewer or more values."""
        values = [] if raw is None else [int(value) for value in raw.split()]
        return cls(*values[: len(cls._fields)])


NOTHING: Final = Amounts()


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The usage of one model call that no commit has recorded yet."""

    agent: str
    model: str
    user: str | None
    amounts: Amounts
    started: int
    """Time when the call began, in microseconds."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Usage that a commit records, for `Fence.spent`."""

    owner: UUID
    session: str | None
    calls: tuple[ModelUsage, ...]
    at: int
    """Time in microseconds. It decides the day."""


def spent_call(keys: Keys, lane: int, spending: Spending, call: _Call) -> _Call:
    """Return a call of the same commit, wrapped in spent.lua."""
    own_keys, args = call
    moment = datetime.fromtimestamp(spending.at / 1_000_000, UTC)
    month, day = moment.strftime("%Y%m").encode(), moment.strftime("%d").encode()
    counters: dict[tuple[bytes, bytes], Amounts] = {}
    total = NOTHING
    for usage in spending.calls:
        total = total.plus(usage.amounts)
        for field in _fields(day, usage):
            counters[field] = counters.get(field, NOTHING).plus(usage.amounts)
    owner, session = spending.owner, spending.session
    session_key = own_keys[0] if session is None else keys.session(lane, owner, session)
    tail: list[bytes | str | int] = []
    for (name, rest), amounts in counters.items():
        tail += [name, rest, amounts.encode()]
    of_session = b"" if session is None else total.encode()
    return [*own_keys, keys.usage_months(lane, owner), keys.usage_of(lane, owner, month), session_key], [
        *args,
        *tail,
        of_session,
        month,
        MAX_FIELDS,
        len(counters),
    ]


def _fields(day: bytes, usage: ModelUsage) -> list[tuple[bytes, bytes]]:
    """Return the fields that count a call, each with the field for the rest."""
    other = OTHER.encode()
    agent = usage.agent.encode() + SEPARATOR + usage.model.replace("\0", "").encode()
    fields = [(day, day), (day + b"a" + agent, day + b"a" + other + SEPARATOR + other)]
    if usage.user is not None:
        fields.append((day + b"u" + usage.user.encode(), day + b"u" + other))
    return fields
