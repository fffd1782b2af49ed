"""Test data of the access table: two tenants with every kind of target.

The data is written once, over HTTP, and copied for each test: every key of the store is dumped and restored
under another namespace. A copy costs a few milliseconds, so a test can destroy its copy.

Every protected text is a marker, `marker:<kind>:<target>:`. The table defines the principals that may read it.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import orjson
import pytest
import redis

from breadcrumbs.agents.receipts import encode_digest, parts_digest
from breadcrumbs.composition.http_server import ServerServices, assembled_services
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.session_users import update_user_indexes
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.web_page import WebPage
from tests.contexts.support import SHIPPED, book_of, building, document
from tests.http.conftest import BASE, KEY, OTHER, OTHER_KEY, OWNER

EMITTER_KEY = "a-key-that-may-only-emit"
SUBSCRIBER_KEY = "a-key-that-may-only-subscribe"
AGENT_KEY = "a-key-of-another-agent"
AGENT = UUID("cccccccc-0000-4000-8000-000000000003")

KEYS: tuple[dict[str, Any], ...] = (
    {"key": KEY, "owner_id": str(OWNER)},
    {"key": EMITTER_KEY, "owner_id": str(OWNER), "roles": ["emitter"]},
    {"key": SUBSCRIBER_KEY, "owner_id": str(OWNER), "roles": ["subscriber"]},
    {
        "key": AGENT_KEY,
        "owner_id": str(OWNER),
        "agent_id": str(AGENT),
        "roles": ["emitter", "subscriber"],
    },
    {"key": OTHER_KEY, "owner_id": str(OTHER)},
)

CURATOR = {"X-API-Key": KEY}
FOREIGN = {"X-API-Key": OTHER_KEY}
BY_AGENT = {"X-API-Key": AGENT_KEY}
CLIENT_ROLES = ["emitter", "subscriber"]

APP = "app"
ADK_ANN = f"adk:{APP}:ann:a1"

MARKER = re.compile(r"marker:([a-z]+):([a-z0-9]+):")

CONTEXT_CONFIG: dict[str, Any] = document(
    update_triggers=[{"schema_name": "user.message.v1", "any_tags": ["build"]}],
    sources=[
        {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 20}},
        *(
            {
                "key": scope,
                "schema_name": "user.message.v1",
                "fetch": {"conversation_scope": scope, "limit": 20},
            }
            for scope in ("user", "all")
        ),
    ],
)


def marker(kind: str, target: str) -> str:
    return f"marker:{kind}:{target}:"


@dataclass(frozen=True)
class Target:
    """A target of operations, with every id that an operation can use for it."""

    name: str
    owner: UUID = OWNER
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kinds of ids: session, crumb, message, context, rated, proof, selector, agent, tenant, letter, user, adk."""

    def __getitem__(self, kind: str) -> str:
        return self.ids[kind]

    @property
    def user(self) -> str | None:
        return self.ids.get("user")

    @property
    def session(self) -> str | None:
        return self.ids.get("session")


def unknown_target() -> Target:
    """Return a target whose ids do not exist."""
    uuids = ("crumb", "rated", "message", "context", "proof", "selector", "agent", "tenant", "letter")
    names = ("session", "user", "adk")
    return Target(
        "unknown",
        ids={kind: str(uuid4()) for kind in uuids}
        | {kind: f"unknown-{secrets.token_hex(4)}" for kind in names},
    )


@dataclass(frozen=True)
class Template:
    """A written world that can be copied."""

    settings: Settings
    keys: Mapping[bytes, tuple[bytes, int]]
    """Key without its namespace -> its dump and its remaining TTL in milliseconds."""
    targets: Mapping[str, Target]
    principals: Mapping[str, dict[str, str]]
    """Kind of principal -> the headers of its requests."""
    positions: Mapping[UUID, str]
    """Owner -> the stream position before the first write."""


