"""Compares sliding and stepped windows: tokens, cached tokens and cost of the prompts of a long conversation.

Each turn is assembled as the context builder does it, and rendered as the agent sends it. A provider is simulated that
caches the beginning of the previous prompt in blocks. No model is called and no server is needed. Prices, the size of
the messages and the behaviour of the cache are options. Read the ratios: other models count tokens differently.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Dialect, ModelRequest
from breadcrumbs.agents.models.chat_format import request_json
from breadcrumbs.agents.prompt import build_prompt
from breadcrumbs.agents.tools.shipped import SHIPPED
from breadcrumbs.context_builder.assembly import assemble, select
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.prefix_reuse import shared_prefix
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.sources import SourceItem

CONFIG = Path(__file__).parent.parent / "config" / "context-builder-config.json"
OWNER = UUID(int=1)
SLIDING: dict[str, Any] = {
    "limits": [{"key": "conversation", "limit": 21}],
    "formatting": {"max_tokens": 4000},
}
OTHERS: dict[str, Any] = {
    "key": "others",
    "schema_name": "user.message.v1",
    "fetch": {"method": "recent", "limit": 3, "conversation_scope": "all"},
}
WORDS = (
    "the",
    "of",
    "and",
    "that",
    "was",
    "for",
    "with",
    "you",
    "have",
    "this",
    "not",
    "from",
    "they",
    "say",
)


class Totals(NamedTuple):
    """Sums over the measured turns."""

    tokens: int
    cached: int
    bytes: int
    shared_bytes: int


def main() -> None:
    options = _options()
    base: dict[str, Any] = orjson.loads(CONFIG.read_bytes())
    rows = {}
    for name, more in (("", []), (" + other sessions", [OTHERS])):
        sources = {"sources": [*base["sources"], *more]}
        for kind, changes in (("sliding 21", SLIDING), ("shipped", {})):
            (config,) = parse_configs(orjson.dumps(base | sources | changes))
            rows[kind + name] = _measure(config, options)
    _report(rows, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, default=80, help="length of the conversation (default 80)")
    parser.add_argument("--since", type=int, default=26, help="first measured turn (default 26)")
    parser.add_argument("--words", type=int, default=40, help="average words of a message (default 40)")
    parser.add_argument(
        "--price", type=float, default=2.0, help="price of a million input tokens (default 2.00)"
    )
    parser.add_argument(
        "--cached-price", type=float, default=0.5, help="price of a million cached tokens (default 0.50)"
    )
    parser.add_argument(
        "--minimum", type=int, default=1024, help="shortest cached prefix (default 1024 tokens)"
    )
    parser.add_argument("--block", type=int, default=128, help="tokens per block of the cache (default 128)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _measure(config: ContextConfig, options: argparse.Namespace) -> Totals:
    definition = files("breadcrumbs.agents") / "definitions" / "default-chat-assistant.json"
    agent = AgentDefinition.model_validate_json(definition.read_bytes())
    tools = tuple(tool.spec for tool in SHIPPED)
    count = token_counter().count
    before, totals = b"", Totals(0, 0, 0, 0)
    for turn, prompt in enumerate(_prompts(config, options), 1):
        messages = build_prompt(agent.system_prompt, prompt, agent.agent_id)
        body = request_json(Dialect("model", stream=True), ModelRequest(messages, tools))
        shared = shared_prefix([before], [body])
        before = body
        if turn >= options.since:
            cached = count(body[:shared].decode("utf-8", "ignore")) // options.block * options.block
            cached = cached if cached >= options.minimum else 0
            now = Totals(count(body.decode()), cached, len(body), shared)
            totals = Totals(*(sum(pair) for pair in zip(totals, now, strict=True)))
    return totals


def _prompts(config: ContextConfig, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yield the parts of the context of each turn."""
    talk: list[Breadcrumb] = []
    others: list[Breadcrumb] = []
    words = random.Random(7)
    for turn in range(options.turns):
        others.append(_crumb(10 * turn + 1, "user.message.v1", f"other {turn}", _text(words, options.words)))
        question = _crumb(10 * turn + 2, "user.message.v1", "s", _text(words, options.words))
        talk.append(question)
        yield _assemble(config, question, talk, others)
        reply = {"trigger_id": question.id_text, "creator": {"agent_id": "default-chat-assistant"}}
        answer = _text(words, options.words)
        talk.append(_crumb(10 * turn + 3, "agent.response.v1", "s", answer, **reply))


def _assemble(
    config: ContextConfig, trigger: Breadcrumb, talk: list[Breadcrumb], others: list[Breadcrumb]
) -> list[dict[str, Any]]:
    items: list[SourceItem] = []
    counts: dict[int, int] = {}
    for number, source in enumerate(config.full_sources):
        everything = talk if source.fetch.scope == "current" else [*others, *talk]
        found = [crumb for crumb in everything if crumb.schema_name == source.schema_name]
        counts[number] = len(found)
        newest = sorted(found, key=lambda crumb: -crumb.created)[: source.fetch.max_items]
        items += [SourceItem(source.key, rank, crumb, number) for rank, crumb in enumerate(newest)]
    selection = select(config, trigger, items, config.full_sources, counts)
    return assemble(config, trigger, items, counter=token_counter(), selection=selection).parts()


def _crumb(number: int, schema: str, session: str, text: str, **more: Any) -> Breadcrumb:
    document = {
        "schema_name": schema,
        "title": "",
        "tags": ["user:message", f"session:{session}"],
        "context": {"message": text, "session_id": session} | more,
    }
    return Breadcrumb(UUID(int=number), OWNER, 1, number, number, 0, 0, None, None, orjson.dumps(document))


def _text(words: random.Random, average: int) -> str:
    return " ".join(words.choices(WORDS, k=max(1, round(words.uniform(0.5, 1.5) * average))))


def _report(rows: dict[str, Totals], options: argparse.Namespace) -> None:
    turns = options.turns - options.since + 1
    table = {}
    for name, totals in rows.items():
        cost = (totals.tokens - totals.cached) * options.price + totals.cached * options.cached_price
        table[name] = {
            "tokens_per_turn": round(totals.tokens / turns),
            "cached_per_turn": round(totals.cached / turns),
            "repeated_bytes_percent": round(100 * totals.shared_bytes / totals.bytes, 1),
            "cost_per_1000_turns": round(cost / turns / 1_000, 3),
        }
    if options.json:
        print(json.dumps(table, indent=2))
        return
    print(f"turns {options.since} to {options.turns}, {options.words} words per message")
    print(f"{options.price:.2f} per million tokens, {options.cached_price:.2f} if cached\n")
    print(f"{'window':<28}{'tokens':>9}{'cached':>9}{'repeated':>10}{'cost/1000':>11}{'ratio':>8}")
    for name, row in table.items():
        sliding = table["sliding 21" + (" + other sessions" if "other" in name else "")]
        ratio = row["cost_per_1000_turns"] / sliding["cost_per_1000_turns"]
        print(
            f"{name:<28}{row['tokens_per_turn']:>9,}{row['cached_per_turn']:>9,}"
            f"{row['repeated_bytes_percent']:>8} %{row['cost_per_1000_turns']:>11.2f}{ratio:>8.2f}"
        )


if __name__ == "__main__":
    main()
