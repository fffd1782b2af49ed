"""The built-in tools. None of them uses the network or the file system."""

from __future__ import annotations

import difflib
import json
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from random import SystemRandom
from typing import Annotated, Any, Final

from pydantic import Field

from breadcrumbs.agents.tools.base import Tool, Toolbox, ToolContext, tool
from breadcrumbs.agents.tools.calculator import MAX_LENGTH, evaluate
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.retrieval.model_view import find_hints, model_content, withheld_reason
from breadcrumbs.runtime.retrieval.schema_hints import load_all_definitions
from breadcrumbs.runtime.schema_names import TEXT_KEYS, TOOL_REQUEST, TOOL_RESPONSE

# --- calculator ----------------------------------------------------------------------------------------


@tool(timeout=5.0, idempotent=True)
def calculator(
    expression: Annotated[
        str,
        Field(
            description="For example (3 + 4) * sqrt(2). Supported: + - * / // % **, parentheses, pi, e and "
            "functions such as round, min, max, sqrt, log, sin, factorial",
            max_length=MAX_LENGTH,
        ),
    ],
) -> dict[str, Any]:
    """Compute an arithmetic expression. Integers are exact, other numbers have 15 significant digits."""
    return {"expression": expression, "result": evaluate(expression)}


# --- random --------------------------------------------------------------------------------------------

_random = SystemRandom()

WholeNumber = Annotated[int, Field(ge=-(2**53), le=2**53)]


@tool(name="random", timeout=5.0, idempotent=True)
def random_(
    min: Annotated[WholeNumber, Field(description="The smallest possible number")] = 0,
    max: Annotated[WholeNumber, Field(description="The largest possible number")] = 100,
    choices: Annotated[
        list[str | int | float] | None,
        Field(description="Return one of these instead of a number", min_length=1, max_length=1000),
    ] = None,
) -> dict[str, Any]:
    """Return a random integer from min to max (both included), or one of a list of choices."""
    if choices is not None:
        return {"choice": _random.choice(choices)}
    if min > max:
        raise InvalidInput(f"min ({min}) is greater than max ({max}): swap them")
    return {"number": _random.randint(min, max)}


# --- clock ---------------------------------------------------------------------------------------------


@tool(timeout=5.0, idempotent=True)
def clock(
    zone: Annotated[
        str, Field(description="IANA name of a time zone, such as Europe/Berlin", max_length=100)
    ] = "UTC",
) -> dict[str, Any]:
    """Return the current date and time, in UTC and in a time zone."""
    name, where = _find_zone(zone)
    now = datetime.now(UTC)
    local = now.astimezone(where)
    return {
        "utc": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "zone": name,
        "local": local.isoformat(timespec="seconds"),
        "weekday": local.strftime("%A"),
        "daylight_saving": bool(local.dst() or timedelta()),
    }


def _find_zone(zone: str) -> tuple[str, tzinfo]:
    """Return the IANA name and the time zone. Upper and lower case and spaces do not matter."""
    wanted = zone.strip().replace(" ", "_").casefold()
    if wanted in ("utc", "z"):
        return "UTC", UTC
    # Accept only names from the list: zoneinfo uses the name as a part of a file path.
    names = _zone_names()
    if wanted in names:
        return names[wanted], zoneinfo.ZoneInfo(names[wanted])
    if not names:
        raise InvalidInput("this machine has no time zone data: use UTC")
    cities = {name.rpartition("/")[2]: full for name, full in names.items()}
    close = [names[name] for name in difflib.get_close_matches(wanted, names, n=3, cutoff=0.7)]
    close += [cities[city] for city in difflib.get_close_matches(wanted, cities, n=3, cutoff=0.8)]
    advice = " or ".join(dict.fromkeys(close)) or "a name such as Europe/Berlin, America/New_York or UTC"
    raise InvalidInput(f"time zone {zone[:60]!r} not found: use {advice}")


@lru_cache(maxsize=1)
def _zone_names() -> dict[str, str]:
    return {name.casefold(): name for name in sorted(zoneinfo.available_timezones())}


# --- breadcrumb_search ---------------------------------------------------------------------------------

