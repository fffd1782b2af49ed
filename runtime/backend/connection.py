"""How the store talks to its server: one link to a standalone server, or one per node of a cluster.

Every command names the lane it is for. A standalone server ignores that; on a cluster the lane decides
the node, because a lane's keys share one hash slot.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from breadcrumbs.runtime.backend.link import Address, Command, LinkLost, Multiplexer, ReplyError
from breadcrumbs.runtime.backend.pubsub import Heard, listen
from breadcrumbs.runtime.errors import StartupError, StoreError, StoreFull, StoreUnavailable

_UNAVAILABLE = frozenset((
    "LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "NOREPLICAS", "MISCONF", "BUSY", "NOAUTH",
    "WRONGPASS", "NOPERM",
))  # fmt: skip
_REFUSED = frozenset(("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN"))
"""What a node of a cluster says instead of carrying a command out."""

_PATIENCE = 3.0
"""For how many seconds a refused command is sent again; lanes on the move and elections take about that."""

_PAUSE = 0.05

_Node: TypeAlias = tuple[str, int]


class Script:
    """A Lua file from `runtime/store/lua`; what it takes and gives is in its header."""

    def __init__(self, name: str, *, inside: str | Sequence[str] = ()) -> None:
        self.name = name
        self.source = _read_script(name)
        for wrapper in (inside,) if isinstance(inside, str) else inside:
            flags, _, body = self.source.partition(b"\n")
            around = _read_script(wrapper).partition(b"\n")[2]
            self.source = flags + b"\n" + around.replace(b"-- the other script", body)
        self.read_only = self.source.startswith(b"#!lua flags=no-writes\n")
        # SHA-1 is how the server names scripts; nothing is protected by it.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class Run:
    """A script that only reads, as one of several commands that leave together."""

    script: Script
    keys: list[bytes]
    args: list[bytes | str | int]

    @property
    def command(self) -> Command:
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


def _read_script(name: str) -> bytes:
    return files("breadcrumbs.runtime.store").joinpath(f"lua/{name}.lua").read_bytes()


class Connection(Protocol):
    """What the store needs of a server."""

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any: ...

    async def call_all(self, commands: Sequence[tuple[int, Command | Run]]) -> list[Any]:
        """Run commands (each with its lane) in one round trip per node; the first error is raised."""
        ...

    async def run(
        self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]
    ) -> Any: ...

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        """Send a command without waiting for its reply, before all that is sent later. It may get lost."""
        ...

    def reader_groups(self) -> list[list[int]]:
        """The lanes that one command can cover together."""
        ...

    async def blocking(self, lane: int) -> BlockingLink: ...

    async def listen(self, channel: bytes, heard: Heard) -> None:
        """Call `heard` at once with everything published on a channel from now on; ends with `LinkLost`."""
        ...

    async def close(self) -> None: ...


class BlockingLink(Protocol):
    """A link of its own for a reader that waits on the server."""

    async def call(self, command: Command) -> Any: ...

    async def close(self) -> None: ...


# Readers wait for five seconds at most; a server that says nothing for longer is gone (a power cut, say).
_BLOCKING_TIMEOUT = 10.0

_T = TypeVar("_T")


def as_store_error(error: LinkLost | ReplyError) -> Exception:
    if isinstance(error, LinkLost):
        return StoreUnavailable(str(error))
    if error.code == "OOM":
        return StoreFull(
            "the Redis server has no memory left: raise its maxmemory, or delete old breadcrumbs"
        )
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

    async def call_all(self, commands: Sequence[tuple[int, Command | Run]]) -> list[Any]:
        try:
            replies = await self._link.call_all([_plain(command) for _, command in commands])
        except (LinkLost, ReplyError) as error:  # an error reply here is about the login
            raise as_store_error(error) from error
        for place, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and isinstance(command := commands[place][1], Run):
                replies[place] = await self.run(
                    commands[place][0], command.script, command.keys, command.args
                )
        return _or_raise(replies)

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        try:
            return await self._link.call(Run(script, keys, args).command)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise as_store_error(error) from error
        except LinkLost as error:
            raise as_store_error(error) from error
        # First use, a restarted server or a promoted replica: EVAL runs it and makes the next EVALSHA work.
        return await self.call(lane, b"EVAL", script.source, len(keys), *keys, *args)

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        self._link.post(command)

    def reader_groups(self) -> list[list[int]]:
        return [list(range(self._lanes))]

    async def blocking(self, lane: int) -> BlockingLink:
        return Multiplexer(self.address, reply_timeout=_BLOCKING_TIMEOUT)

    async def listen(self, channel: bytes, heard: Heard) -> None:
        await listen(self.address, channel, heard)

    async def close(self) -> None:
        await self._link.close()


class ClusterConnection:
    """A Redis Cluster: one link per node, and a map of which node serves which lane.

    A command that a node refuses (it does not serve the slot any more, or not yet) was not carried out, and
    is sent again where it belongs. A link that broke is left to the caller, who alone knows whether the
    command may run twice; the map is read again, so that the next try finds whoever took over.
    """

    def __init__(self, address: Address, slots: list[int]) -> None:
        self._address = address
        self._slots = slots
        self._links: dict[_Node, Multiplexer] = {}
        self._map: dict[int, _Node] = {}
        self._nodes: set[_Node] = {(address.host, address.port)}
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str, prefixes: list[bytes]) -> ClusterConnection:
        from redis.crc import key_slot

        connection = cls(
            parse_address(url.replace("+cluster://", "://", 1)), [key_slot(prefix) for prefix in prefixes]
        )
        try:
            await connection._read_map()
        except StoreUnavailable as error:
            await connection.close()
            raise StoreUnavailable(
                f"cannot reach the cluster at {_without_password(url)}: {error}"
            ) from error
        return connection

    # The map

    async def _read_map(self) -> None:
        """Ask the nodes we know who serves what; once for everybody who wants to know at the same time."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._ask_for_map())
            self._reading.add_done_callback(self._map_read)
        await asyncio.shield(self._reading)

    def _map_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # nobody may be waiting for it any more

    async def _ask_for_map(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        last: Exception | None = None
        # Nodes without a link are asked last: one that broke may well be the reason for asking.
        for node in sorted(self._nodes, key=lambda node: not self._link(node).connected):
            try:
                ranges = await self._link(node).call((b"CLUSTER", b"SLOTS"))
            except (LinkLost, ReplyError) as error:
                last = error
                continue
            served = {
                slot: (primary[0].decode() or node[0], primary[1])
                for first, end, primary, *_ in ranges
                for slot in self._slots
                if first <= slot <= end
            }
            self._map |= served
            if len(served) == len(set(self._slots)):
                members = {
                    (host.decode() or node[0], port) for _, _, *nodes in ranges for host, port, *_ in nodes
                }
                self._nodes = members | {(self._address.host, self._address.port)}
                return
            last = ReplyError("CLUSTERDOWN not all slots are served")
        raise StoreUnavailable(f"no node of the cluster has a complete map: {last}") from last

    def _link(self, node: _Node) -> Multiplexer:
        link = self._links.get(node)
        if link is None:
            if self._closed:
                raise LinkLost("the store is closed")
            known = self._address
            address = Address(node[0], node[1], "", known.username, known.password, 0, known.tls)
            link = self._links[node] = Multiplexer(address)
        return link

    # Commands

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._send(lane, command)
        except ReplyError as error:
            raise as_store_error(error) from error

    async def call_all(self, commands: Sequence[tuple[int, Command | Run]]) -> list[Any]:
        by_node: dict[_Node, list[int]] = {}
        for place, (lane, _) in enumerate(commands):
            by_node.setdefault(self._map[self._slots[lane]], []).append(place)
        replies: list[Any] = [None] * len(commands)

        async def ask(node: _Node, places: list[int]) -> None:
            answers = await self._unless_lost(node, [_plain(commands[place][1]) for place in places])
            for place, answer in zip(places, answers, strict=True):
                lane, command = commands[place]
                if isinstance(answer, ReplyError):
                    if isinstance(command, Run):
                        answer = await self.run(lane, command.script, command.keys, command.args)
                    elif answer.code in _REFUSED:
                        answer = await self.call(lane, *command)
                replies[place] = answer

        done = await asyncio.gather(*(ask(*group) for group in by_node.items()), return_exceptions=True)
        for failure in done:
            if isinstance(failure, ReplyError):  # about the login
                raise as_store_error(failure) from failure
            if failure is not None:
                raise failure
        return _or_raise(replies)

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        retry_split = script.read_only
        try:
            try:
                return await self._send(lane, Run(script, keys, args).command, retry_split=retry_split)
            except ReplyError as error:
                if error.code != "NOSCRIPT":
                    raise
            return await self._send(
                lane, (b"EVAL", script.source, len(keys), *keys, *args), retry_split=retry_split
            )
        except ReplyError as error:
            raise as_store_error(error) from error

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        self._link(self._map[self._slots[lane]]).post(command)

    async def _send(self, lane: int, command: Command, *, retry_split: bool = False) -> Any:
        """Send a command to whoever serves its lane, following redirections for as long as is bearable."""
        slot = self._slots[lane]
        node, asking = self._map[slot], False
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        for redirections in count():
            # Asking is good for the one command that follows it on the same link.
            commands = [(b"ASKING",), command] if asking else [command]
            reply = (await self._unless_lost(node, commands))[-1]
            if not isinstance(reply, ReplyError):
                return reply
            # A script that reads keys it could not name may find that some went ahead to another node.
            split = retry_split and "non local key" in str(reply)
            if reply.code not in _REFUSED and not split:
                raise reply
            if asyncio.get_running_loop().time() > deadline:
                raise StoreUnavailable(str(reply)) from reply
            if reply.code in ("MOVED", "ASK"):
                asking = reply.code == "ASK"
                moved, node = _redirection(str(reply), node)
                if not asking and moved == slot:
                    self._map[slot] = node
                if redirections > 1:  # they do not agree yet
                    await asyncio.sleep(_PAUSE)
                continue
            await asyncio.sleep(_PAUSE)
            if reply.code != "TRYAGAIN" and not split:
                try:
                    await self._read_map()
                except StoreUnavailable:
                    pass  # an election takes its time
            node, asking = self._map[slot], False
        raise AssertionError("unreachable")

    async def _unless_lost(self, node: _Node, commands: list[Command]) -> list[Any]:
        try:
            return await self._link(node).call_all(commands)
        except LinkLost as error:
            try:
                await self._read_map()
            except StoreUnavailable:
                pass  # what broke first says more
            raise as_store_error(error) from error

    def reader_groups(self) -> list[list[int]]:
        return [[lane] for lane in range(len(self._slots))]

    async def blocking(self, lane: int) -> BlockingLink:
        return _ClusterBlockingLink(self, self._link(self._map[self._slots[lane]]).address)

    async def listen(self, channel: bytes, heard: Heard) -> None:
        # Published on any node, heard on every node.
        await listen(self._link(self._map[self._slots[0]]).address, channel, heard)

    async def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            await link.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])


