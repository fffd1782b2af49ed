"""Messages of a channel, as they come over the wire; tests/http/test_stream.py has the links."""

from __future__ import annotations

from breadcrumbs.runtime.backend.link import ReplyError, _SubscriberSocket


async def test_published_messages_are_delivered_within_the_loop_iteration() -> None:
    """The event of an answer comes on another link: a piece that waited for the next turn could come after it."""
    heard: list[bytes] = []
    socket = _SubscriberSocket(heard.append, reply_timeout=10)
    subscribed, refused = socket.send((b"SUBSCRIBE", b"c")), socket.send((b"PING",))
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n"
    socket.data_received(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" + message % (2, b"He") + b"*3\r\n$7")
    assert heard == [b"He"]
    socket.data_received((message % (3, b"llo"))[6:])
    assert heard == [b"He", b"llo"]
    socket.data_received(b"-NOPERM no\r\n")
    assert await subscribed == [b"subscribe", b"c", 1]
    assert isinstance(error := await refused, ReplyError) and error.code == "NOPERM"
    socket.close()
