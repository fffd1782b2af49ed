"""How the store talks to its server: one link to a standalone server, or one per node of a cluster.

Every command names the lane it is for. A standalone server ignores that; on a cluster the lane decides
the node, because a lane's keys share one hash slot.
"""

from __future__ import annotations

import asyncio
import ssl
from hashlib import sha1
from importlib.resources import files
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from breadcrumbs.runtime.errors import StartupError, StoreError, StoreFull, StoreUnavailable
from breadcrumbs.runtime.multiplexer import Address, Command, LinkLost, Multiplexer, ReplyError

_UNAVAILABLE = frozenset(
    "LOADING CLUSTERDOWN MASTERDOWN READONLY TRYAGAIN NOREPLICAS MISCONF BUSY NOAUTH WRONGPASS NOPERM".split()
)
_MOVED = frozenset(("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN"))


class Script:
    """A Lua file from `runtime/lua`; what it takes and gives is in its header."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = files("breadcrumbs.runtime").joinpath(f"lua/{name}.lua").read_bytes()
        # SHA-1 is how the server names scripts; nothing is protected by it.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


class Connection(Protocol):
    """What the store needs of a server."""

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any: ...

    async def call_all(self, commands: list[tuple[int, Command]]) -> list[Any]:
        """Run commands (each with its lane) in one round trip per node; the first error is raised."""
        ...

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any: ...

    def reader_groups(self) -> list[list[int]]:
        """The lanes that one blocking read can cover together."""
        ...

    async def blocking(self, lane: int) -> BlockingLink: ...

    async def close(self) -> None: ...


class BlockingLink(Protocol):
    """A link of its own for a reader that waits on the server."""

    async def call(self, command: Command) -> Any: ...

    async def close(self) -> None: ...


_T = TypeVar("_T")


def as_store_error(error: LinkLost | ReplyError) -> Exception:
    if isinstance(error, LinkLost):
        return StoreUnavailable(str(error))
    if error.code == "OOM":
        return StoreFull("the Redis server has no memory left: raise its maxmemory, or delete old breadcrumbs")
    if error.code in _UNAVAILABLE:
        return StoreUnavailable(str(error))
    return StoreError(str(error))


class StandaloneConnection:
    """One server."""

    def __init__(self, address: Address, *, lanes: int) -> None:
        self.address = address
        self._lanes = lanes
        self._link = Multiplexer(address)

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._link.call(command)
        except (LinkLost, ReplyError) as error:
            raise as_store_error(error) from error

    async def call_all(self, commands: list[tuple[int, Command]]) -> list[Any]:
        try:
            return _or_raise(await self._link.call_all([command for _, command in commands]))
        except LinkLost as error:
            raise as_store_error(error) from error

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        try:
            return await self._link.call((b"EVALSHA", script.sha, len(keys), *keys, *args))
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise as_store_error(error) from error
        except LinkLost as error:
            raise as_store_error(error) from error
        # First use, a restarted server or a promoted replica: EVAL runs it and makes the next EVALSHA work.
        return await self.call(lane, b"EVAL", script.source, len(keys), *keys, *args)

    def reader_groups(self) -> list[list[int]]:
        return [list(range(self._lanes))]

    async def blocking(self, lane: int) -> BlockingLink:
        return Multiplexer(self.address, reply_timeout=None)

    async def close(self) -> None:
        await self._link.close()


class ClusterConnection:
    """A Redis Cluster: one link per node, redis-py for the map and for whatever is being moved."""

    def __init__(self, cluster: Any, address: Address, slots: list[int]) -> None:
        self._cluster = cluster
        self._address = address
        self._slots = slots
        self._links: dict[tuple[str, int], Multiplexer] = {}

    @classmethod
    async def open(cls, url: str, prefixes: list[bytes]) -> ClusterConnection:
        from redis.asyncio.cluster import RedisCluster
        from redis.crc import key_slot

        plain = url.replace("+cluster://", "://", 1)
        cluster = RedisCluster.from_url(plain, protocol=2)
        try:
            await cluster.initialize()
        except Exception as error:
            await cluster.aclose()
            raise StoreUnavailable(f"cannot reach the cluster at {_without_password(url)}: {error}") from error
        return cls(cluster, parse_address(plain), [key_slot(prefix) for prefix in prefixes])

    def _link(self, lane: int) -> Multiplexer:
        node = self._cluster.nodes_manager.get_node_from_slot(self._slots[lane])
        place = (node.host, node.port)
        link = self._links.get(place)
        if link is None:
            link = self._links[place] = Multiplexer(self._address_of(node))
        return link

    def _address_of(self, node: Any) -> Address:
        known = self._address
        return Address(node.host, node.port, "", known.username, known.password, 0, known.tls)

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._link(lane).call(command)
        except ReplyError as error:
            if error.code not in _MOVED:
                raise as_store_error(error) from error
        except LinkLost:
            pass
        except Exception as error:  # redis-py: a slot nobody serves
            raise StoreUnavailable(str(error)) from error
        return await self._follow(command)

    async def call_all(self, commands: list[tuple[int, Command]]) -> list[Any]:
        by_link: dict[Multiplexer, list[int]] = {}
        for place, (lane, _) in enumerate(commands):
            by_link.setdefault(self._link(lane), []).append(place)
        replies: list[Any] = [None] * len(commands)

        async def ask(link: Multiplexer, places: list[int]) -> None:
            try:
                answers = await link.call_all([commands[place][1] for place in places])
            except LinkLost as error:
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                moved = isinstance(answer, LinkLost) or (isinstance(answer, ReplyError) and answer.code in _MOVED)
                replies[place] = await self._follow(commands[place][1]) if moved else answer

        async with asyncio.TaskGroup() as group:
            for link, places in by_link.items():
                group.create_task(ask(link, places))
        return _or_raise(replies)

    async def _follow(self, command: Command) -> Any:
        """The slow way: redis-py follows redirections, waits for a failover and learns the new map."""
        from redis.exceptions import RedisError, ResponseError

        try:
            return await self._cluster.execute_command(*command)
        except ResponseError as error:
            raise as_store_error(ReplyError(f"{getattr(error, 'status_code', '') or ''}{error}")) from error
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the cluster does not answer: {error}") from error

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        try:
            return await self._link(lane).call((b"EVALSHA", script.sha, len(keys), *keys, *args))
        except ReplyError as error:
            if error.code != "NOSCRIPT" and error.code not in _MOVED:
                raise as_store_error(error) from error
        except LinkLost:
            pass
        return await self.call(lane, b"EVAL", script.source, len(keys), *keys, *args)

    def reader_groups(self) -> list[list[int]]:
        return [[lane] for lane in range(len(self._slots))]

    async def blocking(self, lane: int) -> BlockingLink:
        node = self._cluster.nodes_manager.get_node_from_slot(self._slots[lane])
        return _ClusterBlockingLink(Multiplexer(self._address_of(node), reply_timeout=None), self._cluster)

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
        await self._cluster.aclose()


class _ClusterBlockingLink:
    """A reader's link; when its lane has moved away it says so as a lost link, and the reader comes again."""

    def __init__(self, link: Multiplexer, cluster: Any) -> None:
        self._link = link
        self._cluster = cluster

    async def call(self, command: Command) -> Any:
        try:
            return await self._link.call(command)
        except ReplyError as error:
            if error.code not in _MOVED:
                raise
            await self._cluster.nodes_manager.initialize()
            raise LinkLost("the lane has moved to another node") from error

    async def close(self) -> None:
        await self._link.close()


def _or_raise(replies: list[_T]) -> list[_T]:
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise as_store_error(reply) from reply
    return replies


def parse_address(url: str) -> Address:
    """Read a redis://, rediss:// or unix:// URL as redis-py does."""
    from redis.asyncio.connection import parse_url

    try:
        options = dict(parse_url(url))
    except ValueError as error:
        raise StartupError(
            f"{_without_password(url)!r} is not a Redis address: {error}. Use redis://host:6379/0, "
            "rediss:// for TLS, unix:///path or redis+cluster://host:port"
        ) from error
    tls = None
    if urlsplit(url).scheme == "rediss":
        tls = ssl.create_default_context(cafile=_text(options.get("ssl_ca_certs")))
        if options.get("ssl_cert_reqs") == "none":
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if certificate := _text(options.get("ssl_certfile")):
            tls.load_cert_chain(certificate, _text(options.get("ssl_keyfile")))
    return Address(
        host=_text(options.get("host")) or "127.0.0.1",
        port=int(options.get("port") or 6379),
        path=_text(options.get("path")) or "",
        username=_text(options.get("username")),
        password=_text(options.get("password")),
        database=int(options.get("db") or 0),
        tls=tls,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":…@", 1)