@dataclass
class World:
    """One copy of the template, served by the application that `crumb serve` composes."""

    parts: ServerServices
    client: httpx.AsyncClient
    template: Template
    redis: redis.Redis
    namespace: str

    @property
    def store(self) -> Store:
        return self.parts.store

    async def send(
        self, principal: str, method: str, path: str, *, params: Any = None, json: Any = None
    ) -> httpx.Response:
        headers = self.template.principals[principal]
        return await self.client.request(method, path, headers=headers, params=params, json=json)

    async def stream(self, principal: str, query: Mapping[str, str]) -> httpx.Response:
        """Read a stream from the first event until it has sent all events."""
        owner = OTHER if principal == "foreign" else OWNER
        headers = self.template.principals[principal]
        params = httpx.QueryParams({"last_event_id": self.template.positions[owner], **query})
        return await read_stream(self.parts.app, headers, str(params), lambda said: pings(said) >= 2)

    def snapshot(self, owner: UUID | None = None) -> dict[bytes, bytes]:
        """Return all keys and dumps of the store, or those of one owner."""
        held = dump(self.redis, self.namespace)
        return {key: raw for key, (raw, _) in held.items() if owner is None or owner.bytes in key}


# Copies


# One script instead of two commands per key: the access table takes and compares hundreds of copies.
_DUMP = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  found[#found + 1] = string.sub(key, #ARGV[1] + 1)
  found[#found + 1] = redis.call('DUMP', key)
  found[#found + 1] = math.max(0, redis.call('PTTL', key))
end
return found
"""
_RESTORE = """
for i = 2, #ARGV, 3 do redis.call('RESTORE', ARGV[1] .. ARGV[i], ARGV[i + 2], ARGV[i + 1]) end
"""


def dump(server: redis.Redis, namespace: str) -> dict[bytes, tuple[bytes, int]]:
    prefix = f"{namespace}:".encode()
    history = Keys(namespace, 1).load_history()  # the server writes it by itself, once a minute
    flat: list[Any] = server.eval(_DUMP, 0, prefix)
    held = {key: (raw, life) for key, raw, life in zip(flat[::3], flat[1::3], flat[2::3], strict=True)}
    held.pop(history[len(prefix) :], None)
    return held


def _restore(server: redis.Redis, namespace: str, keys: Mapping[bytes, tuple[bytes, int]]) -> None:
    flat = [value for key, (raw, life) in keys.items() for value in (key, raw, life)]
    server.eval(_RESTORE, 0, f"{namespace}:".encode(), *flat)


def _remove(server: redis.Redis, namespace: str) -> None:
    found = list(server.scan_iter(match=f"{namespace}:*".encode(), count=10_000))
    if found:
        server.unlink(*found)


_page = cache(WebPage.of_this_installation)
"""Cached, because the page compresses its files at load, which takes longer than the rest of a copy."""


@asynccontextmanager
async def _serving(
    url: str, settings: Settings, namespace: str
) -> AsyncIterator[tuple[ServerServices, httpx.AsyncClient]]:
    here = settings.model_copy(update={"namespace": namespace})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WebPage, "of_this_installation", _page)
        async with assembled_services(here, url, workers=False) as parts:
            transport = httpx.ASGITransport(parts.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url=BASE, trust_env=False) as client:
                yield parts, client


@asynccontextmanager
async def copied(url: str, template: Template) -> AsyncIterator[World]:
    """Serve a copy of the template."""
    server, namespace = redis.Redis.from_url(url), f"w{secrets.token_hex(6)}"
    try:
        _restore(server, namespace, template.keys)
        async with _serving(url, template.settings, namespace) as (parts, client):
            yield World(parts, client, template, server, namespace)
    finally:
        _remove(server, namespace)
        server.close()


# Streams


def pings(said: bytes) -> int:
    return said.count(b"event: ping")


async def read_stream(
    app: Any, headers: Mapping[str, str], query: str, until: Callable[[bytes], bool], *, limit: float = 20
) -> httpx.Response:
    """Read an event stream until it ends or `until` is true."""
    status, said, ended = 0, b"", anyio.Event()

    async def send(message: Any) -> None:
        nonlocal status, said
        status = message.get("status", status)
        said += message.get("body", b"")
        if until(said):
            ended.set()

    async def receive() -> Any:
        await anyio.sleep_forever()

    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events/stream",
        "raw_path": b"/events/stream",
        "root_path": "",
        "query_string": query.encode(),
        "headers": [*given, (b"host", b"127.0.0.1:8081")],
    }

    async def serve() -> None:
        await app(scope, receive, send)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(limit):
            await ended.wait()
        tasks.cancel_scope.cancel()
    return httpx.Response(status, content=said)


# Writing the template


async def written_template(url: str, folder: Path) -> Template:
    """Write the whole world once."""
    shutil.copy(SHIPPED, folder / "context.json")
    settings = Settings(
        api_keys=KEYS,
        rate_limits={"enabled": False},
        ping_interval=0.02,
        hygiene_interval=3600,
        context_config=folder / "context.json",
        model="offline",
    )
    server, namespace = redis.Redis.from_url(url), f"w{secrets.token_hex(6)}"
    try:
        async with _serving(url, settings, namespace) as (parts, client):
            writer = _Writer(parts, client)
            await writer.write_all()
            # Readers bring these indexes up to date. Later reads then change nothing.
            for owner in (OWNER, OTHER):
                assert await update_user_indexes(parts.store, owner)
        return Template(
            settings, dump(server, namespace), writer.targets, writer.principals, writer.positions
        )
    finally:
        _remove(server, namespace)
        server.close()


class _Writer:
    """Writes the world and records the ids."""

    def __init__(self, parts: ServerServices, client: httpx.AsyncClient) -> None:
        self.parts = parts
        self.client = client
        self.targets: dict[str, Target] = {}
        self.principals: dict[str, dict[str, str]] = {}
        self.positions: dict[UUID, str] = {}

    async def write_all(self) -> None:
        await self._note_positions()
        for name, user in (("own", "ann"), ("bob", "bob"), ("ann2", "ann"), ("nouser", None)):
            await self._session(name, f"s-{name}", user, CURATOR)
        await self._session("far", "s-far", "zoe", FOREIGN)
        await self._more_state()
        await self._crumbs()
        await self._adk("adkann", "ann", "a1", CURATOR)
        await self._adk("adkbob", "bob", "b1", CURATOR)
        await self._adk("adkfar", "zoe", "z1", FOREIGN)
        await self._principals()
        await self._feedback()
        await self._selectors()
        await self._records()
        await self._contexts()
        await self._dead_letters()

    async def _note_positions(self) -> None:
        for owner, headers in ((OWNER, CURATOR), (OTHER, FOREIGN)):
            opened = await read_stream(self.parts.app, headers, "", lambda said: pings(said) >= 1)
            found = re.search(r"^id: (.+)$", opened.text, re.MULTILINE)
            assert found is not None, opened.text
            self.positions[owner] = found.group(1).strip()

    def _note(self, name: str, owner: UUID = OWNER, **ids: str | None) -> None:
        known = self.targets.get(name, Target(name, owner))
        new = {kind: id for kind, id in ids.items() if id is not None}
        self.targets[name] = replace(known, ids={**known.ids, **new})

    async def _do(self, method: str, path: str, who: dict[str, str], body: Any = None) -> Any:
        answer = await self.client.request(method, path, json=body, headers=who)
        assert answer.status_code in (200, 201), f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def _crumb(
        self, name: str, tags: Iterable[str], who: dict[str, str] = CURATOR, **fields: Any
    ) -> str:
        text = marker("crumb", name)
        shown = {} if fields.get("sensitivity") == "secret" else {"title": text, "description": text}
        body = {
            "schema_name": "user.message.v1",
            "tags": [f"t:{name}", *tags],
            "context": {"message": text},
            **shown,
            **fields,
        }
        made = await self._do("POST", "/breadcrumbs", who, body)
        return str(made["id"])

    async def _session(self, name: str, session: str, user: str | None, who: dict[str, str]) -> None:
        owner = OTHER if who is FOREIGN else OWNER
        body = {"id": session, "title": marker("title", name), "state": {"plain": marker("state", name)}}
        await self._do("POST", "/sessions", who, body | ({} if user is None else {"user_id": user}))
        said = await self._do(
            "POST", f"/sessions/{session}/messages", who, {"message": marker("message", name)}
        )
        message = str(said["message"]["id"])
        tags = [f"session:{session}", *([] if user is None else [f"user:{user}"])]
        error = {"message": "the model failed", "error": "the model failed", "trigger_id": message}
        await self._do(
            "POST", "/breadcrumbs", who, {"schema_name": "agent.error.v1", "tags": tags, "context": error}
        )
        crumb = await self._crumb(name, tags, who)
        creator = {"type": "agent", "agent_id": "assistant", "model": marker("model", name)}
        answer = {"message": marker("answer", name), "trigger_id": crumb, "creator": creator}
        response = {"schema_name": "agent.response.v1", "tags": tags, "context": answer}
        made = await self._do("POST", "/breadcrumbs", who, response)
        self._note(
            name, owner, session=session, user=user, message=message, crumb=crumb, rated=str(made["id"])
        )

    async def _more_state(self) -> None:
        """Write state of the session `own` that some readers of the session must not see."""
        tags = ["session:s-own", "user:ann"]
        for who, fields, value in (
            (CURATOR, {"sensitivity": "secret"}, {"hidden": marker("secretstate", "own")}),
            (BY_AGENT, {"visibility": "private"}, {"mine": marker("privatestate", "own")}),
        ):
            body = {
                "schema_name": "session.state.v1",
                "tags": tags,
                "context": {"state_delta": value},
                **fields,
            }
            await self._do("POST", "/breadcrumbs", who, body)
        login = {"authType": "apiKey", "apiKey": marker("credential", "own")}
        await self._do("PATCH", "/sessions/s-own", CURATOR, {"state": {"login": login}})

    async def _crumbs(self) -> None:
        for name, tags, who, fields in (
            ("untagged", ["session:s-own"], CURATOR, {}),
            ("free", [], CURATOR, {"schema_name": "note.v1"}),
            ("freeann", ["user:ann"], CURATOR, {}),
            ("annbob", ["session:s-bob", "user:ann"], CURATOR, {}),
            ("private", ["session:s-own", "user:ann"], BY_AGENT, {"visibility": "private"}),
            ("secret", ["session:s-own", "user:ann"], CURATOR, {"sensitivity": "secret"}),
        ):
            self._note(name, crumb=await self._crumb(name, tags, who, **fields))
        self._note("nocontext", context=self.targets["free"]["crumb"])

    async def _adk(self, name: str, user: str, id: str, who: dict[str, str]) -> None:
        path = f"/apps/{APP}/users/{user}/sessions"
        state = {
            "plain": marker("adkstate", name),
            "user:city": marker("adkuser", name),
            "app:motto": marker("adkapp", name),
        }
        await self._do("POST", path, who, {"sessionId": id, "state": state})
        login = {"authType": "apiKey", "apiKey": marker("adkcred", name)}
        await self._do("PATCH", f"{path}/{id}", who, {"stateDelta": {"login": login}})
        event = {
            "author": "user",
            "content": {"role": "user", "parts": [{"text": marker("adkevent", name)}]},
        }
        await self._do("POST", f"{path}/{id}/events", who, event)
        owner, session = OTHER if who is FOREIGN else OWNER, f"adk:{APP}:{user}:{id}"
        self._note(name, owner, user=user, adk=id, session=session)
        if name == "adkann":
            query = f"?schema_name=session.v1&session_id={session}"
            (record,) = await self._do("GET", f"/breadcrumbs{query}", who)
            self._note("adkrecord", crumb=record["id"])
            self._note("holder", session=f"state/adk:user:{APP}:{user}")

    async def _token(self, **wanted: Any) -> dict[str, str]:
        issued = await self._do("POST", "/auth/token", CURATOR, {"roles": CLIENT_ROLES, **wanted})
        return {"Authorization": f"Bearer {issued['token']}"}

    async def _principals(self) -> None:
        self.principals |= {
            "none": {},
            "curator": CURATOR,
            "emitter": {"X-API-Key": EMITTER_KEY},
            "subscr": {"X-API-Key": SUBSCRIBER_KEY},
            "agent": BY_AGENT,
            "foreign": FOREIGN,
            "session": await self._token(session_id="s-own"),
            "s+cur": await self._token(session_id="s-own", roles=["curator"]),
            "user": await self._token(user_id="ann"),
            "s+user": await self._token(session_id="s-own", user_id="ann"),
            "adk": await self._token(session_id=ADK_ANN),
        }
        for kind in ("gone", "again"):
            await self._do("POST", "/sessions", CURATOR, {"id": f"s-{kind}", "user_id": "ann"})
            self.principals[kind] = await self._token(session_id=f"s-{kind}")
            await self._do("DELETE", f"/sessions/s-{kind}", CURATOR)
        await self._session("again", "s-again", "ann", CURATOR)

    async def _feedback(self) -> None:
        """Rate an answer of each session: as ann in her sessions, otherwise as the curator."""
        for name, kind in (
            ("own", "user"),
            ("ann2", "user"),
            ("again", "user"),
            ("bob", "curator"),
            ("nouser", "curator"),
            ("far", "foreign"),
        ):
            path = f"/breadcrumbs/{self.targets[name]['rated']}/feedback"
            body = {"rating": "down", "note": marker("note", name)}
            await self._do("PUT", path, self.principals[kind], body)

    async def _selectors(self) -> None:
        for name, kind in SELECTORS.items():
            saved = await self._do(
                "POST",
                "/subscriptions/selectors",
                self.principals[kind],
                {"any_tags": [marker("selector", name)]},
            )
            self._note(name, OTHER if kind == "foreign" else OWNER, selector=saved["id"])

    async def _records(self) -> None:
        for name, owner, who in (("own", OWNER, CURATOR), ("far", OTHER, FOREIGN)):
            await self._do("POST", f"/tenants/{owner}", who, {"name": marker("tenant", name)})
            issued = await self._do("POST", "/auth/token", who, {})
            self._note(name, tenant=str(owner), agent=issued["agent_id"])
            config = CONTEXT_CONFIG | {
                "consumer_id": marker("config", name),
                "update_triggers": [{"schema_name": "never.v1"}],
            }
            body = {"schema_name": "context.config.v1", "title": marker("config", name), "context": config}
            await self._do("POST", "/breadcrumbs", who, body)
        await self._do("POST", "/auth/token", BY_AGENT, {})
        self._note("agent", agent=str(AGENT))
        page = await self.client.get("/")
        asset = re.search(r'"/assets/([^"]+)"', page.text)
        assert asset is not None
        self._note("own", asset=asset.group(1))

    async def _contexts(self) -> None:
        """Build contexts that contain items of other sessions."""
        store = self.parts.store
        async with building(store, book_of(store, CONTEXT_CONFIG)) as builder:
            for name in ("own", "bob", "ann2", "nouser", "far"):
                target = self.targets[name]
                assert target.session is not None
                user = [] if target.user is None else [f"user:{target.user}"]
                context = await builder.say(
                    marker("trigger", name), target.session, owner=target.owner, tags=("build", *user)
                )
                self._note(name, context=str(context.id), proof=await self._proven_answer(name, context))
        self._note("nocontext", proof=self.targets["free"]["crumb"])
        self._note("context", crumb=self.targets["own"]["context"])

    async def _proven_answer(self, name: str, context: Breadcrumb) -> str:
        """Write an answer with a receipt like an agent runner."""
        store, owner = self.parts.store, context.owner_id
        setup = {
            "agent_id": "tester",
            "kind": "model",
            "dialect": {"model": "m", "stream": False, "omit": []},
            "system_prompt": marker("prompt", name),
        }
        digest = await Archive(store).keep(owner, "setup", setup)
        receipt = {
            "setup": encode_digest(bytes.fromhex(digest)),
            "context": encode_digest(parts_digest(context.context["parts"])),
            "calls": [{"request": encode_digest(bytes(32))}],
        }
        fields = {
            "message": "answer",
            "trigger_id": context.context["trigger_id"],
            "creator": {"type": "agent", "agent_id": "tester"},
            "context_id": str(context.id),
            "context_version": context.version,
            "model_receipt": receipt,
        }
        tags = [tag for tag in context.tags if tag.startswith(("session:", "user:"))]
        new = {"schema_name": "agent.response.v1", "title": "answer", "tags": tags, "context": fields}
        return str((await store.create(owner, BreadcrumbCreate.parse(new))).id)

    async def _dead_letters(self) -> None:
        """Write dead letters like a worker after its last attempt."""
        store = self.parts.store
        for name in ("own", "far"):
            target = self.targets[name]
            message = await store.get(target.owner, UUID(target["message"]), count_read=False)
            lane = store.keys.session_lane(target.owner, target["session"])
            letter = {
                "event": message.created,
                "owner_id": str(target.owner),
                "breadcrumb_id": str(message.id),
                "version": 1,
                "session_id": target.session,
                "attempts": 4,
                "error": marker("letter", name),
                "at": message.created_at,
            }
            key = store.keys.dead_letters(lane, "contexts")
            await store.connection.call(lane, b"HSET", key, message.created, orjson.dumps(letter))
        shown = await self._do("GET", "/dlq", CURATOR), await self._do("GET", "/dlq", FOREIGN)
        for name, letters in zip(("own", "far"), shown, strict=True):
            self._note(name, letter=letters[0]["id"])


SELECTORS = {
    "selcur": "curator",
    "selagt": "agent",
    "selses": "session",
    "selusr": "user",
    "selsu": "s+user",
    "selfar": "foreign",
}
"""Target -> the kind of principal that saved the selector."""
