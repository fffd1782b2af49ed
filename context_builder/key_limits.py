"""Applies the limits per key, and keeps answers together with their questions.

A limit counts the items of all sources with the same key. The newest items are kept. An answer whose question was left
out is left out too, because an answer without its question misleads the model. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.sources import Source, SourceItem

LimitReason = Literal["over limit", "without its question"]
"""Reason why a limit of a key left an item out."""


class Limited(NamedTuple):
    """Items after the limits of their keys were applied."""

    kept: list[SourceItem]
    left_out: list[tuple[SourceItem, LimitReason]]


def questions_of(crumb: Breadcrumb) -> tuple[str, ...]:
    """Return the ids of the messages that a breadcrumb answers. Empty if it answers none."""
    context = crumb.context
    question, merged = context.get("trigger_id"), context.get("answers")
    # A client can also write an answer, and these fields can have any JSON value.
    if not isinstance(question, str) or question == crumb.id_text:
        return ()
    return (
        (question, *(id for id in merged if isinstance(id, str))) if isinstance(merged, list) else (question,)
    )


def apply_limits(
    config: ContextConfig, trigger: Breadcrumb, candidates: Sequence[SourceItem], cut_sources: frozenset[int]
) -> Limited:
    """Apply the limits of a config to the candidates of a context.

    The trigger is always kept. It counts if a source of the key found it. `cut_sources` are the sources that reached
    their own limit, so that older breadcrumbs can exist which they did not return.
    """
    kept, left_out = list(candidates), list[tuple[SourceItem, LimitReason]]()
    for key, limit in config.key_limits.items():
        window = _newest(candidates, trigger, key)
        over = [(entry, _OVER) for entry in window[limit:]]
        cut_schemas = {
            source.schema_name
            for number, source in enumerate(config.sources)
            if source.key == key and number in cut_sources
        }
        orphans = _orphans(window[:limit], {entry.crumb.id_text for entry, _ in over}, trigger, cut_schemas)
        left_out += [*over, *((entry, _ORPHAN) for entry in orphans)]
    gone = {entry.crumb.id_text for entry, _ in left_out}
    return Limited([entry for entry in kept if entry.crumb.id_text not in gone], left_out)


_OVER: LimitReason = "over limit"
_ORPHAN: LimitReason = "without its question"


def _newest(candidates: Iterable[SourceItem], trigger: Breadcrumb, key: str) -> list[SourceItem]:
    """Return the items of a key, the trigger first, then the newest first."""
    return sorted(
        (entry for entry in candidates if entry.source == key),
        key=lambda entry: (entry.crumb.id != trigger.id, -entry.crumb.created, entry.crumb.id_text),
    )


def _orphans(
    window: Sequence[SourceItem], cut: set[str], trigger: Breadcrumb, cut_schemas: set[str | None]
) -> Iterator[SourceItem]:
    """Yield the answers of a window whose question was cut.

    If the question is unknown, it can be older than everything that the sources returned. Such an answer is yielded
    only at the beginning of the conversation, and only if a source with another schema was cut.
    """
    present = {entry.crumb.id_text for entry in window}
    at_start = True
    for entry in reversed(window):  # oldest first, because an answer can be the question of another one
        crumb = entry.crumb
        questions = questions_of(crumb)
        in_conversation = crumb.session_id == trigger.session_id
        is_orphan = bool(questions) and present.isdisjoint(questions) and crumb.id != trigger.id
        may_be_cut = at_start and in_conversation and bool(cut_schemas - {crumb.schema_name})
        if is_orphan and (may_be_cut or not cut.isdisjoint(questions)):
            present.discard(crumb.id_text)
            cut.add(crumb.id_text)
            yield entry
        elif in_conversation:
            at_start = False


def answers_without_questions(
    items: Sequence[tuple[str, Breadcrumb]], cut: Iterable[Breadcrumb], limited: Mapping[str, int]
) -> set[str]:
    """Return the ids of answers whose questions did not fit into the budget.

    `items` are the keys and breadcrumbs that fit, the newest first. `cut` are those that did not fit. Only keys in
    `limited` count, because other keys keep the meaning that they had before limits per key existed.
    """
    missing = {crumb.id_text for crumb in cut}
    present = {crumb.id_text for _, crumb in items}
    answers: set[str] = set()
    for key, crumb in reversed(items[1:]):  # the first item is the trigger, which is always included
        questions = questions_of(crumb)
        is_orphan = present.isdisjoint(questions) and not missing.isdisjoint(questions)
        if is_orphan and key in limited:
            present.discard(crumb.id_text)
            missing.add(crumb.id_text)
            answers.add(crumb.id_text)
    return answers


# Reading in two steps


def cut_sources(
    sources: Sequence[Source], found: Iterable[SourceItem], waits: Callable[[Breadcrumb], bool]
) -> frozenset[int]:
    """Return the indexes of sources that reached their limit. Messages that wait for their turn do not count."""
    counts = dict.fromkeys(range(len(sources)), 0)
    for entry in found:
        if entry.number is not None and not waits(entry.crumb):
            counts[entry.number] += 1
    return frozenset(
        number
        for number, source in enumerate(sources)
        if source.fetch.method == "recent" and counts[number] >= source.fetch.limit
    )


def sources_to_extend(
    config: ContextConfig, trigger: Breadcrumb, candidates: Sequence[SourceItem], cut: frozenset[int]
) -> dict[int, Source]:
    """Return the sources that must be read up to their full limit, by index.

    They first read only a share of the limit of their key. That is enough if their oldest result is beyond the limit,
    and if no answer lacks a question. The result is then the same as with the full read.
    """
    first, full = config.first_sources, config.full_sources
    extended: dict[int, Source] = {}
    for key, limit in config.key_limits.items():
        short = {n for n in cut if full[n].key == key and first[n].fetch.limit < full[n].fetch.limit}
        if not short:
            continue
        window = _newest(candidates, trigger, key)
        ids = {entry.crumb.id_text for entry in window}
        kept, beyond = window[:limit], {entry.number for entry in window[limit:]}
        lacks_question = any(
            questions and ids.isdisjoint(questions)
            for questions in (questions_of(entry.crumb) for entry in kept)
        )
        extended |= {n: full[n] for n in short if lacks_question or n not in beyond}
    return extended