class _ClusterBlockingLink:
    """A reader's link; when its lane has moved away it says so as a lost link, and the reader comes again."""

    def __init__(self, cluster: ClusterConnection, address: Address) -> None:
        self._cluster = cluster
        self._link = Multiplexer(address, reply_timeout=_BLOCKING_TIMEOUT)

    async def call(self, command: Command) -> Any:
        try:
            return await self._link.call(command)
        except (LinkLost, ReplyError) as error:
            if isinstance(error, ReplyError) and error.code not in _REFUSED:
                raise
            try:
                await self._cluster._read_map()
            except StoreUnavailable:
                pass  # the reader comes again anyway
            raise LinkLost(f"the lane is not served here any more: {error}") from error

    async def close(self) -> None:
        await self._link.close()


def _plain(command: Command | Run) -> Command:
    return command.command if isinstance(command, Run) else command


def _redirection(reply: str, asked: _Node) -> tuple[int, _Node]:
    """Read `MOVED 3999 127.0.0.1:6381` or `ASK …`; without a host it is the host that said so."""
    _, slot, place = reply.split(" ")[:3]
    host, _, port = place.rpartition(":")
    return int(slot), (host or asked[0], int(port))


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
        port=int(_text(options.get("port")) or 6379),
        path=_text(options.get("path")) or "",
        username=_text(options.get("username")),
        password=_text(options.get("password")),
        database=int(_text(options.get("db")) or 0),
        tls=tls,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":…@", 1)
