"""No client can exhaust memory, descriptors or time of the server without a token."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.http.connections import network_of
from tests.http.conftest import KEY, KEYS
from tests.http.raw_http import (
    GET_HEALTH,
    connect,
    is_closed,
    many_connections,
    read_all,
    read_response,
    request,
    resident_bytes,
    serving,
)
from tests.support.process import Process

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc or addresses such as 127.0.0.2")

MIB = 1 << 20
HEAD_TIMEOUT = 1.0
KEEP_ALIVE_TIMEOUT = 1.5


@pytest.fixture(scope="module")
def default(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Server with default limits and API keys."""
    with serving(embedded_server, tmp_path_factory.mktemp("default"), keys=KEYS) as process:
        yield process


@pytest.fixture(scope="module")
def impatient(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Server with short timeouts, in the development mode."""
    limits: dict[str, Any] = {
        "head_timeout": HEAD_TIMEOUT,
        "keep_alive_timeout": KEEP_ALIVE_TIMEOUT,
        "body_grace": 1,
        "min_body_rate": 1000,
        "send_timeout": 1,
    }
    with serving(embedded_server, tmp_path_factory.mktemp("impatient"), **limits) as process:
        yield process


@pytest.fixture
def small(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Server with few connections and API keys."""
    folder = tmp_path_factory.mktemp("small")
    with serving(embedded_server, folder, keys=KEYS, max_connections=24, reserved_connections=8) as process:
        yield process


# Heads


@on_linux
def test_a_header_of_20_mb_is_refused_after_64_kib_and_not_kept(default: Process) -> None:
    before = resident_bytes(default)
    with connect(default) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * (64 << 10))
        response = read_response(link)  # arrives before the header is complete
        assert (response.status, response.problem) == (431, "head-too-large")
        assert response.headers[b"connection"] == b"close"
        link.sendall(b"a" * 20 * MIB)
        assert resident_bytes(default) - before < 10 * MIB


def test_a_client_that_sends_20_mb_of_headers_before_it_reads_gets_the_431(default: Process) -> None:
    with connect(default) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 20 * MIB + b"\r\n\r\n")
        assert read_response(link).problem == "head-too-large"


def test_a_head_can_have_64_kib(default: Process) -> None:
    padding = (64 << 10) - len(request(b"GET", b"/health", b"X-Long: "))
    for extra, status in ((0, 200), (1, 431)):
        with connect(default) as link:
            link.sendall(request(b"GET", b"/health", b"X-Long: " + b"a" * (padding + extra)))
            assert read_response(link).status == status


def test_a_head_in_many_pieces_is_read(default: Process) -> None:
    with connect(default) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GET_HEALTH:
            link.sendall(bytes([byte]))
        assert read_response(link).status == 200


def test_too_many_headers_are_refused(default: Process) -> None:
    for count, status in ((127, 200), (128, 431), (10_000, 431)):  # plus the Host header
        with connect(default) as link:
            link.sendall(request(b"GET", b"/health", *[b"a:"] * count))
            assert read_response(link).status == status


def test_a_url_can_have_8_kib(default: Process) -> None:
    for length, status in ((8192, 404), (8193, 414), (60_000, 414)):
        with connect(default) as link:
            link.sendall(request(b"GET", b"/" + b"a" * (length - 1)))
            assert read_response(link).status == status


def test_a_url_without_an_end_is_refused(default: Process) -> None:
    with connect(default) as link:
        link.sendall(b"GET /" + b"a" * 9000)
        assert read_response(link).problem == "url-too-long"


@pytest.mark.parametrize("trailer", [b"a: b\r\n", b"a" * 1000])
def test_trailers_without_an_end_are_refused(default: Process, trailer: bytes) -> None:
    with connect(default) as link:
        link.sendall(_chunked_post(b"X-API-Key: " + KEY.encode()) + b"2\r\n{}\r\n0\r\n")
        link.sendall(trailer * (200_000 // len(trailer)))
        assert read_response(link).problem == "head-too-large"


def test_a_trailer_is_not_a_header(default: Process) -> None:
    body = b'd\r\n{"title":"x"}\r\n0\r\n'
    with connect(default) as link:
        link.sendall(_chunked_post() + body + b"X-API-Key: " + KEY.encode() + b"\r\n\r\n")
        assert read_response(link).problem == "unauthenticated"


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\nHost: a\n\n", b"get / HTTP/1.1\r\n\r\n"]
)
def test_bytes_that_are_not_http_are_refused_at_once(default: Process, data: bytes) -> None:
    with connect(default) as link:
        link.sendall(data)
        response = read_response(link)
        assert (response.status, response.problem) == (400, "malformed")


def test_line_breaks_between_requests_are_ignored(default: Process) -> None:
    with connect(default) as link:
        for _ in range(2):
            link.sendall(b"\r\n" * 50_000 + GET_HEALTH)
            assert read_response(link).status == 200


# Early responses


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"X-API-Key: " + KEY.encode()], 413),
        ([], 401),
        ([b"Origin: https://evil.example"], 403),
        ([b"Host: evil.example"], 421),
    ],
)
@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_a_refusal_reaches_a_client_that_is_still_sending(
    default: Process, headers: list[bytes], status: int, connection: bytes
) -> None:
    with connect(default) as link:
        link.sendall(
            request(b"POST", b"/breadcrumbs", b"Connection: " + connection, *headers, body=b" " * 20 * MIB)
        )
        response = read_response(link)
        assert response.status == status
        assert response.headers[b"connection"] == b"close"
        assert is_closed(link, within=20)


