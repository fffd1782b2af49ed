"""The key schema. Nobody else spells a key.

A key is `<namespace>:{L<lane>}<kind><name>`. The part in braces is the cluster hash tag: all keys of a
lane live on one node, so one script can write them together. `<kind>` is one byte. Names are binary:
an owner is 16 bytes and an id is 16 bytes, and at most the last part of a name has a free length (where
there are two such parts, the first is preceded by its length). So no two names share a key, whatever
colons, braces, globs or spaces they hold, and no key is ever matched by a pattern.

Per breadcrumb
    b <owner> <id>                   string   the newest version: header, newline, two agents, JSON (see record.py)
    h <owner> <id>                   hash     older versions: version -> the same form; absent until the first update
    a <owner> <id>                   string   signpost in the id's home lane to the lane where it really lives (imports)
Per lane, indexes: sorted sets, member = the id's 16 bytes, score = created_at in microseconds
    x <owner> <len> <session> <schema>        the breadcrumbs of one schema in one session ("" = in none)
    s <owner> <schema>                        of one schema ("" = without one)
    t <owner> <tag>                           with one tag; session tags have none, `x` serves them
    u <owner>                                 updated at least once; score = updated_at. Never-updated ones
                                              are where their created_at is, so they need no entry here
    d <owner>                        set      the schema names that `s` has for this owner in this lane
Per session
    n <owner> <session>              hash     version, created, size (its breadcrumbs); closing: it is being deleted;
                                              entered: when it began in this store, only if an import set an older
                                              `created`; gone: when the last session of this name was deleted, only in
                                              stores written before `y` existed (expires by itself);
                                              retried: id and time of each turn that was asked for again, the last first
                                              state: bytes of its state, and bytes of removed names in it (create.lua);
                                              absent until the state is changed, and after an import
                                              after: the last deletion of this name as known when the session began,
                                              0 = none; absent if it began before this field existed
    z <owner> <session>              hash     state: name -> `<when it was set> <JSON>`; no JSON = removed;
                                              `!<who> ` before the JSON: not for everybody (see state.py).
                                              Names that begin with a null byte: its title, whose it is
    N <owner>                        zset     the sessions of an owner in this lane; score = last activity
    Z                                set      sessions that are being deleted: owner + session
    y <owner>                        zset     deleted sessions of an owner in this lane: member = name, score = time of
                                              the last deletion. Bounded: see deletions.lua. Member "" is the horizon:
                                              the newest deletion that was dropped. The key expires by itself
Per owner, where they have quotas
    Q <owner>                        hash     bytes (of all versions) and breadcrumbs of an owner in this lane
Per lane, the rest
    e                                stream   events; the id is `<microseconds>-0`, the same clock as the scores
    m                                string   events up to this time may have been trimmed away
    c                                string   the lane's clock: the last time it gave out
    q                                zset     what expires: member = owner + id, score = when, in microseconds
    i <owner> <digest>               string   an idempotency key: what it created (expires by itself)
    g <owner> <digest>               string   a budget of requests: when it is full again (expires by itself)
Per lane and kind of worker (context builders, agent runners)
    l <kind>                         string   who has the lane: fence number, since when, worker; expires by itself
    f <kind>                         string   the last fence number
    o <kind>                         string   low-water mark: every event up to it is done
    k <kind>                         zset     events above the mark that are done already
    r <kind>                         hash     event -> earlier attempts, and which worker runs it (attempts.py)
    D <kind>                         hash     event -> dead letter (JSON)
Lane 0 only: workers
    K                                set      kinds of workers; events are kept until each has seen them
    W <kind>                         zset     living workers; score = when they count as dead
    w <kind>                         set      workers whose connection shows whether they live (liveness.py)
Lane 0 only: small records of an owner
    A <owner>                        hash     agents: id -> JSON
    S <owner>                        hash     saved selectors: id -> JSON
    T                                hash     tenants: id -> JSON
    H                                hash     hygiene counters
Once per store
    <namespace>:meta                 hash     number of lanes, format, the secret that signs tokens and cursors
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.ids import lane_for

# The kinds that a survey of the whole store asks for by name.
BODY: Final = b"b"
SCHEMAS: Final = b"d"
UPDATED: Final = b"u"
IN_SESSION: Final = b"x"
SESSION: Final = b"n"
SESSIONS: Final = b"N"
INDEXES: Final = frozenset((b"x", b"s", b"t"))
"""Every one of these has its owner first, and its members are ids."""


class Keys:
    """Spells every key of one store."""

    def __init__(self, namespace: str, lanes: int) -> None:
        self.lanes = lanes
        self.meta = f"{namespace}:meta".encode()
        self._deltas = f"{namespace}:deltas".encode()
        self._liveness = f"{namespace}:liveness".encode()
        self._prefixes = [b"%s:{L%02d}" % (namespace.encode(), lane) for lane in range(lanes)]
        self._lane_of = {prefix: lane for lane, prefix in enumerate(self._prefixes)}

    def deltas(self) -> bytes:
        """A Pub/Sub channel, not a key: what may get lost."""
        return self._deltas

    def liveness(self, kind: str, worker: str) -> bytes:
        """A Pub/Sub channel, not a key: it has a subscriber as long as the worker lives."""
        return b"%s:%s:%s" % (self._liveness, kind.encode(), worker.encode())

    def prefix(self, lane: int) -> bytes:
        return self._prefixes[lane]

    def body(self, lane: int, owner: UUID, id: bytes) -> bytes:
        return b"%sb%s%s" % (self._prefixes[lane], owner.bytes, id)

    def history(self, lane: int, owner: UUID, id: bytes) -> bytes:
        return b"%sh%s%s" % (self._prefixes[lane], owner.bytes, id)

    def signpost(self, lane: int, owner: UUID, id: bytes) -> bytes:
        return b"%sa%s%s" % (self._prefixes[lane], owner.bytes, id)

    def by_session(self, lane: int, owner: UUID, session: str, schema: str) -> bytes:
        name = session.encode()
        return b"%sx%s%s%s%s" % (
            self._prefixes[lane],
            owner.bytes,
            len(name).to_bytes(2),
            name,
            schema.encode(),
        )

    def by_schema(self, lane: int, owner: UUID, schema: str) -> bytes:
        return b"%ss%s%s" % (self._prefixes[lane], owner.bytes, schema.encode())

    def by_tag(self, lane: int, owner: UUID, tag: str) -> bytes:
        return b"%st%s%s" % (self._prefixes[lane], owner.bytes, tag.encode())

    def by_tags(self, lane: int, owner: UUID, tags: Iterable[str]) -> list[bytes]:
        start = b"%st%s" % (self._prefixes[lane], owner.bytes)
        return [start + tag.encode() for tag in tags]

    def updated(self, lane: int, owner: UUID) -> bytes:
        return b"%su%s" % (self._prefixes[lane], owner.bytes)

    def schemas(self, lane: int, owner: UUID) -> bytes:
        return b"%sd%s" % (self._prefixes[lane], owner.bytes)

    def session_lane(self, owner: UUID, session: str) -> int:
        """Return the lane that holds everything of a session."""
        return lane_for(owner, "session", session, self.lanes)

    def session(self, lane: int, owner: UUID, session: str) -> bytes:
        return b"%sn%s%s" % (self._prefixes[lane], owner.bytes, session.encode())

    def state(self, lane: int, owner: UUID, session: str) -> bytes:
        return b"%sz%s%s" % (self._prefixes[lane], owner.bytes, session.encode())

    def sessions(self, lane: int, owner: UUID) -> bytes:
        return b"%sN%s" % (self._prefixes[lane], owner.bytes)

    def usage(self, lane: int, owner: UUID) -> bytes:
        return b"%sQ%s" % (self._prefixes[lane], owner.bytes)

    def closing(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"Z"

    def deletions(self, lane: int, owner: UUID) -> bytes:
        return b"%sy%s" % (self._prefixes[lane], owner.bytes)

    def events(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"e"

    def trimmed(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"m"

    def clock(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"c"

    def expiries(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"q"

    def idempotency(self, lane: int, owner: UUID, session: str, key: str) -> bytes:
        # Two free-length parts and no need to read them back: a digest keeps the key short.
        name = session.encode()
        digest = blake2b(len(name).to_bytes(2) + name + key.encode(), digest_size=16).digest()
        return b"%si%s%s" % (self._prefixes[lane], owner.bytes, digest)

    def budget(self, lane: int, owner: UUID, *parts: str) -> bytes:
        # As above: whose it is need not be read back.
        hasher = blake2b(digest_size=16)
        for part in parts:
            raw = part.encode()
            hasher.update(len(raw).to_bytes(4) + raw)
        return b"%sg%s%s" % (self._prefixes[lane], owner.bytes, hasher.digest())

    def lease(self, lane: int, kind: str) -> bytes:
        return b"%sl%s" % (self._prefixes[lane], kind.encode())

    def fence(self, lane: int, kind: str) -> bytes:
        return b"%sf%s" % (self._prefixes[lane], kind.encode())

    def low(self, lane: int, kind: str) -> bytes:
        return b"%so%s" % (self._prefixes[lane], kind.encode())

    def done(self, lane: int, kind: str) -> bytes:
        return b"%sk%s" % (self._prefixes[lane], kind.encode())

    def attempts(self, lane: int, kind: str) -> bytes:
        return b"%sr%s" % (self._prefixes[lane], kind.encode())

    def dead_letters(self, lane: int, kind: str) -> bytes:
        return b"%sD%s" % (self._prefixes[lane], kind.encode())

    def worker_kinds(self) -> bytes:
        return self._prefixes[0] + b"K"

    def workers(self, kind: str) -> bytes:
        return b"%sW%s" % (self._prefixes[0], kind.encode())

    def visible_workers(self, kind: str) -> bytes:
        return b"%sw%s" % (self._prefixes[0], kind.encode())

    def agents(self, owner: UUID) -> bytes:
        return b"%sA%s" % (self._prefixes[0], owner.bytes)

    def selectors(self, owner: UUID) -> bytes:
        return b"%sS%s" % (self._prefixes[0], owner.bytes)

    def tenants(self) -> bytes:
        return self._prefixes[0] + b"T"

    def hygiene(self) -> bytes:
        return self._prefixes[0] + b"H"

    @staticmethod
    def session_in(name: bytes) -> tuple[UUID, str]:
        """The owner and the session in the name of an index of a session; "" = in none."""
        length = int.from_bytes(name[16:18])
        return UUID(bytes=name[:16]), name[18 : 18 + length].decode()

    def parse(self, key: bytes) -> tuple[int, bytes, bytes] | None:
        """Lane, kind and name of a key; None: not a lane's key of this store."""
        prefix, brace, rest = key.partition(b"}")
        lane = self._lane_of.get(prefix + brace)
        return None if lane is None or not rest else (lane, rest[:1], rest[1:])
