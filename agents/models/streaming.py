"""Stream a complete text word by word, for models that run in this process."""

from __future__ import annotations

import re

import anyio
from anyio.lowlevel import checkpoint

from breadcrumbs.agents.models.base import OnDelta

_WORD = re.compile(r"\s*\S+|\s+\Z")
_WORDS_BETWEEN_CHECKPOINTS = 100


async def stream_words(text: str, on_delta: OnDelta | None, *, delay: float = 0.0) -> None:
    """Pass the text to `on_delta` word by word. The joined words are the text.

    `delay` is the pause before each word, in seconds.
    """
    if on_delta is None:
        return
    for count, word in enumerate(_WORD.findall(text), start=1):
        if delay > 0:
            await anyio.sleep(delay)
        elif count % _WORDS_BETWEEN_CHECKPOINTS == 0:  # a long text must not block other sessions
            await checkpoint()
        await on_delta(word)
