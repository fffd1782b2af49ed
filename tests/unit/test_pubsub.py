"""Pieces of answers, as they come over the wire; tests/http/test_stream.py has the links."""

from __future__ import annotations

import pytest

from breadcrumbs.runtime.backend.link import ReplyError
from breadcrumbs.runtime.backend.pubsub import _Listener


async def test_what_is_published_is_passed_on_before_the_turn_of_the_loop_ends() -> None:
    """The event of an answer comes on another link: a piece that waited for the next turn could come after it."""
    heard: list[bytes] = []
    listener = _Listener(heard.append)
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n"
    listener.data_received(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" + message % (2, b"He") + b"*3\r\n$7")
    assert heard == [b"He"]
    listener.data_received((message % (3, b"llo"))[6:])
    assert heard == [b"He", b"llo"]
    listener.data_received(b"-NOPERM no\r\n")
    with pytest.raises(ReplyError, match="NOPERM"):
        await listener.ended