def test_a_413_reaches_a_client_that_is_still_sending_chunks(default: Process) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connect(default) as link:
        link.sendall(_chunked_post(b"X-API-Key: " + KEY.encode(), b"Connection: close") + chunk * 320)
        assert read_response(link).problem == "too-large"


def test_an_http_library_gets_the_413(default: Process) -> None:
    answer = httpx.post(
        f"{default.url}/breadcrumbs",
        content=b" " * 20 * MIB,
        headers={"X-API-Key": KEY, "Connection": "close", "Content-Type": "application/json"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 413


def test_a_connection_stays_open_after_a_refused_short_body(default: Process) -> None:
    with connect(default) as link:
        for _ in range(3):
            link.sendall(request(b"POST", b"/breadcrumbs", b"Content-Length: 1000"))
            assert read_response(link).status == 401
            link.sendall(b"x" * 1000)
        link.sendall(GET_HEALTH)
        assert read_response(link).status == 200


def test_a_refused_request_that_expects_100_continue_is_not_asked_for_its_body(default: Process) -> None:
    with connect(default) as link:
        link.sendall(request(b"POST", b"/breadcrumbs", b"Content-Length: 10", b"Expect: 100-continue"))
        response = read_response(link)
        assert (response.status, response.headers[b"connection"]) == (401, b"close")


def test_an_accepted_request_that_expects_100_continue_is_asked_for_its_body(default: Process) -> None:
    head = request(
        b"POST", b"/breadcrumbs", b"Expect: 100-continue", b"X-API-Key: " + KEY.encode(),
        b"Content-Type: application/json", b"Content-Length: 13",
    )  # fmt: skip
    with connect(default) as link:
        link.sendall(head)
        assert link.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(b'{"title":"x"}')
        assert read_response(link).status == 201


def test_an_upgrade_is_answered_as_a_plain_request_and_ends_the_connection(default: Process) -> None:
    upgrade = request(b"GET", b"/health", b"Connection: Upgrade", b"Upgrade: websocket")
    with connect(default) as link:
        link.sendall(upgrade + GET_HEALTH)
        assert read_all(link).count(b"HTTP/1.1 200") == 1


# Pipelining


def test_pipelined_requests_are_answered_in_order(default: Process) -> None:
    bad = request(b"POST", b"/breadcrumbs", body=b"{}")
    last = request(b"GET", b"/nowhere", b"Connection: close")
    with connect(default) as link:
        link.sendall((GET_HEALTH + bad) * 20 + last)
        raw = read_all(link)
    statuses = [part[:3] for part in raw.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"401"] * 20 + [b"404"]


def test_a_request_behind_a_chunked_body_in_the_same_packet_ends_the_connection(default: Process) -> None:
    """Only the parser sees the end of a chunked body, so the client must send the next request again."""
    first = _chunked_post(b"X-API-Key: " + KEY.encode()) + b'd\r\n{"title":"x"}\r\n0\r\n\r\n'
    with connect(default) as link:
        link.sendall(first + GET_HEALTH)
        response = read_response(link)
        assert (response.status, response.headers[b"connection"]) == (201, b"close")
        assert is_closed(link, within=20)


@on_linux
def test_a_flood_of_pipelined_requests_is_not_queued(default: Process) -> None:
    before = resident_bytes(default)
    flood = GET_HEALTH * (4 * MIB // len(GET_HEALTH))
    with ExitStack() as stack:
        for _ in range(5):
            link = stack.enter_context(connect(default, timeout=1))
            with contextlib.suppress(OSError):
                link.sendall(flood)
        assert httpx.get(f"{default.url}/health", timeout=20, trust_env=False).status_code == 200
        assert resident_bytes(default) - before < 30 * MIB


# Time


def test_a_half_sent_head_is_answered_with_408(impatient: Process) -> None:
    with connect(impatient) as link:
        began = time.monotonic()
        link.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        response = read_response(link)
        assert (response.status, response.problem) == (408, "request-timeout")
        assert time.monotonic() - began >= HEAD_TIMEOUT - 0.2


def test_single_bytes_do_not_extend_the_time_for_a_head(impatient: Process) -> None:
    with connect(impatient, timeout=0.1) as link:
        link.sendall(b"GET / HTTP/1.1\r\nX: ")
        raw = b""
        deadline = time.monotonic() + 20
        while not raw and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                link.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                raw = link.recv(65536)
        assert raw.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("data", [b"", b"\r\n"])
def test_a_connection_that_sends_no_request_is_closed(impatient: Process, data: bytes) -> None:
    with connect(impatient) as link:
        link.sendall(data)
        assert is_closed(link, within=20)


def test_an_idle_connection_is_closed_after_the_keep_alive_timeout(impatient: Process) -> None:
    with connect(impatient) as link:
        link.sendall(GET_HEALTH)
        assert read_response(link).status == 200
        answered = time.monotonic()
        assert is_closed(link, within=20)
        assert time.monotonic() - answered >= KEEP_ALIVE_TIMEOUT - 0.2


def test_the_time_for_a_later_head_counts_from_its_first_byte(impatient: Process) -> None:
    with connect(impatient) as link:
        for _ in range(3):
            link.sendall(GET_HEALTH)
            assert read_response(link).status == 200
            time.sleep(HEAD_TIMEOUT / 2)
        link.sendall(GET_HEALTH[:10])
        assert read_response(link).problem == "request-timeout"


def test_a_slow_body_is_answered_with_408(impatient: Process) -> None:
    with connect(impatient) as link:
        link.sendall(_post_head(100_000) + b"{")
        assert read_response(link).problem == "request-timeout"


def test_dripping_bytes_do_not_keep_a_slow_body_alive(impatient: Process) -> None:
    with connect(impatient, timeout=0.1) as link:
        link.sendall(_post_head(100_000))
        raw = b""
        deadline = time.monotonic() + 20
        while not raw and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                link.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                raw = link.recv(65536)
        assert raw.startswith(b"HTTP/1.1 408 ")


def test_a_body_at_the_minimum_rate_can_take_longer_than_the_grace_period(impatient: Process) -> None:
    with connect(impatient) as link:
        link.sendall(_post_head(20_000))
        for _ in range(20):
            link.sendall(b" " * 987)
            time.sleep(0.1)
        link.sendall((b'{"title":"x"}' + b" " * 1000)[: 20_000 - 20 * 987])
        assert read_response(link).status == 201


def test_an_open_stream_is_not_idle(impatient: Process) -> None:
    with connect(impatient) as link:
        link.sendall(request(b"GET", b"/events/stream"))
        assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(KEEP_ALIVE_TIMEOUT + 1.5)
        httpx.post(f"{impatient.url}/breadcrumbs", json={"title": "still there"}, trust_env=False)
        raw = b""
        while b"breadcrumb." not in raw:
            piece = link.recv(65536)
            assert piece, raw
            raw += piece


def test_a_client_that_does_not_read_its_responses_is_disconnected(impatient: Process) -> None:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(30)
    with link:
        link.connect(("127.0.0.1", int(impatient.url.rpartition(":")[2])))
        wanted = 400
        link.sendall(request(b"GET", b"/openapi.json") * wanted)
        time.sleep(5)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = read_all(link)
    assert received.count(b"HTTP/1.1 200") < wanted


# Numbers of connections


def test_half_sent_requests_do_not_lock_out_clients_with_a_token(small: Process) -> None:
    own = request(b"GET", b"/breadcrumbs", b"X-API-Key: " + KEY.encode())
    with ExitStack() as stack:
        earlier = stack.enter_context(connect(small))
        earlier.sendall(own)
        assert read_response(earlier).status == 200
        many_connections(stack, small, 100, b"GET / HTTP/1.1\r\nHost:")
        for _ in range(3):
            link = stack.enter_context(connect(small))
            link.sendall(own)
            assert read_response(link).status == 200
        earlier.sendall(own)
        assert read_response(earlier).status == 200


def test_in_the_development_mode_an_accepted_request_keeps_its_connection(
    embedded_server: EmbeddedServer, tmp_path: Path
) -> None:
    with (
        serving(embedded_server, tmp_path, max_connections=24, reserved_connections=8) as process,
        ExitStack() as stack,
    ):
        earlier = stack.enter_context(connect(process))
        earlier.sendall(request(b"GET", b"/breadcrumbs"))
        assert read_response(earlier).status == 200
        many_connections(stack, process, 100, b"GET / HTTP/1.1\r\nHost:")
        earlier.sendall(request(b"GET", b"/breadcrumbs"))
        assert read_response(earlier).status == 200


def test_idle_connections_do_not_lock_out_new_clients(small: Process) -> None:
    with ExitStack() as stack:
        links = many_connections(stack, small, 100)
        assert httpx.get(f"{small.url}/health", timeout=20, trust_env=False).status_code == 200
        assert is_closed(links[0], within=20)


def test_unauthenticated_connections_cannot_use_the_reserved_places(small: Process) -> None:
    with ExitStack() as stack:
        links = many_connections(stack, small, 24)
        closed = [is_closed(link, within=2) for link in links[:8]]
        assert closed == [True] * 8
        assert not is_closed(links[-1], within=0.2)


def test_a_replaced_half_sent_request_is_answered_with_503(small: Process) -> None:
    with ExitStack() as stack:
        links = many_connections(stack, small, 30, b"GET / HTTP/1.1\r\n")
        response = read_response(links[0])
        assert (response.status, response.problem) == (503, "too-many-connections")
        assert int(response.headers[b"retry-after"]) > 0


def test_without_a_replaceable_connection_a_new_one_is_answered_with_503(small: Process) -> None:
    stream = request(b"GET", b"/events/stream", b"X-API-Key: " + KEY.encode())
    with ExitStack() as stack:
        for _ in range(24):
            link = stack.enter_context(connect(small))
            link.sendall(stream)
            assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
        refused = stack.enter_context(connect(small))
        refused.sendall(GET_HEALTH)
        response = read_response(refused)
        assert (response.status, response.problem) == (503, "too-many-connections")
        assert int(response.headers[b"retry-after"]) > 0


@on_linux
def test_one_address_cannot_use_all_connections(
    embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("addresses")
    stream = request(b"GET", b"/events/stream", b"X-API-Key: " + KEY.encode())
    with (
        serving(embedded_server, folder, keys=KEYS, max_connections_per_address=5) as server,
        ExitStack() as stack,
    ):
        for _ in range(5):
            link = stack.enter_context(connect(server, source="127.0.0.2"))
            link.sendall(stream)
            assert link.recv(65536).startswith(b"HTTP/1.1 200 ")
        refused = stack.enter_context(connect(server, source="127.0.0.2"))
        refused.sendall(GET_HEALTH)
        assert read_response(refused).problem == "too-many-connections"
        other = stack.enter_context(connect(server, source="127.0.0.3"))
        other.sendall(GET_HEALTH)
        assert read_response(other).status == 200


def test_unfinished_requests_of_all_unauthenticated_clients_share_one_memory_limit(
    embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("memory")
    with (
        serving(embedded_server, folder, max_unauthenticated_bytes=1 << 19) as server,
        ExitStack() as stack,
    ):
        heads = many_connections(stack, server, 20, b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000)
        assert read_response(heads[0]).problem == "too-many-connections"
        bodies = many_connections(stack, server, 20, _post_head(200_000) + b"a" * 100_000)
        assert read_response(bodies[0]).problem == "too-many-connections"
        last = bodies[-1]
        last.sendall(b" " * 100_000)
        assert read_response(last).status == 400  # the body was read and is not JSON


@on_linux
def test_a_low_limit_on_open_files_lowers_the_number_of_connections(
    embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    with serving(embedded_server, folder, open_files=200) as server, ExitStack() as stack:
        many_connections(stack, server, 300, b"GET / HTTP/1.1\r\n")
        assert httpx.get(f"{server.url}/health", timeout=20, trust_env=False).status_code == 200
        assert "limit on open files" in server.log
        assert "Too many open files" not in server.log


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_client_is_counted_by_its_network(host: str, network: str) -> None:
    assert network_of(host) == network


def _post_head(length: int) -> bytes:
    return request(
        b"POST", b"/breadcrumbs", b"Content-Type: application/json", b"Content-Length: %d" % length
    )


def _chunked_post(*headers: bytes) -> bytes:
    return request(
        b"POST",
        b"/breadcrumbs",
        b"Content-Type: application/json",
        b"Transfer-Encoding: chunked",
        *headers,
    )
