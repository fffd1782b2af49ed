"""HTTP replies, sent directly over ASGI."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import orjson
from starlette.types import Send

Header: TypeAlias = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM_JSON: Final = b"application/problem+json"
HTML: Final = b"text/html; charset=utf-8"

CHUNK_BYTES: Final = 256 << 10
"""Maximum bytes per ASGI message. The server accepts a chunk when the client has read enough of the previous one."""


class Reply:
    """An HTTP reply. Smaller and faster than Starlette's `Response`."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, body: bytes = b"", media_type: bytes = JSON, headers: Sequence[Header] = ()
    ) -> None:
        self.status = status
        self.body = body
        self.headers: list[Header] = [*headers]
        if body:
            self.headers.append((b"content-type", media_type))
        if status != 204 and status != 304:
            self.headers.append((b"content-length", b"%d" % len(body)))

    @classmethod
    def json(cls, document: Any, *, status: int = 200, headers: Sequence[Header] = ()) -> Reply:
        """Return a reply with a JSON body."""
        return cls(status, orjson.dumps(document), JSON, headers)

    @property
    def size(self) -> int:
        """Bytes of the body that stay in memory until they are sent."""
        return len(self.body)

    async def send(self, send: Send, *, without_body: bool = False) -> None:
        """Send the reply. `without_body` is for HEAD: the same headers as for GET, including the length."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        last = b"" if without_body else self.body
        if not without_body and self.size > CHUNK_BYTES:
            last = b""
            for chunk in self._body_chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": last})

    def _body_chunks(self) -> Iterator[bytes]:
        """Yield the chunks of a large body."""
        yield from _split_chunks(self.body)


class ListReply(Reply):
    """A JSON array whose items are encoded one by one.

    A large array is never joined into one piece, and its items are freed while it is sent.
    """

    __slots__ = ("_pieces",)

    def __init__(self, items: Iterable[Any], headers: Sequence[Header] = ()) -> None:
        pieces: deque[bytes] = deque()
        for item in items:
            pieces.append(b"," if pieces else b"[")
            pieces.append(orjson.dumps(item))
        pieces.append(b"]" if pieces else b"[]")
        length = sum(map(len, pieces))
        if length <= CHUNK_BYTES:
            super().__init__(200, b"".join(pieces), headers=headers)
            self._pieces: deque[bytes] = deque()
        else:
            super().__init__(200)
            self.headers = [*headers, (b"content-type", JSON), (b"content-length", b"%d" % length)]
            self._pieces = pieces

    @property
    def size(self) -> int:
        return len(self.body) + sum(map(len, self._pieces))

    def _body_chunks(self) -> Iterator[bytes]:
        pending: list[bytes] = []
        size = 0
        while self._pieces:
            pending.append(self._pieces.popleft())
            size += len(pending[-1])
            if size > CHUNK_BYTES or not self._pieces:
                yield from _split_chunks(b"".join(pending))
                pending, size = [], 0


class StreamedReply(Reply):
    """A JSON reply of any length that is generated while it is sent.

    A part is generated after the client has read enough of the previous one.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        super().__init__(200)
        self.headers = [(b"content-type", JSON)]
        self._parts = parts

    async def send(self, send: Send, *, without_body: bool = False) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        if not without_body:
            async for part in self._parts:
                for chunk in _split_chunks(part):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def encode_items(items: Iterable[Any]) -> list[orjson.Fragment]:
    """Encode items one by one. Only one of them is then in memory as objects."""
    return [orjson.Fragment(orjson.dumps(item)) for item in items]


def _split_chunks(whole: bytes) -> Iterator[bytes]:
    for start in range(0, len(whole), CHUNK_BYTES):
        yield whole[start : start + CHUNK_BYTES]
