"""Addresses of servers, and the mapping of server errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.runtime.backend.address import Address, parse_address
from breadcrumbs.runtime.backend.connection import Script, ScriptCall, to_store_error
from breadcrumbs.runtime.backend.link import LinkLost, ReplyError
from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.backend.standalone import StandaloneConnection
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import CommandRefused, StartupError, StoreError, StoreFull, StoreUnavailable
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import eventually
from tests.support.servers import Cluster, Server


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", Address("localhost")),
        ("redis://example.org:7000/2", Address("example.org", 7000, database=2)),
        ("redis://:secret@h", Address("h", password="secret")),
        ("redis://me:s%40%2F%3A@h:1", Address("h", 1, username="me", password="s@/:")),
        ("unix:///a%20b/c.sock", Address(path="/a b/c.sock")),
        ("unix:///c.sock?db=4", Address(path="/c.sock", database=4)),
    ],
)
def test_addresses_are_parsed_like_redis_py(url: str, address: Address) -> None:
    found = parse_address(url)
    assert (found.path or found.host, found.port) == (address.path or address.host, address.port)
    assert (found.username, found.password) == (address.username, address.password)
    assert found.database == address.database and found.tls is None


def test_rediss_uses_tls_with_certificate_checks() -> None:
    tls = parse_address("rediss://h:6380").tls
    assert tls is not None and tls.verify_mode is ssl.CERT_REQUIRED and tls.check_hostname
    unchecked = parse_address("rediss://h?ssl_cert_reqs=none").tls
    assert unchecked is not None and unchecked.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://h", "redis://h:port"])
def test_an_invalid_address_is_refused_with_examples(url: str) -> None:
    with pytest.raises(StartupError, match="redis://host:6379"):
        parse_address(url)


def test_error_messages_contain_no_password() -> None:
    with pytest.raises(StartupError) as refused:
        parse_address("http://:hush@h")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LinkLost("gone"), StoreUnavailable),
        (ReplyError("LOADING server is loading the dataset in memory"), StoreUnavailable),
        (ReplyError("CLUSTERDOWN The cluster is down"), StoreUnavailable),
        (ReplyError("READONLY You can't write against a read only replica."), StoreUnavailable),
        (ReplyError("NOAUTH Authentication required."), CommandRefused),
        (ReplyError("NOPERM this user has no permissions"), CommandRefused),
        (ReplyError("MISCONF Errors writing to the AOF file"), StoreUnavailable),
        (ReplyError("OOM command not allowed when used memory > 'maxmemory'."), StoreFull),
        (ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value"), StoreError),
    ],
)
def test_errors_of_the_server_map_to_the_error_tree(
    error: LinkLost | ReplyError, kind: type[StoreError]
) -> None:
    assert type(to_store_error(error)) is kind


@pytest.mark.parametrize("name", ["create", "update", "delete", "import", "read", "recent"])
def test_every_script_documents_its_keys_arguments_and_replies(name: str) -> None:
    source = Script(name).source.decode()
    assert source.startswith("#!lua")
    for part in ("KEYS", "ARGV", "Reply"):
        assert f"\n{part} " in source


def test_only_scripts_without_writes_are_marked_read_only() -> None:
    scripts = [Script(name) for name in ("create", "update", "delete", "import", "read", "recent")]
    assert [script.name for script in scripts if script.read_only] == ["recent"]


async def test_a_wrong_password_is_reported_without_showing_it() -> None:
    with Server(password="right") as server:
        with pytest.raises(StoreUnavailable, match="WRONGPASS") as refused:
            await Store.open(server.url.replace("right", "hush"))
        assert "hush" not in str(refused.value)
        with pytest.raises(StoreUnavailable, match="NOAUTH"):
            await Store.open(f"redis://{server.host}:{server.port}")
        connection = StandaloneConnection(parse_address(server.url.replace("right", "hush")), lanes=1)
        with pytest.raises(StoreUnavailable, match="WRONGPASS"):
            await connection.call_all([(0, ("PING",)), (0, ("PING",))])
        await connection.close()


async def test_a_changed_password_makes_the_store_unavailable() -> None:
    with Server(password="first") as server:
        store = await Store.open(server.url)
        server.command("CONFIG", "SET", "requirepass", "second")
        try:
            await store.connection.call(0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
        except StoreUnavailable:
            pass
        await asyncio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="WRONGPASS"):
                await store.list(UUID(int=1), Query())
        await store.close()


async def test_a_standalone_server_is_refused_as_a_cluster(standalone_server: Server) -> None:
    with pytest.raises(StoreUnavailable, match="cluster support disabled"):
        await Store.open(standalone_server.url.replace("redis://", "redis+cluster://"))


async def test_an_unreachable_cluster_is_reported_with_its_address() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as refused:
        await Store.open("redis+cluster://:hush@127.0.0.1:1")
    assert "hush" not in str(refused.value)


async def test_a_cluster_connection_raises_one_error_and_not_a_group(cluster_server: Cluster) -> None:
    cluster_server.flush()
    store = await Store.open(cluster_server.url)
    with pytest.raises(StoreError, match="wrong number of arguments"):
        await store.connection.call_all([(lane, ("GET",)) for lane in range(store.lanes)])
    await store.close()
    for attempt in (store.ping(), store.list(UUID(int=1), Query()), store.recent(UUID(int=1), "s", "x")):
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt


async def test_listeners_and_readers_raise_the_errors_of_the_store(standalone_server: Server) -> None:
    connection = StandaloneConnection(Address(port=1), lanes=1)
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        await connection.listen(b"channel", lambda message: None)
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        await connection.open_channels(0, lambda channel, message: None)


async def test_a_channel_without_permission_is_refused() -> None:
    with Server() as server:
        server.command("ACL", "SETUSER", "crumb", "on", ">password", "~*", "resetchannels", "+@all")
        address = Address(server.host, server.port, username="crumb", password="password")
        connection = StandaloneConnection(address, lanes=1)
        with pytest.raises(CommandRefused, match="NOPERM"):
            await connection.listen(b"channel", lambda message: None)
        channels = await connection.open_channels(0, lambda channel, message: None)
        channels.subscribe(b"channel")
        with pytest.raises(CommandRefused, match="NOPERM"):
            await channels.wait_lost()
        await connection.close()


async def test_channels_can_be_added_and_removed(standalone_server: Server) -> None:
    connection = StandaloneConnection(parse_address(standalone_server.url), lanes=1)
    heard: list[tuple[bytes, bytes | None]] = []
    channels = await connection.open_channels(0, lambda channel, message: heard.append((channel, message)))
    for channel in (b"one", b"two", b"one"):
        channels.subscribe(channel)
    await eventually(lambda: _is(len(heard) == 3), "not subscribed")
    channels.unsubscribe(b"one")
    await eventually(
        lambda: _is_not(connection.call(0, b"SPUBLISH", b"one", b"unheard")), "it is still subscribed"
    )
    heard.clear()
    await connection.call(0, b"SPUBLISH", b"two", b"heard")
    await eventually(lambda: _is(bool(heard)), "nothing heard")
    assert heard == [(b"two", b"heard")]
    channels.close()
    with pytest.raises(StoreUnavailable):
        await channels.wait_lost()
    await connection.close()


async def _is(value: bool) -> bool:
    return value


async def _is_not(value: Awaitable[Any]) -> bool:
    return not await value


async def test_the_channel_of_another_node_ends_the_link(cluster_server: Cluster) -> None:
    cluster_server.flush()
    store = await Store.open(cluster_server.url)
    channels = await store.connection.open_channels(0, lambda channel, message: None)
    elsewhere = store.connection.node_lanes()[1]
    channels.subscribe(store.keys.events(elsewhere))
    with pytest.raises(StoreUnavailable, match="MOVED"):
        await channels.wait_lost()
    channels.close()
    await store.close()


async def test_node_lanes_contain_one_lane_per_server(
    standalone_server: Server, cluster_server: Cluster
) -> None:
    cluster_server.flush()
    store = await Store.open(cluster_server.url)
    lanes = store.connection.node_lanes()
    ports = [(await server_info(store.connection, lane))["tcp_port"] for lane in lanes]
    assert sorted(map(int, ports)) == sorted(node.port for node in cluster_server.primaries())
    await store.close()
    assert StandaloneConnection(parse_address(standalone_server.url), lanes=4).node_lanes() == [0]


async def test_many_calls_of_a_script_that_is_not_loaded_take_few_round_trips(
    standalone_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(standalone_server.url, lanes=256)
    await store.connection.call(0, b"SCRIPT", b"FLUSH")
    run, runs = store.connection.run, 0

    async def counted(*args: Any) -> Any:
        nonlocal runs
        runs += 1
        return await run(*args)

    monkeypatch.setattr(store.connection, "run", counted)
    script = Script("sizes")
    calls = [(lane, ScriptCall(script, [b"%d" % lane], [])) for lane in range(256)]
    assert await store.connection.call_all(calls) == [0] * 256
    assert runs == 1
    await store.close()
