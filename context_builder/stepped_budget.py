"""Cuts a conversation to the token budget in steps, so that the beginning of a prompt stays equal for many turns.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence


def first_kept(sizes: Sequence[tuple[int, bool]], max_tokens: int, keep_tokens: int) -> int:
    """Return the index of the first item of a conversation that stays in the context.

    `sizes` are the tokens of each item, the oldest first, and whether it is a message. The conversation is followed
    from its first item: each time it exceeds `max_tokens`, it is cut until its messages have at most `keep_tokens`. The
    result depends only on the items, so it is the same in each turn until the next cut. The last item always stays.
    """
    start = total = messages = 0
    for end, (tokens, is_message) in enumerate(sizes):
        total += tokens
        messages += tokens if is_message else 0
        if total <= max_tokens:
            continue
        while start < end and (messages > keep_tokens or total > max_tokens):
            dropped, was_message = sizes[start]
            total -= dropped
            messages -= dropped if was_message else 0
            start += 1
    return start
