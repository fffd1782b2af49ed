"""Usage of models, with the budgets that apply."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NotRequired, get_args
from uuid import UUID

import orjson
from pydantic import Field, with_config
from starlette.datastructures import QueryParams
from typing_extensions import TypedDict

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, SESSION, USER, check_session_id
from breadcrumbs.runtime.errors import Forbidden, InvalidInput
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.listing import read_flag, read_number
from breadcrumbs.runtime.http.api.operations import Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_FOUND
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Id
from breadcrumbs.runtime.http.auth import check_user_id
from breadcrumbs.runtime.http.routes.session_views import load_facts, session_not_found
from breadcrumbs.runtime.store.budgets import Budget, Period, Scope, Spender, SpentAmounts
from breadcrumbs.runtime.store.spending import COST_UNITS, NOTHING, Amounts
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.usage import MAX_DAYS, UsageKey, read_days, read_parts, read_session
from breadcrumbs.runtime.workers.budgets import posted_budgets

MAX_ROWS: Final = 1_000
_DEFAULT_ROWS: Final = 100
_DEFAULT_DAYS: Final = 30

By = Literal["day", "agent", "model", "user"]
_closed = with_config(extra="forbid")

routes: Final = Routes("Usage")

Money = Annotated[float, Field(ge=0, description="In the currency of the price table.")]


@_closed
class AmountsView(TypedDict):
    """Sums of model calls."""

    calls: Count
    input_tokens: Count
    output_tokens: Count
    cached_tokens: Annotated[Count, Field(description="Part of the input tokens.")]
    reasoning_tokens: Annotated[Count, Field(description="Part of the output tokens.")]
    tokens: Annotated[Count, Field(description="Input and output tokens.")]
    cost: Money
    unpriced_calls: Annotated[
        Count, Field(description="Calls of models without a price. They are not in `cost`.")
    ]
    unreported_calls: Annotated[Count, Field(description="Calls without reported tokens.")]


@_closed
class UsageRow(AmountsView):
    """One row of the usage. `by` decides which of the first fields it has."""

    day: NotRequired[Annotated[str, Field(description="Day in UTC, such as 2026-11-18.")]]
    agent_id: NotRequired[str]
    model: NotRequired[str]
    user_id: NotRequired[str]


@_closed
class BudgetView(TypedDict):
    """A budget, with its usage if the request names its user or session."""

    scope: Scope
    period: Period
    tokens: NotRequired[Count]
    cost: NotRequired[Money]
    user_id: NotRequired[str]
    session_id: NotRequired[str]
    source: Literal["settings", "breadcrumb"]
    id: NotRequired[Annotated[Id, Field(description="The `usage.budget.v1` breadcrumb.")]]
    used_tokens: NotRequired[Count]
    used_cost: NotRequired[Money]
    used_up: NotRequired[bool]


@_closed
class BudgetProblem(TypedDict):
    """A posted budget that is not used, or that allows nothing."""

    id: Id
    problem: str


# The functional form, because `from` is a keyword.
UsageView = with_config(extra="forbid")(
    TypedDict(  # type: ignore[operator]
        "UsageView",
        {
            "from": NotRequired[str],
            "to": NotRequired[str],
            "by": NotRequired[By],
            "session_id": NotRequired[str],
            "user_id": NotRequired[str],
            "total": Annotated[AmountsView, Field(description="Sum of all rows of all pages.")],
            "rows": list[UsageRow],
            "next_cursor": NotRequired[str],
            "budgets": list[BudgetView],
            "budget_problems": NotRequired[list[BudgetProblem]],
        },
    )
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    first: date
    last: date
    by: By
    daily: bool
    agent: str | None
    model: str | None
    user: str | None
    session: str | None


def _name(name: str, text: str, prefix: str) -> Parameter:
    return Parameter(
        name, "query", text, {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(prefix)}
    )


_DATE: Final = {"type": "string", "format": "date"}


@routes.operation(
    id="getUsage",
    method="GET",
    path="/usage",
    summary="Get the usage of models",
    description=(
        "Tokens and costs of the model calls of the owner, per day, agent, model or user, and the budgets that apply. "
        "Days are those of UTC. The counts are exact: a call is recorded in the same step as the breadcrumb that "
        "follows it. With `session_id`, the sum of one session. A token that is narrowed to a user or a session sees "
        "only its own usage."
    ),
    parameters=(
        Parameter("from", "query", "First day. Default: 30 days.", _DATE, example="2026-11-01"),
        Parameter("to", "query", "Last day. Default: today.", _DATE),
        Parameter("by", "query", "Rows per `day`, `agent`, `model` or `user`.", {"enum": list(get_args(By))}),
        Parameter("daily", "query", "`true`: one row per day and agent, model or user.", {"type": "boolean"}),
        _name("agent_id", "Only this agent.", ""),
        _name("model", "Only this model.", ""),
        _name("user_id", "Only this user.", USER),
        _name("session_id", "The sum of this session.", SESSION),
        Parameter(
            "limit",
            "query",
            "Maximum number of rows.",
            {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
        ),
        Parameter("cursor", "query", "Continues after the previous page: its `next_cursor`."),
    ),
    successes=(SuccessReply(200, "The usage.", UsageView),),
    may_fail=(NOT_FOUND,),
)
async def get_usage(call: HttpCall) -> Reply:
    principal, given, store = call.principal, call.query(), call.services.store
    wanted = _read_wanted(principal, given, store)
    limit = read_number(given, "limit", _DEFAULT_ROWS)
    if not 1 <= limit <= MAX_ROWS:
        raise InvalidInput(f"limit must be from 1 to {MAX_ROWS}", where="limit")
    after = _read_cursor(given.get("cursor"))
    view: dict[str, Any] = {}
    if wanted.session is not None:
        if not policy.may_name_session(principal, wanted.session):
            raise session_not_found(wanted.session)
        await load_facts(call, wanted.session)  # 404 if the principal may not see it
        total = await read_session(store, principal.owner_id, wanted.session)
        view |= {"session_id": wanted.session, "total": _amounts(total), "rows": []}
    else:
        rows = await _rows(store, principal.owner_id, wanted)
        total = _sum(rows.values())
        page = [key for key in sorted(rows) if after is None or list(key) > after][: limit + 1]
        shown = [{**_labels(key), **_amounts(rows[key])} for key in page[:limit]]
        view |= {"from": wanted.first.isoformat(), "to": wanted.last.isoformat(), "by": wanted.by}
        view |= {"total": _amounts(total), "rows": shown}
        if len(page) > limit:
            view["next_cursor"] = _write_cursor(page[limit - 1])
        if wanted.user is not None:
            view["user_id"] = wanted.user
    return Reply.json(view | await _budgets(call, wanted))


_Key = tuple[str, str, str, str]
"""Day, agent, model and user. Empty: the row does not have it."""


async def _rows(store: Store, owner: UUID, wanted: _Wanted) -> dict[_Key, Amounts]:
    days = [wanted.first + timedelta(number) for number in range((wanted.last - wanted.first).days + 1)]
    if wanted.by == "day" and wanted.agent is None and wanted.model is None:
        found = await read_days(store, owner, days, wanted.user)
        return {(day.isoformat(), "", "", ""): amounts for day, amounts in found.items()}
    rows: dict[_Key, Amounts] = {}
    for part, amounts in (await read_parts(store, owner, wanted.first, wanted.last)).items():
        if (key := _key_of(part, wanted)) is not None:
            rows[key] = rows.get(key, NOTHING).plus(amounts)
    return rows


def _key_of(part: UsageKey, wanted: _Wanted) -> _Key | None:
    """Return the row of a counter, or None if it does not match the filters."""
    of_user = wanted.by == "user"
    if (part.user is not None) != of_user or (wanted.user is not None and part.user != wanted.user):
        return None
    if wanted.agent not in (None, part.agent) or wanted.model not in (None, part.model):
        return None
    day = part.day.isoformat() if wanted.daily or wanted.by == "day" else ""
    agent = part.agent or "" if wanted.by == "agent" else ""
    model = part.model or "" if wanted.by == "model" else ""
    return day, agent, model, part.user or ""


def _labels(key: _Key) -> dict[str, str]:
    names = ("day", "agent_id", "model", "user_id")
    return {name: value for name, value in zip(names, key, strict=True) if value}


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {
        "calls": amounts.calls,
        "input_tokens": amounts.input_tokens,
        "output_tokens": amounts.output_tokens,
        "cached_tokens": amounts.cached_tokens,
        "reasoning_tokens": amounts.reasoning_tokens,
        "tokens": amounts.tokens,
        "cost": amounts.cost / COST_UNITS,
        "unpriced_calls": amounts.unpriced,
        "unreported_calls": amounts.unreported,
    }


def _sum(all_amounts: Iterable[Amounts]) -> Amounts:
    total = NOTHING
    for amounts in all_amounts:
        total = total.plus(amounts)
    return total


# Budgets


async def _budgets(call: HttpCall, wanted: _Wanted) -> dict[str, Any]:
    principal, store = call.principal, call.services.store
    owner, narrowed = principal.owner_id, principal.is_narrowed
    posted = await posted_budgets(store, owner)
    sources: list[tuple[Budget, dict[str, str]]] = [
        (budget, {"source": "settings"})
        for budget in call.services.settings.budgets
        if budget.applies_to_owner(owner)
    ]
    sources += [
        (one.definition, {"source": "breadcrumb", "id": str(one.crumb.id)})
        for one in posted
        if one.in_force and one.definition is not None
    ]
    spender, spent = Spender(owner, wanted.session, wanted.user), SpentAmounts(store)
    views = []
    for budget, source in sources:
        applies = budget.applies_to(wanted.session, wanted.user)
        if narrowed and (not applies or budget.scope == "owner"):
            continue
        view: dict[str, Any] = {**budget.model_dump(exclude_none=True, exclude={"owner_id"}), **source}
        if applies:
            ((_, used),) = await spent.of([budget], spender)
            view |= {"used_tokens": used.tokens, "used_cost": used.cost / COST_UNITS}
            view["used_up"] = budget.is_used_up(used)
        views.append(view)
    problems = [
        {"id": str(one.crumb.id), "problem": one.problem or "the budget is zero: no turn starts"}
        for one in posted
        if one.problem or (one.definition is not None and one.definition.is_zero)
    ]
    return {"budgets": views, **({"budget_problems": problems} if problems and not narrowed else {})}


# The query


def _read_wanted(principal: Principal, given: QueryParams, store: Store) -> _Wanted:
    user = check_user_id(given["user_id"]) if "user_id" in given else None
    session = check_session_id(given["session_id"]) if "session_id" in given else None
    if principal.user_id is not None:
        if user not in (None, principal.user_id):
            raise Forbidden("this token sees only the usage of its own user")
        user = principal.user_id
    if principal.session_id is not None:
        session = principal.session_id if session is None else session
    by = given.get("by", "day")
    if by not in get_args(By):
        raise InvalidInput(f"by must be one of {', '.join(get_args(By))}", where="by")
    agent, model = _read_name(given, "agent_id"), _read_name(given, "model")
    if (user is not None or by == "user") and (by in ("agent", "model") or agent or model):
        raise InvalidInput(
            "usage is counted per user, and per agent and model, but not for both together: leave one out",
            where="by",
        )
    today = datetime.fromtimestamp(store.now() / 1_000_000, UTC).date()
    last = _read_date(given, "to", today)
    first = _read_date(given, "from", last - timedelta(_DEFAULT_DAYS - 1))
    if not 0 <= (last - first).days < MAX_DAYS:
        raise InvalidInput(f"from must not be after to, and at most {MAX_DAYS} days before it", where="from")
    return _Wanted(first, last, by, read_flag(given, "daily"), agent, model, user, session)  # type: ignore[arg-type]


def _read_name(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not 1 <= len(value) <= MAX_TAG_LENGTH:
        raise InvalidInput(f"{name} must have 1 to {MAX_TAG_LENGTH} characters", where=name)
    return value


def _read_date(given: Mapping[str, str], name: str, default: date) -> date:
    if name not in given:
        return default
    try:
        found = date.fromisoformat(given[name])
    except ValueError:
        found = date.min
    if not 2000 <= found.year <= 2200:
        raise InvalidInput(f"{name} must be a day such as 2026-11-18", where=name)
    return found


def _write_cursor(key: _Key) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> list[str] | None:
    if cursor is None:
        return None
    try:
        key = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        key = None
    if not isinstance(key, list) or len(key) != 4 or not all(isinstance(part, str) for part in key):
        raise InvalidInput(
            "the cursor is not one of this operation: leave it out to begin again", where="cursor"
        )
    return key
