"""The key schema. Only this module builds keys.

A key is `<namespace>:{L<lane>}<kind><name>`. The part in braces is the cluster hash tag. All keys of a lane are on one
node, so one script can write them together. `<kind>` is one byte.

Names are binary. An owner and an id have 16 bytes each. The last part of a name can have a variable length. If another
part has one too, its length precedes it. Therefore two different names never share a key, even if they contain colons,
braces, globs or spaces. Requests never search keys by pattern.

All times are in microseconds.

Per breadcrumb
    b <owner> <id>                   string   the newest version: header, newline, two agents, JSON (see record.py)
    h <owner> <id>                   hash     older versions: version -> the same form; absent until the first update
    a <owner> <id>                   string   signpost: the real lane of an imported breadcrumb. It is stored in the
                                              home lane of the id (see ids.py)
Per lane, indexes: sorted sets; member = the 16 bytes of the id, score = created_at
    x <owner> <len> <session> <schema>        breadcrumbs of one schema in one session ("" = without a session)
    s <owner> <schema>                        breadcrumbs of one schema ("" = without a schema)
    t <owner> <tag>                           breadcrumbs with one tag; not for session tags, which `x` covers, and not
                                              for the tags in `B`
    u <owner>                                 breadcrumbs that were updated; score = updated_at. Without an update the
                                              created_at in the other indexes is also the time of the last write
    d <owner>                        set      schema names that `s` has for this owner in this lane
    B <owner>                        zset     unindexed tags: member = tag + null byte + schema, score = 0. `t` of this
                                              tag can lack breadcrumbs of this schema (see tag_index.py). Removed with
                                              the last breadcrumb of the schema. Absent in a store of format 1
Per session
    n <owner> <session>              hash     facts about the session:
                                              version, created, size (number of its breadcrumbs)
                                              closing: time when its deletion began; absent unless it is being deleted
                                              entered: time when it began in this store; only if an import set an older
                                              `created`
                                              gone: time when the last session of this name was deleted; only in stores
                                              written before `y` existed (expires by itself)
                                              retried: message id and time of the last 100 retries, the newest first
                                              state: bytes of its state, and bytes of removed names in it (create.lua);
                                              absent until the state is changed, and after an import
                                              after: time of the last deletion of this name, as recorded when the
                                              session began (deletions.lua), 0 = none; absent if the session began
                                              before this field existed
                                              user: the user whose index `U` has the session, if any
                                              usage: amounts of its model calls (spending.py), absent without any
                                              reduced: 1 if it has had a reduced context (reduction.py), else absent
    z <owner> <session>              hash     state: name -> `<time when it was set> <JSON>`; no JSON = removed;
                                              `!<readers> ` before the JSON = restricted readers (see state.py).
                                              Names that begin with a null byte: facts such as its title and its user
    P <owner> <session>              hash     answers that are being written: head and pieces of each (see
                                              running_answers.py). Expires by itself; absent if no answer is written
    N <owner>                        zset     sessions of an owner in this lane; score = last activity
    U <owner> <user>                 zset     sessions of a user in this lane; score = last activity, as far as the mark
                                              goes (see session_users.py). Absent until sessions are listed by user
    Y <owner>                        string   mark: `U` has all sessions whose last activity is not later. A space and a
                                              random number follow. Absent until sessions are listed by user
    Z                                set      sessions that are being deleted: owner + session
    y <owner>                        zset     deleted sessions of an owner in this lane: member = name, score = time of
                                              the last deletion. Limited in size: see deletions.lua. Member "" is the
                                              horizon: the newest deletion that was dropped. The key expires by itself
Per owner with a quota
    Q <owner>                        hash     bytes (of all versions) and breadcrumbs of an owner in this lane
Per owner with model calls: see spending.py
    E <owner>                        set      months (`202611`) with usage of an owner in this lane
    E <owner> <month>                hash     usage of the month: day and agent, model or user -> amounts. Absent in
                                              stores of earlier versions until the first model call
Per owner, in one lane
    v <owner>                        string   version of the breadcrumbs without a session: see shared_cache.py;
                                              expires by itself
Per lane, other keys
    e                                stream   events; the id is `<time>-0`, with the same times as the scores. They are
                                              announced on the sharded Pub/Sub channel of the same name
    m                                string   trim mark: events up to this time can have been removed
    c                                string   clock of the lane: the time of the last write
    q                                zset     expiry queue: member = owner + id, score = time of expiry, for contexts
                                              time of reduction. Member = owner + session (and a null byte if the name
                                              has 16 bytes): check whether the session has only reduced contexts left
    i <owner> <digest>               string   idempotency key: digest of the content, id and time (expires by itself)
    g <owner> <digest>               string   budget of requests: time when it is full again (expires by itself)
Per lane and kind of worker (context builders, agent runners)
    l <kind>                         string   lease: fence number, time when it began, worker; expires by itself
    f <kind>                         string   the last fence number
    p <kind>                         string   holder: the worker that took the lane last; absent after its release
    o <kind>                         string   low-water mark: every event up to it is done
    k <kind>                         zset     events above the mark that are done already
    r <kind>                         hash     event -> earlier attempts, and the worker that runs it (attempts.py)
    D <kind>                         hash     event -> dead letter (JSON)
On a cluster, per lane
    I                                string   marker: the identity of the store. A node that has lost its data has lost
                                              the markers of its lanes. Absent on a single server
Lane 0 only: workers
    K                                set      kinds of workers; events are kept until each kind has finished them
                                              (exceptions: see housekeeping.py)
    W <kind>                         zset     workers; score = time from which a worker counts as dead
    w <kind>                         set      workers whose death is detected by their connection (liveness.py)
    R <kind>                         hash     worker -> `<time of its last heartbeat> <JSON>`: its report
                                              (worker_reports.py). Workers that ended stay for a limited time
    j <kind>                         hash     name -> the worker of this kind that has it, or had it last
    J <kind>                         hash     worker -> time when its drain was requested
    C <kind>                         hash     turns of all workers of this kind: answered, failed
    F                                hash     history: minute modulo its length -> `<minute> <JSON>` (load_history.py)
    G <worker>                       string   the config file that a context builder uses (JSON); expires by itself
    M                                hash     kind of worker -> models that it offers (JSON, see offered_models.py);
                                              absent until an agent runner has started
    O                                hash     kind of worker -> its agents that answer users (JSON, see
                                              published_agents.py); absent until an agent runner has started
Lane 0 only: small records of an owner
    A <owner>                        hash     agents: id -> JSON
    S <owner>                        hash     saved selectors: id -> JSON
    T                                hash     tenants: id -> JSON
    V <owner>                        hash     archive: kind (one byte) + 16 hexadecimal digits of the digest ->
                                              `<time when it was kept> <JSON>`; "" -> bytes of all documents
    L <owner> <kind>                 list     log of the archive, the newest entry first: see archive.lua
    H                                hash     hygiene counters; conversion: its progress (JSON, see conversion.py)
    X                                string   process that converts the store to format 2; expires by itself
Once per store
    <namespace>:meta                 hash     number of lanes, format, the secret that signs tokens and cursors
                                              id: the identity of the store; absent in a store of an earlier version
                                              until a process of this version opens it
                                              marked: 1 if every lane has its marker `I`, else absent
                                              converted: number of the format whose conversion is complete, else absent
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.ids import lane_for

# Kinds of keys that a scan of the whole store selects.
BODY: Final = b"b"
SCHEMAS: Final = b"d"
UPDATED: Final = b"u"
IN_SESSION: Final = b"x"
BY_TAG: Final = b"t"
SESSION: Final = b"n"
SESSIONS: Final = b"N"
SESSIONS_OF_USER: Final = b"U"
OWNER_RECORDS: Final = frozenset((b"A", b"S", b"V"))
"""Kinds of records whose names are an owner: agents, saved selectors and the archive."""
INDEXES: Final = frozenset((b"x", b"s", b"t"))
"""Kinds of indexes. Their names begin with the owner, and their members are ids."""


class Keys:
    """Builds the keys of one store."""

    def __init__(self, namespace: str, lanes: int) -> None:
        self.lanes = lanes
        self.meta = f"{namespace}:meta".encode()
        self._deltas = f"{namespace}:deltas".encode()
        self._liveness = f"{namespace}:liveness".encode()
        self._prefixes = [b"%s:{L%02d}" % (namespace.encode(), lane) for lane in range(lanes)]
        self._session_lane = lru_cache(16_384)(self._hash_session)
        self._lane_of = {prefix: lane for lane, prefix in enumerate(self._prefixes)}

    def deltas(self) -> bytes:
        """Return the Pub/Sub channel of deltas. Its messages can get lost."""
        return self._deltas

    def liveness(self, kind: str, worker: str) -> bytes:
        """Return the Pub/Sub channel that a worker subscribes to as long as it lives."""
        return b"%s:%s:%s" % (self._liveness, kind.encode(), worker.encode())

    def prefix(self, lane: int) -> bytes:
        """Return the common prefix of all keys of a lane."""
        return self._prefixes[lane]

    def identity(self, lane: int) -> bytes:
        return self._prefixes[lane] + b"I"

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

    def indexes(
        self, lane: int, owner: UUID, schema: str, session: str | None, tags: Iterable[str]
    ) -> list[bytes]:
        """Return the indexes of a breadcrumb. The index of the schema is first: the scripts rely on that."""
        prefix, raw_owner = self._prefixes[lane], owner.bytes
        name, raw_schema = (session or "").encode(), schema.encode()
        by_tag = b"%st%s" % (prefix, raw_owner)
        return [
            b"%ss%s%s" % (prefix, raw_owner, raw_schema),
            b"%sx%s%s%s%s" % (prefix, raw_owner, len(name).to_bytes(2), name, raw_schema),
            *[by_tag + tag.encode() for tag in tags],
        ]

    def by_schema(self, lane: int, owner: UUID, schema: str) -> bytes:
        return b"%ss%s%s" % (self._prefixes[lane], owner.bytes, schema.encode())

    def by_tag(self, lane: int, owner: UUID, tag: str) -> bytes:
        return b"%st%s%s" % (self._prefixes[lane], owner.bytes, tag.encode())

    def updated(self, lane: int, owner: UUID) -> bytes:
        return b"%su%s" % (self._prefixes[lane], owner.bytes)

    def schemas(self, lane: int, owner: UUID) -> bytes:
        return b"%sd%s" % (self._prefixes[lane], owner.bytes)

    def unindexed_tags(self, lane: int, owner: UUID) -> bytes:
        return b"%sB%s" % (self._prefixes[lane], owner.bytes)

    def session_lane(self, owner: UUID, session: str) -> int:
        """Return the lane of all keys of a session."""
        # Cached by the integer: it is hashed and compared much faster than the UUID.
        return self._session_lane(owner.int, session)

    def _hash_session(self, owner: int, session: str) -> int:
        return lane_for(UUID(int=owner), "session", session, self.lanes)

    def session(self, lane: int, owner: UUID, session: str) -> bytes:
        return b"%sn%s%s" % (self._prefixes[lane], owner.bytes, session.encode())

    def state(self, lane: int, owner: UUID, session: str) -> bytes:
        return b"%sz%s%s" % (self._prefixes[lane], owner.bytes, session.encode())

    def running(self, lane: int, owner: UUID, session: str) -> bytes:
        return b"%sP%s%s" % (self._prefixes[lane], owner.bytes, session.encode())

    def sessions(self, lane: int, owner: UUID) -> bytes:
        return b"%sN%s" % (self._prefixes[lane], owner.bytes)

    def sessions_of_user(self, lane: int, owner: UUID, user: str) -> bytes:
        return b"%sU%s%s" % (self._prefixes[lane], owner.bytes, user.encode())

    def users_mark(self, lane: int, owner: UUID) -> bytes:
        return b"%sY%s" % (self._prefixes[lane], owner.bytes)

    def usage(self, lane: int, owner: UUID) -> bytes:
        return b"%sQ%s" % (self._prefixes[lane], owner.bytes)

    def usage_months(self, lane: int, owner: UUID) -> bytes:
        return b"%sE%s" % (self._prefixes[lane], owner.bytes)

    def usage_of(self, lane: int, owner: UUID, month: bytes) -> bytes:
        return b"%sE%s%s" % (self._prefixes[lane], owner.bytes, month)

    def shared_lane(self, owner: UUID) -> int:
        """Return the lane of the key `shared`."""
        return lane_for(owner, "shared", "", self.lanes)

    def shared(self, lane: int, owner: UUID) -> bytes:
        return b"%sv%s" % (self._prefixes[lane], owner.bytes)

    def all_of_session(self, lane: int, owner: UUID, session: str) -> list[bytes]:
        """Return the keys `session`, `sessions`, `state` and `deletions`, for a write into a session."""
        prefix, raw_owner, name = self._prefixes[lane], owner.bytes, session.encode()
        return [
            b"%sn%s%s" % (prefix, raw_owner, name),
            b"%sN%s" % (prefix, raw_owner),
            b"%sz%s%s" % (prefix, raw_owner, name),
            b"%sy%s" % (prefix, raw_owner),
        ]

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
        # Both parts have a variable length and are never read back, so a digest keeps the key short.
        name = session.encode()
        digest = blake2b(len(name).to_bytes(2) + name + key.encode(), digest_size=16).digest()
        return b"%si%s%s" % (self._prefixes[lane], owner.bytes, digest)

    def budget(self, lane: int, owner: UUID, *parts: str) -> bytes:
        # A digest, as in `idempotency`: the parts are never read back.
        hasher = blake2b(digest_size=16)
        for part in parts:
            raw = part.encode()
            hasher.update(len(raw).to_bytes(4) + raw)
        return b"%sg%s%s" % (self._prefixes[lane], owner.bytes, hasher.digest())

    def lease(self, lane: int, kind: str) -> bytes:
        return b"%sl%s" % (self._prefixes[lane], kind.encode())

    def fence(self, lane: int, kind: str) -> bytes:
        return b"%sf%s" % (self._prefixes[lane], kind.encode())

    def holder(self, lane: int, kind: str) -> bytes:
        return b"%sp%s" % (self._prefixes[lane], kind.encode())

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

    def worker_reports(self, kind: str) -> bytes:
        return b"%sR%s" % (self._prefixes[0], kind.encode())

    def worker_names(self, kind: str) -> bytes:
        return b"%sj%s" % (self._prefixes[0], kind.encode())

    def drain_requests(self, kind: str) -> bytes:
        return b"%sJ%s" % (self._prefixes[0], kind.encode())

    def turn_counters(self, kind: str) -> bytes:
        return b"%sC%s" % (self._prefixes[0], kind.encode())

    def load_history(self) -> bytes:
        return self._prefixes[0] + b"F"

    def published_config(self, worker: str) -> bytes:
        return b"%sG%s" % (self._prefixes[0], worker.encode())

    def offered_models(self) -> bytes:
        return self._prefixes[0] + b"M"

    def published_agents(self) -> bytes:
        return self._prefixes[0] + b"O"

    def agents(self, owner: UUID) -> bytes:
        return b"%sA%s" % (self._prefixes[0], owner.bytes)

    def selectors(self, owner: UUID) -> bytes:
        return b"%sS%s" % (self._prefixes[0], owner.bytes)

    def archive(self, owner: UUID) -> bytes:
        return b"%sV%s" % (self._prefixes[0], owner.bytes)

    def archive_log(self, owner: UUID, kind: str) -> bytes:
        return b"%sL%s%s" % (self._prefixes[0], owner.bytes, kind.encode())

    def tenants(self) -> bytes:
        return self._prefixes[0] + b"T"

    def conversion(self) -> bytes:
        return self._prefixes[0] + b"X"

    def hygiene(self) -> bytes:
        return self._prefixes[0] + b"H"

    @staticmethod
    def session_in(name: bytes) -> tuple[UUID, str]:
        """Return the owner and the session in the name of a session index. "": no session."""
        length = int.from_bytes(name[16:18])
        return UUID(bytes=name[:16]), name[18 : 18 + length].decode()

    def parse(self, key: bytes) -> tuple[int, bytes, bytes] | None:
        """Return lane, kind and name of a key. None: it is not a lane key of this store."""
        prefix, brace, rest = key.partition(b"}")
        lane = self._lane_of.get(prefix + brace)
        return None if lane is None or not rest else (lane, rest[:1], rest[1:])