MAX_FOUND: Final = 20
EXCERPT_CHARACTERS: Final = 300


@tool(timeout=10.0, idempotent=True)
async def breadcrumb_search(
    context: ToolContext,
    text: Annotated[
        str, Field(description="Words that must all occur. Omit to list the newest", max_length=500)
    ] = "",
    schema_name: Annotated[
        str | None,
        Field(description="Only this schema, such as user.message.v1 or agent.response.v1", max_length=200),
    ] = None,
    tags: Annotated[
        list[Annotated[str, Field(max_length=256)]],
        Field(description="Only breadcrumbs with all of these tags", max_length=16),
    ] = [],  # noqa: B006 (pydantic copies it)
    limit: Annotated[int, Field(description="Maximum number of results", ge=1, le=MAX_FOUND)] = 10,
) -> dict[str, Any]:
    """Search earlier messages, answers and tool results of this conversation, the newest first."""
    if context.session_id is None:
        raise InvalidInput("the search needs a session, and this turn has none")
    if context.store is None:
        raise InvalidInput("the search needs a store, and this turn has none")
    if any(tag.startswith(SESSION) for tag in tags):
        raise InvalidInput("only this conversation can be searched: remove the session: tags")
    words = text.casefold().split()
    definitions = await load_all_definitions(context.store, context.owner_id)

    def wanted(crumb: Breadcrumb) -> bool:
        if not _may_be_shown(crumb):
            return False
        searched = _searchable_text(crumb, definitions).casefold()
        return all(word in searched for word in words)

    page = await context.store.list(
        context.owner_id,
        Query(
            session_id=context.session_id,
            schema_name=schema_name,
            all_tags=tuple(tags),
            limit=limit,
            keep=wanted,
        ),
    )
    return {
        "found": [
            {
                "id": str(crumb.id),
                "schema_name": crumb.schema_name or "",
                "title": crumb.title,
                "excerpt": _excerpt(_searchable_text(crumb, definitions, with_title=False), words),
                "created_at": crumb.created_at,
            }
            for crumb in page.items
        ],
        "more": page.next_cursor is not None,
    }


def _may_be_shown(crumb: Breadcrumb) -> bool:
    # Tool requests contain the search words, and search results contain earlier results: leave out both.
    is_request = crumb.schema_name == TOOL_REQUEST
    is_result = crumb.schema_name == TOOL_RESPONSE and crumb.context.get("tool") == breadcrumb_search.name
    return withheld_reason(crumb) is None and not (is_request or is_result)


def _searchable_text(
    crumb: Breadcrumb, definitions: Mapping[str, Breadcrumb], *, with_title: bool = True
) -> str:
    """Return the part of a breadcrumb that a model may see, as text. Only this part is searched."""
    hints, _ = find_hints(crumb, definitions)
    view = model_content(crumb, hints)
    parts = [crumb.title] if with_title else []
    parts += [str(crumb.document.get("description", ""))]
    texts = [view[name] for name in TEXT_KEYS if isinstance(view.get(name), str)]
    rest = {
        name: value
        for name, value in view.items()
        if name != "request_id" and not (isinstance(value, str) and value in texts)
    }
    parts += dict.fromkeys(texts)  # answers have the same text in message and content
    if rest:
        parts.append(json.dumps(rest, ensure_ascii=False, separators=(", ", ": "), default=str))
    return "\n".join(part for part in parts if part)


def _excerpt(text: str, words: list[str]) -> str:
    """Return the text around the first search word, on one line."""
    line = " ".join(text.split())
    if len(line) <= EXCERPT_CHARACTERS:
        return line
    positions = [line.casefold().find(word) for word in words]
    first = min((position for position in positions if position >= 0), default=0)
    start = max(0, min(first - EXCERPT_CHARACTERS // 3, len(line) - EXCERPT_CHARACTERS))
    end = start + EXCERPT_CHARACTERS
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


SHIPPED: Final[tuple[Tool, ...]] = (breadcrumb_search, calculator, clock, random_)


def shipped_tools() -> Toolbox:
    """Return a new toolbox with the built-in tools. The caller can add to it."""
    return Toolbox(SHIPPED)
