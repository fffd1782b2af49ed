"""The application in its own process, over plain sockets."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest


@contextlib.contextmanager
def connected(served: str) -> Iterator[socket.socket]:
    where = urlsplit(served)
    assert where.hostname and where.port
    with socket.create_connection((where.hostname, where.port), timeout=10) as link:
        yield link


def _answer(link: socket.socket) -> bytes:
    """Read one response with its body, or everything until the server closes the connection."""
    raw = b""
    while True:
        head, end, body = raw.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and length and len(body) >= int(length[1]):
            return raw
        piece = link.recv(65536)
        if not piece:
            return raw
        raw += piece


def _status(raw: bytes) -> int:
    match = re.match(rb"HTTP/1\.1 (\d{3})", raw)
    assert match is not None, raw
    return int(match[1])


def _post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /breadcrumbs HTTP/1.1", b"Host: 127.0.0.1", b"Content-Type: application/json", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _in_flight(served: str) -> float:
    found = re.search(r"(?m)^breadcrumbs_http_in_flight (\S+)$", httpx.get(f"{served}/metrics").text)
    assert found is not None
    return float(found[1])


def test_a_message_goes_in_and_comes_out(served: str) -> None:
    with httpx.Client(base_url=served) as client:
        token = client.post("/auth/token", json={}).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        body = {"schema_name": "user.message.v1", "title": "Hello", "tags": ["session:process"]}
        created = client.post("/breadcrumbs", json=body, headers=headers)
        assert created.status_code == 201
        assert client.get(created.headers["location"], headers=headers).json()["title"] == "Hello"
        listed = client.get("/breadcrumbs", params={"session_id": "process"}, headers=headers)
        assert [item["title"] for item in listed.json()] == ["Hello"]
        assert "server" not in listed.headers


@pytest.mark.parametrize(
    "target",
    [
        b"/breadcrumbs/\xff\xfe", b"/breadcrumbs/%ff%fe", b"/breadcrumbs/%00", b"/breadcrumbs?tag=\xff",
        b"/breadcrumbs?tag=%ff", b"/breadcrumbs?tag=%", b"/%2e%2e/%2e%2e/etc/passwd", b"*", b"//evil.example/x",
        b"http://evil.example/breadcrumbs/x", b"/" + b"a" * 8000, b"/breadcrumbs?" + b"&" * 8000,
        b"/breadcrumbs/" + b"%F0%9F%8D%9E" * 50, b"/breadcrumbs/x%0d%0aSet-Cookie:%20a=b",
    ],
)  # fmt: skip
def test_no_request_target_causes_a_server_error(served: str, target: bytes) -> None:
    with connected(served) as link:
        link.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        raw = _answer(link)
    assert raw == b"" or 200 <= _status(raw) < 500
    assert b"set-cookie" not in raw.lower()


@pytest.mark.parametrize(
    "header",
    [
        b"If-Match: \xff", b"If-None-Match: \xff\x00"[:-1], b"Idempotency-Key: \xff\xfe", b"Authorization: Bearer \xff",
        b"X-API-Key: \xe9", b"Content-Type: \xff", b"Origin: \xff", b"Last-Event-ID: \xff", b"Accept: \xff",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [b"/breadcrumbs", b"/breadcrumbs/0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"])
def test_no_bytes_in_a_header_cause_a_server_error(served: str, header: bytes, path: bytes) -> None:
    for method in (b"GET", b"POST", b"PATCH", b"DELETE"):
        with connected(served) as link:
            link.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n\r\n")
            raw = _answer(link)
        assert raw == b"" or 200 <= _status(raw) < 500, raw


def test_a_chunked_body_above_the_limit_is_refused(served: str) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connected(served) as link:
        link.sendall(_post(b"", b"Transfer-Encoding: chunked"))
        with contextlib.suppress(OSError):  # the server can close the connection early
            for _ in range(40):
                link.sendall(chunk)
        assert _status(_answer(link)) == 413


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(served: str) -> None:
    with connected(served) as link:
        link.sendall(_post(b"", b"Content-Length: 99999999999"))
        assert _status(_answer(link)) == 413


def test_a_chunked_body_is_read_completely(served: str) -> None:
    with connected(served) as link:
        link.sendall(_post(b'8\r\n{"title"\r\n', b"Transfer-Encoding: chunked"))
        time.sleep(0.05)
        link.sendall(b'6\r\n: "x"}\r\n0\r\n\r\n')
        assert _status(_answer(link)) == 201


def test_a_client_that_disconnects_within_its_body_writes_nothing(served: str) -> None:
    for _ in range(5):
        with connected(served) as link:
            link.sendall(_post(b'{"title": "half', b"Content-Length: 500"))
    deadline = time.monotonic() + 10
    while _in_flight(served) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert 'status="499"' in httpx.get(f"{served}/metrics").text


def test_http_1_0_without_a_host_is_answered(served: str) -> None:
    with connected(served) as link:
        link.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert _status(_answer(link)) == 200


def test_a_refused_body_does_not_confuse_the_next_request_on_the_connection(served: str) -> None:
    """The rest of a refused body must not be parsed as a request."""
    inner = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(served) as link:
        link.sendall(
            b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(inner)
            + inner
            + b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        raw = b""
        while piece := link.recv(65536):
            raw += piece
    assert re.findall(rb"HTTP/1\.1 (\d{3})", raw) == [b"404", b"200"]
