"""Continues the conversation of the previous context.

Between two steps of a window, a context has the items of the previous context, and then the new messages and answers.
So only the new breadcrumbs are selected, counted and rendered. The result has the same bytes as the result of
`assembly.py`. If a case is not certainly of this kind, the context must be assembled completely. This module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from breadcrumbs.context_builder.assembly import (
    POSITION,
    Assembled,
    describe_sources,
    new_checksum,
    plain_item,
    render_item,
)
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.key_limits import questions_of
from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.cached import Attached
from breadcrumbs.runtime.retrieval.sources import Fetched, SourceItem


class Conversation(NamedTuple):
    """A context that contains only a conversation, up to its trigger, and leaves nothing out."""

    config: ContextConfig
    trigger: Breadcrumb
    """The last and newest item."""
    results: Sequence[Sequence[Breadcrumb]]
    """Breadcrumbs that each source found, the newest first."""
    kept: Sequence[int]
    """Number of items of each source. They are the newest of its results."""
    parts: list[dict[str, Any]]
    explanation: dict[str, Any]


CONVERSATION: Attached[Conversation] = Attached("context_builder.conversation")
"""The conversation of a stored context, if this process has built it."""


def conversation_of(
    config: ContextConfig,
    fetched: Fetched,
    assembled: Assembled,
    parts: list[dict[str, Any]],
    explanation: dict[str, Any],
) -> Conversation | None:
    """Return the conversation of an assembled context, or None if it cannot be continued."""
    if len(parts) != 1 or assembled.left_out or assembled.notes or assembled.definitions:
        return None
    if fetched.sources is not config.first_sources:
        return None  # it was read further
    items = assembled.items
    trigger, results = items[-1].crumb, list[list[Breadcrumb]]()
    for number, crumbs in enumerate(fetched.results):
        if crumbs is None or (crumbs and number not in config.conversation_sources):
            return None
        if crumbs and crumbs[0].position > trigger.position:
            return None  # it waits for its turn, or is a late answer
        results.append(crumbs)
    keys, ids = {item.source for item in items}, {item.crumb.id_text for item in items}
    if items[-1].number is None or len(keys) > 1:
        return None
    if any(_lacks_question(item.crumb, ids) for item in items):
        return None
    numbers = [item.number for item in items]
    kept = [numbers.count(number) for number in range(len(results))]
    return Conversation(config, trigger, results, kept, parts, explanation)


def continue_conversation(
    last: Conversation, config: ContextConfig, trigger: Breadcrumb, fetched: Fetched, counter: TokenCounter
) -> Conversation | None:
    """Return the next context of a conversation, or None if it must be assembled.

    No schema of the sources may have a definition with hints.
    """
    results = [crumbs for crumbs in fetched.results if crumbs is not None]
    if config is not last.config or trigger.users != last.trigger.users:
        return None
    if fetched.sources is not config.first_sources or fetched.notes or len(results) != len(last.results):
        return None
    if fetched.counts and fetched.counted_until != trigger.created:
        return None
    new = [_find_new(old, crumbs) for old, crumbs in zip(last.results, results, strict=True)]
    added = _list_added(config, new)
    if added is None or not _follows(last, trigger, added):
        return None
    kept = [old + len(crumbs or ()) for old, crumbs in zip(last.kept, new, strict=True)]
    if not _are_all_in_windows(config, fetched, results, kept):
        return None
    items = [plain_item(entry, "conversation", counter) for entry in added]
    tokens = last.explanation["tokens"] + sum([item.tokens for item in items])
    if tokens > config.formatting.max_tokens:
        return None
    shown = [render_item(item.crumb, item.place, item.content, trigger.users) for item in items]
    (part,) = last.parts
    parts = [{**part, "items": [*part["items"], *shown]}]
    shifts = [len(crumbs or ()) for crumbs in new]
    references = [
        {**reference, "rank": reference["rank"] + shifts[reference["number"]]}
        for reference in last.explanation["items"]
    ]
    explanation = {
        **last.explanation,
        "tokens": tokens,
        "checksum": new_checksum(parts),
        "sources": describe_sources(config, dict(enumerate(kept)), fetched.counts),
        "items": [*references, *[item.reference() for item in items]],
    }
    return Conversation(config, trigger, results, kept, parts, explanation)


def _find_new(old: Sequence[Breadcrumb], crumbs: Sequence[Breadcrumb]) -> Sequence[Breadcrumb] | None:
    """Return the results of a source that are newer than its old results. None: the old ones have changed."""
    if not old:
        return crumbs
    newest = next((number for number, crumb in enumerate(crumbs) if crumb is old[0]), None)
    if newest is None or crumbs[newest:] != old[: len(crumbs) - newest]:
        return None
    return crumbs[:newest]


def _list_added(config: ContextConfig, new: Sequence[Sequence[Breadcrumb] | None]) -> list[SourceItem] | None:
    """Return the new breadcrumbs of all sources, the oldest first. None: one of them needs more than to be added."""
    added: list[SourceItem] = []
    for number, crumbs in enumerate(new):
        if crumbs is None or (crumbs and number not in config.conversation_sources):
            return None
        added += [
            SourceItem(config.sources[number].key, rank, crumb, number) for rank, crumb in enumerate(crumbs)
        ]
    added.sort(key=POSITION)
    return added


def _follows(last: Conversation, trigger: Breadcrumb, added: Sequence[SourceItem]) -> bool:
    """Return whether new breadcrumbs continue a conversation, and the trigger is the newest of them."""
    if not added or added[-1].crumb is not trigger or added[0].crumb.position <= last.trigger.position:
        return False
    key = last.explanation["items"][-1]["source"]
    ids = {last.trigger.id_text, *[entry.crumb.id_text for entry in added]}
    return all(
        entry.source == key
        and entry.crumb.session_id == last.trigger.session_id
        and not entry.crumb.is_withheld
        and not entry.crumb.own_hints
        and not _lacks_question(entry.crumb, ids)
        for entry in added
    )


def _lacks_question(crumb: Breadcrumb, ids: set[str]) -> bool:
    """Return whether a breadcrumb is an answer to a message that is not among these."""
    questions = questions_of(crumb)
    return bool(questions) and ids.isdisjoint(questions)


def _are_all_in_windows(
    config: ContextConfig, fetched: Fetched, results: Sequence[Sequence[Breadcrumb]], kept: Sequence[int]
) -> bool:
    """Return whether windows and limits keep exactly the `kept` newest results of each source, with the first read."""
    for window in config.stepped_windows:
        found = sum([len(results[number]) for number in window.numbers])
        count = sum([fetched.counts.get(number, 0) for number in window.numbers])
        size = min(found, window.size(max(count, found)))
        if size != sum([kept[number] for number in window.numbers]):
            return False
    for number, crumbs in enumerate(results):
        is_cut = kept[number] < len(crumbs)
        if kept[number] > len(crumbs) or (is_cut and number not in config.kept):
            return False
        # A source that has reached its first limit is read up to its full limit, unless its window begins later.
        first, full = config.first_sources[number].fetch.limit, config.full_sources[number].fetch.limit
        if first < full and not is_cut and len(crumbs) >= first:
            return False
    sizes = dict.fromkeys(config.key_limits, 0)
    for source, size in zip(config.sources, kept, strict=True):
        if source.key in sizes:
            sizes[source.key] += size
    return all(sizes[key] <= limit for key, limit in config.key_limits.items())
