"""Applies the limits per key, and keeps answers together with their questions.

A limit counts the items of all sources with the same key. The newest items are kept. An answer whose question was left
out is left out too, because an answer without its question misleads the model. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.stepped_windows import Trimmed
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.cached import once_per_object
from breadcrumbs.runtime.retrieval.sources import Source, SourceItem

LimitReason = Literal["over limit", "without its question"]
"""Reason why a limit of a key left an item out."""


class Limited(NamedTuple):
    """Items after the limits of their keys were applied."""

    kept: list[SourceItem]
    left_out: list[tuple[SourceItem, LimitReason]]


@once_per_object
def questions_of(crumb: Breadcrumb) -> tuple[str, ...]:
    """Return the ids of the messages that a breadcrumb answers. Empty if it answers none."""
    context = crumb.context
    question = context.get("trigger_id")
    # A client can also write an answer, and these fields can have any JSON value.
    if not isinstance(question, str) or question == crumb.id_text:
        return ()
    merged = context.get("answers")
    if not isinstance(merged, list):
        return (question,)
    return (question, *(id for id in merged if isinstance(id, str)))


Windows = Mapping[str, Sequence[SourceItem]]
"""The candidates of each key that has a limit: the trigger first, then the newest first."""


def windows_of(config: ContextConfig, candidates: Sequence[SourceItem]) -> Windows:
    """Group the candidates by their keys. They are sorted: the trigger first, then the newest first."""
    return {key: [entry for entry in candidates if entry.source == key] for key in config.key_limits}


def apply_limits(
    config: ContextConfig,
    trigger: Breadcrumb,
    candidates: Sequence[SourceItem],
    windows: Windows,
    cut_sources: frozenset[int],
    dropped: frozenset[str] = frozenset(),
) -> Limited:
    """Apply the limits of a config to the candidates of a context.

    The trigger is always kept. It counts if a source of the key found it. `cut_sources` are the sources that reached
    their own limit, so that older breadcrumbs can exist which they did not return. `dropped` are the ids of breadcrumbs
    before the start of a stepped window.
    """
    left_out: list[tuple[SourceItem, LimitReason]] = []
    for key, limit in config.key_limits.items():
        window = windows[key]
        over = [(entry, _OVER) for entry in window[limit:]]
        cut_schemas = {
            source.schema_name
            for number, source in enumerate(config.sources)
            if source.key == key and number in cut_sources
        }
        cut = {*dropped, *(entry.crumb.id_text for entry, _ in over)}
        orphans = _orphans(window[:limit], cut, trigger, cut_schemas)
        left_out += [*over, *((entry, _ORPHAN) for entry in orphans)]
    if not left_out:
        return Limited(list(candidates), left_out)
    gone = {entry.crumb.id_text for entry, _ in left_out}
    return Limited([entry for entry in candidates if entry.crumb.id_text not in gone], left_out)


_OVER: LimitReason = "over limit"
_ORPHAN: LimitReason = "without its question"


def _orphans(
    window: Sequence[SourceItem], cut: set[str], trigger: Breadcrumb, cut_schemas: set[str | None]
) -> Iterator[SourceItem]:
    """Yield the answers of a window whose question was cut.

    If the question is unknown, it can be older than everything that the sources returned. Such an answer is yielded
    only at the beginning of the conversation, and only if a source with another schema was cut.
    """
    if not (cut or cut_schemas):
        return
    present = {entry.crumb.id_text for entry in window}
    at_start = True
    for entry in reversed(window):  # oldest first, because an answer can be the question of another one
        crumb = entry.crumb
        questions = questions_of(crumb) if "trigger_id" in crumb.context else ()
        starts = at_start and crumb.session_id == trigger.session_id
        if questions and present.isdisjoint(questions) and crumb.id_text != trigger.id_text:
            may_be_cut = starts and bool(cut_schemas - {crumb.schema_name})
            if may_be_cut or not cut.isdisjoint(questions):
                present.discard(crumb.id_text)
                cut.add(crumb.id_text)
                yield entry
                continue
        at_start = at_start and not starts


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


def cut_sources(sources: Sequence[Source], counts: Mapping[int | None, int]) -> frozenset[int]:
    """Return the indexes of sources that reached their limit.

    `counts` are the numbers of items that each source found. Messages that wait for their turn do not count.
    """
    return frozenset(
        number
        for number, source in enumerate(sources)
        if source.fetch.method == "recent" and counts.get(number, 0) >= source.fetch.limit
    )


def sources_to_extend(
    config: ContextConfig, windows: Windows, cut: frozenset[int], trimmed: Trimmed
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
        window = windows[key]
        kept, beyond = window[:limit], {*trimmed.cut, *(entry.number for entry in window[limit:])}
        ids = {*trimmed.dropped, *(entry.crumb.id_text for entry in window)}
        lacks_question = any(
            (questions := questions_of(entry.crumb)) and ids.isdisjoint(questions) for entry in kept
        )
        extended |= {n: full[n] for n in short if lacks_question or n not in beyond}
    return extended
