"""Connection to a Redis Cluster: one link per node, and a slot map.

A node that does not serve a slot refuses the command without executing it. Such a command is sent again, to the
node that serves the slot. A command on a broken link is not sent again: only the caller can decide whether it may run
twice. The slot map is refreshed after a broken link, so that the caller's next attempt reaches the new primary.

Each node can lose its data alone. So each lane has a marker with the identity of the store. A link is verified by the
markers of the lanes that its node serves: when it opens, and when the node gets another lane. If one marker is missing,
no node is used until all markers are back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

import anyio

from breadcrumbs.runtime.backend.address import Address, hide_password, parse_address
from breadcrumbs.runtime.backend.connection import (
    LaneChannels,
    Script,
    ScriptCall,
    raise_first_error,
    to_command,
    to_store_error,
)
from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import (
    ChannelHandler,
    Command,
    LinkLost,
    MessageHandler,
    Multiplexer,
    ReplyError,
    SendAll,
    ShardLink,
    subscribe,
)
from breadcrumbs.runtime.errors import StoreReplaced, StoreUnavailable

_NOT_EXECUTED_CODES: Final = frozenset((
    "MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN",
))  # fmt: skip
"""Error replies of a node that did not execute the command. It is safe to send the command again."""

_RETRY_SECONDS: Final = 3.0
"""Seconds for which such a command is retried. Slot migrations and elections take about that long."""

_RETRY_PAUSE: Final = 0.05  # seconds

_FULL_CHECK_SECONDS: Final = 0.5
"""Seconds between two checks of all nodes while the store is lost."""

_NodeAddress: TypeAlias = tuple[str, int]
"""Host and port."""


class ClusterConnection:
    """A `Connection` to a Redis Cluster."""

    def __init__(self, address: Address, slots: list[int]) -> None:
        """Create a connection without a slot map. `slots`: the hash slot of each lane."""
        self._address = address
        self._slots = slots
        self._links: dict[_NodeAddress, Multiplexer] = {}
        self._slot_map: dict[int, _NodeAddress] = {}
        self._nodes: set[_NodeAddress] = {(address.host, address.port)}
        self._refresh: asyncio.Task[None] | None = None
        self._closed = False
        self._identity: StoreIdentity | None = None
        self._loss: str | None = None
        """Reason why no node is used: the text of a `StoreReplaced`. None: no loss is known."""
        self._next_full_check = 0.0

    @classmethod
    async def open(cls, url: str, prefixes: list[bytes]) -> ClusterConnection:
        """Connect and read the slot map. `prefixes`: the key prefix of each lane, with its hash tag."""
        from redis.crc import key_slot

        address = parse_address(url.replace("+cluster://", "://", 1))
        connection = cls(address, [key_slot(prefix) for prefix in prefixes])
        try:
            await connection.refresh_slot_map()
        except StoreUnavailable as error:
            await connection.close()
            raise StoreUnavailable(f"cannot reach the cluster at {hide_password(url)}: {error}") from error
        return connection

    # Commands

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        try:
            return await self._send(lane, command)
        except ReplyError as error:
            raise to_store_error(error) from error

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        by_node: dict[_NodeAddress, list[int]] = {}
        for index, (lane, _) in enumerate(commands):
            by_node.setdefault(self._node_of(lane), []).append(index)
        replies: list[Any] = [None] * len(commands)

        async def call_group(node: _NodeAddress, indexes: list[int]) -> None:
            group = [commands[index] for index in indexes]
            for index, reply in zip(indexes, await self._call_group(node, group), strict=True):
                replies[index] = reply

        # Not an anyio task group: three tasks take 43 µs with `gather` and 135 µs in such a group (uvloop).
        results = await asyncio.gather(
            *(call_group(node, indexes) for node, indexes in by_node.items()), return_exceptions=True
        )
        for failure in results:
            if isinstance(failure, ReplyError):  # from the login
                raise to_store_error(failure) from failure
            if failure is not None:
                raise failure
        return raise_first_error(replies)

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        retry_split = script.read_only
        try:
            try:
                return await self._send(lane, ScriptCall(script, keys, args).command, retry_split=retry_split)
            except ReplyError as error:
                if error.code != "NOSCRIPT":
                    raise
            eval_command = (b"EVAL", script.source, len(keys), *keys, *args)
            return await self._send(lane, eval_command, retry_split=retry_split)
        except ReplyError as error:
            raise to_store_error(error) from error

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        if (link := self._links.get(self._node_of(lane))) is not None:
            link.post(command)

    async def _call_group(
        self, node: _NodeAddress, group: list[tuple[int, Command | ScriptCall]]
    ) -> list[Any]:
        """Send commands to one node together. Retry those that it did not execute.

        Script calls are retried after any error, because they may run twice. The commands of one lane are retried in
        their order. Lanes are independent, so that one lane that cannot be reached does not delay the others.
        """
        replies = await self._call_node(node, [to_command(command) for _, command in group])
        failed: dict[int, list[int]] = {}
        for index, (lane, command) in enumerate(group):
            reply = replies[index]
            if isinstance(reply, ReplyError) and (
                isinstance(command, ScriptCall) or reply.code in _NOT_EXECUTED_CODES
            ):
                failed.setdefault(lane, []).append(index)

        async def retry(lane: int, indexes: list[int]) -> None:
            for index in indexes:
                command = group[index][1]
                if isinstance(command, ScriptCall):
                    replies[index] = await self.run(lane, command.script, command.keys, command.args)
                else:
                    replies[index] = await self.call(lane, *command)

        if failed:
            results = await asyncio.gather(
                *(retry(lane, indexes) for lane, indexes in failed.items()), return_exceptions=True
            )
            for failure in results:
                if failure is not None:
                    raise failure
        return replies

    async def _send(self, lane: int, command: Command, *, retry_split: bool = False) -> Any:
        """Send a command to the node of its lane. Follow redirections for `_RETRY_SECONDS`.

        `retry_split`: also retry if only some keys of the lane have moved. A script that reads undeclared keys fails
        for this reason while it runs, so the retry is safe only for read-only scripts.
        """
        slot = self._slots[lane]
        node, asking = self._slot_map[slot], False
        deadline = time.monotonic() + _RETRY_SECONDS
        for redirections in count():
            # ASKING applies to the next command on the same link.
            commands = [(b"ASKING",), command] if asking else [command]
            reply = (await self._call_node(node, commands))[-1]
            if not isinstance(reply, ReplyError):
                return reply
            is_split = retry_split and "non local key" in str(reply)
            if reply.code not in _NOT_EXECUTED_CODES and not is_split:
                raise reply
            if time.monotonic() > deadline:
                raise StoreUnavailable(str(reply)) from reply
            if reply.code in ("MOVED", "ASK"):
                node, asking = self._redirect(slot, node, reply), reply.code == "ASK"
                if redirections > 1:  # the nodes do not agree yet about the slot
                    await anyio.sleep(_RETRY_PAUSE)
                continue
            await anyio.sleep(_RETRY_PAUSE)
            if reply.code != "TRYAGAIN" and not is_split:
                await self.try_refresh_slot_map()
            node, asking = self._slot_map[slot], False
        raise AssertionError("unreachable")

    def _redirect(self, slot: int, replied_by: _NodeAddress, reply: ReplyError) -> _NodeAddress:
        """Return the node that a MOVED or ASK reply names. MOVED also updates the slot map."""
        moved_slot, node = _parse_redirection(str(reply), replied_by)
        if reply.code == "MOVED" and moved_slot == slot:
            self._update_slot_map({slot: node})
        return node

    async def _call_node(self, node: _NodeAddress, commands: list[Command]) -> list[Any]:
        """Send commands to one node. Error replies are returned at their positions."""
        try:
            return await self._link(node).call_all(commands)
        except LinkLost as error:
            await self.try_refresh_slot_map()
            raise to_store_error(error) from error
        except ReplyError as error:  # from the login or the verification
            if error.code not in _NOT_EXECUTED_CODES:
                raise
            return [error] * len(commands)

    # Readers

    def reader_groups(self) -> list[list[int]]:
        return [[lane] for lane in range(len(self._slots))]

    def node_lanes(self) -> list[int]:
        lanes: dict[_NodeAddress, int] = {}
        for lane in range(len(self._slots)):
            lanes.setdefault(self._node_of(lane), lane)
        return list(lanes.values())

    def node_of(self, lane: int) -> object:
        return self._node_of(lane)

    async def open_channels(self, lane: int, on_message: ChannelHandler) -> LaneChannels:
        node = self._node_of(lane)
        try:
            link = await ShardLink.open(self._node_address(node), on_message, partial(self._verify, node))
        except (LinkLost, ReplyError) as error:
            await self.try_refresh_slot_map()
            raise to_store_error(error) from error
        return _ClusterChannels(self, link)

    async def listen(self, channel: bytes, on_message: MessageHandler) -> None:
        # A cluster delivers each message on every node, so any node can be used.
        node = self._node_of(0)
        try:
            await subscribe(self._node_address(node), channel, on_message, partial(self._verify, node))
        except (LinkLost, ReplyError) as error:
            raise to_store_error(error) from error

    async def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            await link.close()
        if self._refresh is not None:
            await asyncio.wait([self._refresh])

    # Nodes

    def _node_of(self, lane: int) -> _NodeAddress:
        return self._slot_map[self._slots[lane]]

    def _link(self, node: _NodeAddress) -> Multiplexer:
        link = self._links.get(node)
        if link is None:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            link = self._links[node] = Multiplexer(
                self._node_address(node), verify=partial(self._verify, node)
            )
        return link

    def _node_address(self, node: _NodeAddress) -> Address:
        return replace(self._address, host=node[0], port=node[1], path="", database=0)

    async def refresh_slot_map(self) -> None:
        """Read the slot map from the cluster. Concurrent calls share one read."""
        # An asyncio task, because the read must go on if a caller is cancelled: others can wait for it too.
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._read_slot_map())
            self._refresh.add_done_callback(self._end_refresh)
        await asyncio.shield(self._refresh)

    async def try_refresh_slot_map(self) -> None:
        """Refresh the slot map. Keep the old one if no node has it, for example during an election."""
        try:
            await self.refresh_slot_map()
        except StoreUnavailable:
            pass

    def _end_refresh(self, refresh: asyncio.Task[None]) -> None:
        self._refresh = None
        if not refresh.cancelled():
            refresh.exception()  # mark it as retrieved, in case all callers were cancelled

    async def _read_slot_map(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        last_error: Exception | None = None
        # Connected nodes first, because a broken link is a common reason for the refresh.
        for node in sorted(self._nodes, key=lambda node: not self._link(node).connected):
            try:
                # A probe, because the map is also needed to find out whether a lost store is back.
                (ranges,) = await self._link(node).probe([(b"CLUSTER", b"SLOTS")])
            except (LinkLost, ReplyError) as error:
                last_error = error
                continue
            if isinstance(ranges, ReplyError):
                last_error = ranges
                continue
            if self._apply_slot_ranges(ranges, node):
                return
            last_error = ReplyError("CLUSTERDOWN not all slots are served")
        raise StoreUnavailable(
            f"no node of the cluster has a complete slot map: {last_error}"
        ) from last_error

    def _apply_slot_ranges(self, ranges: list[Any], replied_by: _NodeAddress) -> bool:
        """Update the slot map from a CLUSTER SLOTS reply. Returns whether the reply covers every lane."""

        def parse_node(entry: list[Any]) -> _NodeAddress:
            return entry[0].decode() or replied_by[0], entry[1]  # an empty host is that of the replying node

        served = {
            slot: parse_node(primary)
            for first, last, primary, *_ in ranges
            for slot in self._slots
            if first <= slot <= last
        }
        self._update_slot_map(served)
        if len(served) < len(set(self._slots)):
            return False
        members = {parse_node(entry) for _, _, *entries in ranges for entry in entries}
        self._nodes = members | {(self._address.host, self._address.port)}
        return True

    def _update_slot_map(self, served: dict[int, _NodeAddress]) -> None:
        """Change the nodes of some slots. A node that gets a slot is verified again before its next command."""
        for slot, node in served.items():
            if self._slot_map.get(slot) != node and node in self._links:
                self._links[node].recheck()
        self._slot_map |= served

    # Identity

    def protect(self, identity: StoreIdentity) -> None:
        self._identity = identity

    async def verify(self) -> None:
        if (identity := self._identity) is None:
            return
        if self._loss is not None:
            await self._check_all_nodes(identity)
        lanes = self.node_lanes()
        replies = await self.call_all([(lane, identity.read_marker(lane)) for lane in lanes])
        with self._noting_loss():
            for lane, found in zip(lanes, replies, strict=True):
                identity.check_marker(lane, found)
            identity.check_meta(await self.call(0, *identity.read_meta))

    async def _verify(self, node: _NodeAddress, send_all: SendAll) -> None:
        """Verify a link to a node. Raises `StoreReplaced` if this node, or another one, has lost its data."""
        if (identity := self._identity) is None:
            return
        if self._loss is not None:
            await self._check_all_nodes(identity)
        with self._noting_loss():
            await self._check_markers(identity, node, send_all)

    async def _check_all_nodes(self, identity: StoreIdentity) -> None:
        """Raise the known loss again, unless all markers are back."""
        known = self._loss
        if time.monotonic() >= self._next_full_check:
            self._next_full_check = time.monotonic() + _FULL_CHECK_SECONDS
            try:
                await self._read_slot_map()  # another node can serve the lane by now
                for node in set(self._slot_map.values()):
                    await self._check_markers(identity, node, self._link(node).probe)
                if self._loss is known:  # else another loss was noticed during the check
                    self._loss = None
            except (LinkLost, ReplyError) as error:
                raise to_store_error(error) from error
        if self._loss is not None:
            raise StoreReplaced(self._loss)

    async def _check_markers(self, identity: StoreIdentity, node: _NodeAddress, send_all: SendAll) -> None:
        """Check the markers of the lanes that a node serves."""
        lanes = [lane for lane in range(len(self._slots)) if self._slot_map.get(self._slots[lane]) == node]
        for lane, found in zip(
            lanes, await send_all([identity.read_marker(lane) for lane in lanes]), strict=True
        ):
            # Another node serves the lane, or gets it now. That node is verified when the slot map changes.
            if isinstance(found, ReplyError) and found.code in ("MOVED", "ASK"):
                continue
            identity.check_marker(lane, found)

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """Stop all links after a `StoreReplaced`."""
        try:
            yield
        except StoreReplaced as error:
            self._loss = str(error)
            self._next_full_check = time.monotonic() + _FULL_CHECK_SECONDS
            for link in self._links.values():
                link.recheck()
            raise


class _ClusterChannels:
    """Channels of one node. When they are lost, the slot map is refreshed, because a lane may have moved."""

    def __init__(self, cluster: ClusterConnection, link: ShardLink) -> None:
        self.subscribe = link.subscribe
        self.unsubscribe = link.unsubscribe
        self.close = link.close
        self._cluster = cluster
        self._link = link

    async def wait_lost(self) -> None:
        try:
            await self._link.wait_lost()
        except (LinkLost, ReplyError) as error:
            if isinstance(error, ReplyError) and error.code not in _NOT_EXECUTED_CODES:
                raise to_store_error(error) from error
            await self._cluster.try_refresh_slot_map()
            raise StoreUnavailable(f"the node no longer serves a lane: {error}") from error


def _parse_redirection(reply: str, replied_by: _NodeAddress) -> tuple[int, _NodeAddress]:
    """Parse `MOVED 3999 127.0.0.1:6381` or `ASK …`. An empty host is that of the replying node."""
    _, slot, address = reply.split(" ")[:3]
    host, _, port = address.rpartition(":")
    return int(slot), (host or replied_by[0], int(port))
