"""Retries, errors, streams and turns of the client, mostly with scripted replies instead of a server."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Event as Signal
from threading import Thread
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs import Client
from breadcrumbs.client.errors import (
    AgentFailed,
    InvalidInput,
    NoAnswer,
    NotFound,
    ProblemError,
    ServerUnreachable,
    StoreFull,
    StoreUnavailable,
    VersionMismatch,
    problem_from_document,
)
from breadcrumbs.client.http import ServerAccess, check_address
from breadcrumbs.client.replies import ConnectionLost, Reply, backoff
from breadcrumbs.client.requests import Request, create_request
from breadcrumbs.client.sync import events, turns
from breadcrumbs.client.sync.connection import ByteStream, ServerConnection
from breadcrumbs.client.values import Answer, Delta, Event, Gap
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.sse import Parser, ServerSentEvent

ID = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"
WRITTEN = {"id": ID, "version": 1, "created_at": "2026-11-16T09:00:00Z", "updated_at": "2026-11-16T09:00:00Z"}


def reply(status: int, document: Any = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, named, b"" if document is None else orjson.dumps(document))


def problem(status: int, name: str, **members: Any) -> Reply:
    return reply(status, {"type": f"/docs#problem-{name}", "status": status, "detail": "no", **members})


class StreamOpened:
    """Marks the start of a stream in a script. The chunks of the stream follow it."""


class ScriptEnded(Exception):
    """The script has no more replies."""


class ScriptedConnection(ServerConnection):
    """Connection that returns replies from a list."""

    def __init__(self, answers: list[Any], *, retries: int = 3, endless: bool = False) -> None:
        super().__init__(ServerAccess("http://127.0.0.1:1", {}), timeout=1.0, retries=retries)
        self.left = list(answers)
        self.endless = endless
        self.sent: list[Request] = []
        self.pauses: list[float] = []

    def answer(self) -> Any:
        if self.endless and not self.left:
            raise ScriptEnded
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send(self, request: Request, timeout: float | None) -> Reply:
        self.sent.append(request)
        found: Reply = self.answer()
        return found

    def open_stream(self, request: Request, read_timeout: float) -> ByteStream | Reply:
        self.sent.append(request)
        answer = self.answer()
        return answer if isinstance(answer, Reply) else ScriptedStream(self.answer)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


class ScriptedStream(ByteStream):
    def __init__(self, read: Callable[[], bytes]) -> None:
        self.read = read  # type: ignore[method-assign]

    def close(self) -> None:
        pass


class ScriptedCall:
    """Result of a client call on scripted replies.

    An iterator is read to its end. An endless one is read until the script ends.
    """

    def __init__(
        self, call: Callable[[Client], Any], answers: list[Any], *, retries: int = 3, endless: bool = False
    ) -> None:
        connection = ScriptedConnection(answers, retries=retries, endless=endless)
        with Client() as client:
            client._connection.close()
            client._connection = connection
            self.items: list[Any] = []
            self.result = call(client)
            if isinstance(self.result, Generator):
                try:
                    self.items.extend(self.result)
                except ScriptEnded:
                    self.result.close()
        self.sent, self.pauses = connection.sent, connection.pauses
        assert not connection.left, connection.left


# Requests


def test_a_create_with_a_lost_reply_is_retried_with_the_same_key_and_body() -> None:
    call = ScriptedCall(
        lambda client: client.create(title="x"),
        [ConnectionLost("broken"), problem(503, "store-unavailable"), reply(201, WRITTEN)],
    )
    assert call.result.id == ID
    assert len({(request.content, request.headers["idempotency-key"]) for request in call.sent}) == 1
    assert len(call.sent) == 3 and len(call.pauses) == 2


@pytest.mark.parametrize(
    "operation",
    [
        lambda client: client.request("GET", "/x"),
        lambda client: client.request("get", "/x"),
        lambda client: client.request("POST", "/x", json={}, headers={"Idempotency-Key": "k"}),
        lambda client: client.request("DELETE", "/x", idempotent=True),
    ],
)
def test_an_idempotent_request_is_retried(operation: Callable[[Client], Any]) -> None:
    call = ScriptedCall(
        operation, [ConnectionLost("broken"), problem(503, "store-unavailable"), reply(200, {"a": 1})]
    )
    assert call.result == reply(200, {"a": 1}) and call.result.json() == {"a": 1}
    assert len(call.sent) == 3


def test_a_request_is_sent_with_the_given_path_parameters_and_body() -> None:
    call = ScriptedCall(
        lambda client: client.request("PUT", "/a%2Fb", params=[("x", "1"), ("x", "2")], json=[1]),
        [reply(200)],
    )
    headers = {"content-type": "application/json"}
    assert call.sent == [Request("PUT", "/a%2Fb", (("x", "1"), ("x", "2")), b"[1]", headers)]
    text = {"Content-Type": "text/plain"}
    call = ScriptedCall(
        lambda client: client.request("POST", "/a", params={"x": "1"}, content=b"hi", headers=text),
        [reply(200)],
    )
    assert call.sent == [Request("POST", "/a", (("x", "1"),), b"hi", {"content-type": "text/plain"})]


def test_a_request_takes_a_path_of_the_server_and_one_body() -> None:
    for path in ("http://127.0.0.1:9/x", "x", ""):
        with pytest.raises(ValueError, match="not a path"):
            ScriptedCall(lambda client, path=path: client.request("GET", path), [])  # type: ignore[misc]
    with pytest.raises(ValueError, match="not both"):
        ScriptedCall(lambda client: client.request("POST", "/x", json=1, content=b"1"), [])


def test_a_reply_that_is_not_json_is_accepted_only_on_request() -> None:
    page = Reply(200, {"content-type": "text/html"}, b"<p>")
    with pytest.raises(ProblemError, match="is this a Breadcrumbs server"):
        ScriptedCall(lambda client: client.request("GET", "/x"), [page])
    call = ScriptedCall(lambda client: client.request("GET", "/x", headers={"Accept": "text/*"}), [page])
    assert call.result.content == b"<p>"


def test_two_creates_have_two_keys() -> None:
    keys = {
        ScriptedCall(lambda client: client.create(), [reply(201, WRITTEN)]).sent[0].headers["idempotency-key"]
        for _ in range(5)
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    "operation",
    [
        lambda client: client.update(ID, title="x"),
        lambda client: client.update(ID, title="x", expected_version=3, merge_context=True),
        lambda client: client.delete(ID),
        lambda client: client.token(),
        lambda client: client.request("POST", "/x", json={}),
        lambda client: client.request("DELETE", "/x"),
        lambda client: client.request("GET", "/x", idempotent=False),
    ],
)
def test_a_request_that_is_not_idempotent_is_sent_once(operation: Callable[[Client], Any]) -> None:
    with pytest.raises(ServerUnreachable, match="broken"):
        ScriptedCall(operation, [ConnectionLost("broken")])
    with pytest.raises(StoreUnavailable):
        ScriptedCall(operation, [problem(503, "store-unavailable")])


def test_a_read_is_retried_up_to_the_limit_and_then_raises_the_reason() -> None:
    with pytest.raises(ServerUnreachable, match="crumb up"):
        ScriptedCall(lambda client: client.get(ID), [ConnectionLost("refused", refused=True)] * 3, retries=2)
    with pytest.raises(ServerUnreachable, match="in time"):
        ScriptedCall(lambda client: client.get(ID), [ConnectionLost("slow", timed_out=True)], retries=0)


def test_a_retry_waits_for_retry_after_up_to_a_limit() -> None:
    call = ScriptedCall(
        lambda client: client.create(),
        [
            problem(503, "store-unavailable")
            if not after
            else Reply(503, {"retry-after": after}, b'{"detail": "no"}')
            for after in ("2", "9999", "soon")
        ]
        + [reply(201, WRITTEN)],
    )
    assert call.pauses[:2] == [2.0, 10.0]
    assert 0 < call.pauses[2] < 2


def test_a_write_to_a_full_store_is_not_retried() -> None:
    with pytest.raises(StoreFull):
        ScriptedCall(lambda client: client.create(), [problem(503, "store-full")])


def test_the_backoff_grows_up_to_a_limit() -> None:
    assert 0.1 < backoff(0) < 0.3
    assert all(3 < backoff(attempt) < 7 for attempt in (10, 50, 1000))


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("not-found", 404, NotFound),
        ("invalid-input", 422, InvalidInput),
        ("something-new", 418, ProblemError),
    ],
)
def test_a_refusal_is_raised_with_the_problem_of_the_server(name: str, status: int, error: type) -> None:
    with pytest.raises(error) as raised:
        ScriptedCall(
            lambda client: client.get(ID),
            [problem(status, name, errors=[{"where": "tags.0", "message": "too long"}])],
        )
    found = raised.value
    assert isinstance(found, ProblemError)
    assert (found.status, found.type, found.detail) == (status, f"/docs#problem-{name}", "no")
    assert [(one.where, one.message) for one in found.errors] == [("tags.0", "too long")]
    assert str(found) == "no\n  tags.0: too long"
    assert type(pickle.loads(pickle.dumps(found))) is type(found)


@pytest.mark.parametrize(
    "error",
    [
        AgentFailed("no model", trigger_id="a", breadcrumb_id="b", cancelled=True),
        NoAnswer("no answer within 5 s", trigger_id="a"),
        ServerUnreachable("nothing answers"),
    ],
)
def test_every_error_can_be_pickled(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_version_mismatch_contains_the_current_and_the_expected_version() -> None:
    with pytest.raises(VersionMismatch) as raised:
        ScriptedCall(
            lambda client: client.delete(ID, expected_version=3),
            [problem(412, "version-mismatch", current_version=5)],
        )
    assert (raised.value.current, raised.value.expected) == (5, 3)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'"x"', b"{}", b"\xff"])
def test_a_reply_of_another_kind_of_server_is_an_error(body: bytes) -> None:
    with pytest.raises(ProblemError, match="is this a Breadcrumbs server"):
        ScriptedCall(lambda client: client.get(ID), [Reply(404, {}, body)])


def test_a_value_that_cannot_be_json_is_refused_before_sending() -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        ScriptedCall(lambda client: client.create(context={"x": object()}), [])
    with pytest.raises(InvalidInput, match="JSON"):
        ScriptedCall(lambda client: client.post("half a character: \ud800", "s"), [])


@pytest.mark.parametrize("filters", [{"session": "\ud800"}, {"tags": ["\ud800"]}, {"schema_name": "\ud800"}])
def test_a_filter_with_a_lone_surrogate_is_refused(filters: dict[str, Any]) -> None:
    with Client() as client:
        for operation in (client.list(**filters), client.events(**filters)):
            with pytest.raises(UnicodeError):
                next(operation)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://x", "", "http://"])
def test_an_invalid_server_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        check_address(url)


@pytest.mark.parametrize("secret", ["two\nlines", "ümlaut"])
def test_a_token_with_invalid_characters_is_refused(secret: str) -> None:
    for given_as in ("token", "api_key"):
        with pytest.raises(ValueError, match="not printable ASCII"):
            Client("http://x", **{given_as: secret})  # type: ignore[arg-type]


def test_a_problem_without_a_detail_is_accepted() -> None:
    assert str(problem_from_document({"status": 500})) == ""
    assert problem_from_document({"status": 404, "type": "/docs#problem-not-found"}).detail == ""


@given(st.text(max_size=1000))
def test_any_text_has_a_title_in_one_line(text: str) -> None:
    title = shorten_line(text)
    assert len(title) <= 80 and all(char.isprintable() or char in "\u200c\u200d" for char in title)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"score": math.nan}, "context.score is nan"),
        ({"all": [1.5, None, {"worst": -math.inf}]}, "context.all[2].worst is -inf"),
    ],
)
def test_numbers_that_json_cannot_represent_are_refused_with_their_path(
    document: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_request({"schema_name": "note.v1", "context": document})
    assert says in str(refused.value)
    assert b"null" in (create_request({"context": {"score": None, "other": 1.5}}).content or b"")


# Streams


STREAM = (
    b"retry: 2000\n: connected\n\n"
    b'id: A1\ndata: {"n": 1}\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\n'
    b'id: A2\r\ndata: {"text": "two\xe2\x80\xa8lines\xc2\x85 in one"}\r\n\r\n'
    b"data: first\ndata: second\n\n"
    b"event: gap\ndata: x\n\n"
    b"data: cut off"
)
MESSAGES = [
    ServerSentEvent("message", b'{"n": 1}', "A1"),
    ServerSentEvent("ping", b'{"type": "ping"}', "A1"),
    ServerSentEvent("message", '{"text": "two\u2028lines\x85 in one"}'.encode(), "A2"),
    ServerSentEvent("message", b"first\nsecond", "A2"),
    ServerSentEvent("gap", b"x", "A2"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_a_stream_is_parsed_the_same_with_any_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = Parser()
    assert [
        message for start, end in pairwise(edges) for message in parser.feed(STREAM[start:end])
    ] == MESSAGES


def frame(id: str | None, payload: dict[str, Any] | None = None, event: str | None = None) -> bytes:
    lines = [f"id: {id}"] if id else []
    lines += [f"event: {event}"] if event else []
    lines += [f"data: {orjson.dumps(payload).decode()}"] if payload is not None else []
    return ("\n".join(lines) + "\n\n").encode()


def event_frame(id: str, schema: str = "note.v1", *, crumb: str = ID, **context: Any) -> bytes:
    return frame(
        id,
        {
            "type": "breadcrumb.updated",
            "operation": "created",
            "breadcrumb_id": crumb,
            "owner_id": ID,
            "version": 1,
            "tags": ["session:s"],
            "session_id": "s",
            "schema_name": schema,
            "title": "t",
            "updated_at": "2026-11-16T09:00:00Z",
            "context": context,
        },
    )


def delta_frame(text: str, offset: int, *, trigger: str = ID, agent: str = "a", **more: Any) -> bytes:
    kind = "agent.response.delta"
    payload = {
        "type": kind,
        "session_id": "s",
        "trigger_id": trigger,
        "agent_id": agent,
        "breadcrumb_id": "b",
        "offset": offset,
        "text": text,
        **more,
    }
    return frame(None, payload, kind)


def follow(answers: list[Any], **options: Any) -> ScriptedCall:
    return ScriptedCall(lambda client: client.events(**options), answers, endless=True)


def test_a_broken_stream_resumes_after_the_last_seen_event() -> None:
    states: list[str] = []
    call = follow(
        [
            StreamOpened(),
            frame("A0"),
            event_frame("A1", n=1),
            ConnectionLost("broken"),
            ConnectionLost("refused", refused=True),
            problem(503, "store-unavailable"),
            StreamOpened(),
            event_frame("A2", n=2),
            b"",
            StreamOpened(),
            event_frame("A3", n=3),
        ],
        on_connection=lambda state, _: states.append(state),
    )
    assert [event.context["n"] for event in call.items] == [1, 2, 3]
    positions = [request.headers.get("last-event-id") for request in call.sent]
    assert positions == [None, "A1", "A1", "A1", "A2"]
    assert states == ["lost", "lost", "lost", "back", "lost", "back"]


def test_a_quiet_stream_resumes_from_the_position_of_the_last_ping() -> None:
    first, later = frame("A0", {"type": "ping"}, "ping"), frame("A5", {"type": "ping"}, "ping")
    call = follow([StreamOpened(), first, later, b"", StreamOpened()])
    assert [request.headers.get("last-event-id") for request in call.sent] == [None, "A5"]


def test_reconnecting_to_a_server_that_closes_early_backs_off() -> None:
    greeting = frame("A0", {"type": "ping"}, "ping")
    call = follow([*([StreamOpened(), greeting, b""] * 5), StreamOpened()])
    assert all(later > sooner for sooner, later in pairwise(call.pauses))


def test_a_first_connection_that_always_fails_is_an_error() -> None:
    with pytest.raises(ServerUnreachable):
        follow([ConnectionLost("refused", refused=True)] * 4)


def test_a_refused_stream_raises_the_problem() -> None:
    with pytest.raises(InvalidInput):
        follow([problem(422, "invalid-input")])


def test_events_are_typed_by_operation_delta_and_gap() -> None:
    gap = frame(None, {"type": "gap", "detail": "too long"}, "gap")
    ping = frame(None, {"type": "ping"}, "ping")
    seen = follow(
        [StreamOpened(), frame("A0"), event_frame("A1", n=1), ping, delta_frame("Hel", 0), gap]
    ).items
    created, piece, missed = seen
    assert (created.type, created.operation, created.event_id) == ("breadcrumb.created", "created", "A1")
    assert isinstance(piece, Delta) and (piece.text, piece.offset, piece.trigger_id) == ("Hel", 0, ID)
    assert isinstance(missed, Gap) and missed.detail == "too long"
    assert all(isinstance(event, Event) for event in seen)


# Turns

BY_AGENT = {"type": "agent", "agent_id": "a"}


@pytest.mark.parametrize("where", ["POST", "GET"])
def test_the_timeout_of_a_turn_applies_to_each_of_its_requests(where: str) -> None:
    """The server accepts the message, or the request for its outcome, and never replies."""
    ended = Signal()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/events/stream"):
                ended.wait(30)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(frame("A0", {"type": "ping"}, "ping"))
            ended.wait(30)

        def do_POST(self) -> None:
            if where == "POST":
                ended.wait(30)
                return
            self.send_response(201)
            self.send_header("content-type", "application/json")
            self.send_header("idempotency-replayed", "true")  # so that the client requests the outcome
            self.end_headers()
            self.wfile.write(orjson.dumps(WRITTEN))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(NoAnswer):
                client.session("s").say("hello", timeout=1)
            assert time.monotonic() - began < 4
        finally:
            ended.set()
            server.shutdown()


def turn(answers: list[Any], show: turns.Show = "answer", **options: Any) -> ScriptedCall:
    def say(client: Client) -> Any:
        return turns.AnswerFollower(client._connection, "s", show, options).say("Hello", options)  # type: ignore[arg-type]

    return ScriptedCall(say, answers)


TURN_STARTED: list[Any] = [StreamOpened(), b"retry: 2000\n: connected\n\n", frame("A0"), reply(201, WRITTEN)]


def test_a_turn_subscribes_before_it_posts_and_takes_only_its_own_answer() -> None:
    call = turn(
        [
            *TURN_STARTED,
            event_frame("A1", "user.message.v1", message="Hello"),
            event_frame(
                "A2", "agent.response.v1", trigger_id="another", message="not this", creator=BY_AGENT
            ),
            event_frame(
                "A3", "agent.error.v1", trigger_id="another", error="nor this", creator="agent-runner"
            ),
            event_frame("A4", "tool.request.v1", trigger_id=ID, tool="x"),
            event_frame(
                "A5", "agent.response.v1", trigger_id=ID, message="this", creator=BY_AGENT, crumb="c"
            ),
        ]
    )
    assert [request.method for request in call.sent] == ["GET", "POST"]
    (answer,) = call.items
    assert (answer.text, answer.id, answer.agent_id, answer.session_id) == ("this", "c", "a", "s")


def test_a_failed_turn_raises_the_reason() -> None:
    with pytest.raises(AgentFailed, match="no key") as raised:
        turn(
            [
                *TURN_STARTED,
                event_frame(
                    "A1", "agent.error.v1", trigger_id=ID, error="no key", cancelled=False, crumb="e"
                ),
            ]
        )
    assert (raised.value.trigger_id, raised.value.breadcrumb_id, raised.value.cancelled) == (ID, "e", False)


def test_an_answer_to_several_messages_answers_each_of_them() -> None:
    answered = event_frame(
        "A1", "agent.response.v1", trigger_id="later", answers=[ID, "later"], message="both"
    )
    assert turn([*TURN_STARTED, answered]).items[0].text == "both"


def test_a_turn_can_wait_for_the_answer_of_one_agent() -> None:
    others = event_frame("A1", "agent.response.v1", trigger_id=ID, message="first", creator=BY_AGENT)
    wanted = event_frame(
        "A2", "agent.response.v1", trigger_id=ID, message="mine", creator={"type": "agent", "agent_id": "b"}
    )
    pieces = [delta_frame("fi", 0), delta_frame("mi", 0, agent="b")]
    call = turn([*TURN_STARTED, *pieces, others, wanted], "pieces", agent="b")
    assert [one.text for one in call.items] == ["mi", "mine"]


def test_an_error_of_another_agent_does_not_end_the_wait() -> None:
    others = event_frame("A1", "agent.error.v1", trigger_id=ID, error="not I", agent_id="a")
    wanted = event_frame(
        "A2", "agent.response.v1", trigger_id=ID, message="mine", creator={"type": "agent", "agent_id": "b"}
    )
    assert turn([*TURN_STARTED, others, wanted], agent="b").items[0].text == "mine"
    for mine in ({"agent_id": "b"}, {}):  # an error without an agent applies to all agents
        failed = event_frame("A1", "agent.error.v1", trigger_id=ID, error="no key", **mine)
        with pytest.raises(AgentFailed, match="no key"):
            turn([*TURN_STARTED, failed], agent="b")


def test_an_answer_can_have_another_schema() -> None:
    report = event_frame("A1", "report.v1", trigger_id=ID, message="report", creator=BY_AGENT)
    assert turn([*TURN_STARTED, report]).items[0].text == "report"


def test_a_replayed_message_returns_its_stored_answer() -> None:
    replayed = reply(201, WRITTEN, idempotency_replayed="true")
    stored = {
        **WRITTEN,
        "schema_name": "agent.response.v1",
        "tags": ["session:s"],
        "context": {"trigger_id": ID, "message": "long ago", "creator": BY_AGENT},
    }
    outcome = reply(200, {"message": {}, "answer": stored})
    call = turn([StreamOpened(), frame("A0"), replayed, outcome], idempotency_key="k")
    assert call.items[0].text == "long ago"


def test_after_a_gap_the_outcome_is_read_from_the_server() -> None:
    gap = frame(None, {"type": "gap", "detail": "x"}, "gap")
    stored = {
        **WRITTEN,
        "schema_name": "agent.error.v1",
        "tags": ["session:s"],
        "context": {"trigger_id": ID, "error": "missed", "cancelled": True},
    }
    with pytest.raises(AgentFailed, match="missed") as raised:
        turn([*TURN_STARTED, gap, reply(200, {"message": {}, "error": stored})])
    assert raised.value.cancelled


class SlowServer(ServerConnection):
    """Sends pings and never an answer. Its clock advances only while the client waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ping_every: float) -> None:
        super().__init__(ServerAccess("http://127.0.0.1:1", {}), timeout=1.0, retries=3)
        self.now = 1000.0
        self.opened = 0
        self.ping_every = ping_every
        self.read_timeout = 0.0
        monkeypatch.setattr(events.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]

    def send(self, request: Request, timeout: float | None) -> Reply:
        return reply(201, WRITTEN)

    def open_stream(self, request: Request, read_timeout: float) -> ByteStream | Reply:
        self.opened += 1
        self.read_timeout = read_timeout
        return ScriptedStream(self.read)

    def read(self) -> bytes:
        if self.opened == 1 and self.now == 1000.0:
            self.now += 0.001
            return frame("A0")
        self.now += min(self.ping_every, self.read_timeout)
        if self.read_timeout <= self.ping_every:
            raise ConnectionLost("silent", timed_out=True)
        return frame(None, {}, "ping")

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("ping_every", [0.7, 10.0, 1000.0])
@pytest.mark.parametrize("limit", [0.5, 5.0, 60.0])
def test_pings_do_not_extend_the_timeout_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, ping_every: float, limit: float
) -> None:
    server = SlowServer(monkeypatch, ping_every)
    with pytest.raises(NoAnswer, match=f"within {limit:g} s") as raised:
        list(turns.AnswerFollower(server, "s", "answer", {"timeout": limit}).say("Hello", {}))
    server.close()
    assert raised.value.trigger_id == ID
    assert limit <= server.now - 1000.0 <= limit * 1.1 + 0.3
    assert server.opened < 20


def test_only_deltas_of_this_turn_come_before_its_answer() -> None:
    final = event_frame("A9", "agent.response.v1", trigger_id=ID, message="Hello", creator=BY_AGENT)
    call = turn(
        [
            *TURN_STARTED,
            delta_frame("Hel", 0),
            delta_frame("no", 0, trigger="another"),
            delta_frame("lo", 3),
            final,
        ],
        "pieces",
    )
    assert [one.text for one in call.items] == ["Hel", "lo", "Hello"]
    assert isinstance(call.items[-1], Answer)


def thought_frame(text: str, offset: int, reasoning: str, reasoning_offset: int) -> bytes:
    return delta_frame(text, offset, reasoning=reasoning, reasoning_offset=reasoning_offset)


@pytest.mark.parametrize(
    ("pieces", "texts", "reasoning"),
    [
        ([thought_frame("Hel", 0, "Hm", 0), thought_frame("Hel", 0, "Hm", 0)], ["Hel", "lo"], ["Hm"]),
        ([thought_frame("He", 0, "Hm", 0), thought_frame("Hell", 0, "Hm", 0)], ["He", "ll", "o"], ["Hm"]),
        (
            [
                thought_frame("", 0, "Hm", 0),
                thought_frame("", 0, "Hm, yes", 0),
                thought_frame("Hello", 0, "", 7),
            ],
            ["", "", "Hello"],
            ["Hm", ", yes"],
        ),
        # a second attempt begins like the first one
        ([delta_frame("Help me", 0), delta_frame("Hel", 0), delta_frame("lo", 3)], ["Help me", "lo"], []),
    ],
)
def test_text_and_reasoning_that_arrive_again_after_a_reconnect_are_not_repeated(
    pieces: list[bytes], texts: list[str], reasoning: list[str]
) -> None:
    final = event_frame(
        "A9", "agent.response.v1", crumb="b", trigger_id=ID, message="Hello", creator=BY_AGENT
    )
    *deltas, _ = turn([*TURN_STARTED, *pieces, final], "pieces").items
    assert [one.text for one in deltas] == texts
    assert [one.reasoning for one in deltas if one.reasoning] == reasoning
    shown = ""
    for one in deltas:
        shown = shown[: one.offset] + one.text
    assert shown == "Hello"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([delta_frame("Hel", 0)], ["Hel", "lo", "Hello"]),
        ([delta_frame("Hel", 0), delta_frame("lo", 3)], ["Hel", "lo", "Hello"]),
        ([delta_frame("He", 0), delta_frame("o", 4)], ["He", "o", "Hello"]),  # one delta was lost
        ([delta_frame("Hm", 0), delta_frame("Hell", 0)], ["Hm", "Hell", "o", "Hello"]),  # a second attempt
        ([delta_frame("<b>", 0)], ["<b>", "Hello"]),  # not a prefix of the answer
        ([], ["Hello"]),
    ],
)
def test_text_missing_from_the_deltas_is_yielded_before_the_answer(
    pieces: list[bytes], expected: list[str]
) -> None:
    final = event_frame(
        "A9", "agent.response.v1", crumb="b", trigger_id=ID, message="Hello", creator=BY_AGENT
    )
    call = turn([*TURN_STARTED, *pieces, final], "pieces")
    assert [one.text for one in call.items] == expected
    assert [one.offset for one in call.items[:-1] if one.text in ("lo", "o")] in ([3], [4], [])
