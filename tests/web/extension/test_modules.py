"""Unit tests of the modules of the chat extension, in a page of the extension."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import Page

from tests.web.extension_support import Chrome


@pytest.fixture
async def blank(chrome: Chrome) -> Page:
    return await chrome.page("options.html")


MARKDOWN = [
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    (
        "a **bold** and *it* and `x*y*`",
        "<p>a <strong>bold</strong> and <em>it</em> and <code>x*y*</code></p>",
    ),
    ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
    ("# Title", "<h3>Title</h3>"),
    ("- a\n- b\n  1. c\n- d", '<ul><li>a</li><li>b<ol start="1"><li>c</li></ol></li><li>d</li></ul>'),
    ("text:\n1. a\n\n2. b", '<p>text:</p><ol start="1"><li>a</li><li>b</li></ol>'),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    (
        "```js\nlet a = '**';",
        '<div class="code-block"><div class="code-head"><span>js</span>'
        '<button type="button" class="copy">Copy</button></div>'
        '<pre tabindex="0" aria-label="Code, js"><code>let a = \'**\';</code></pre></div>',
    ),
    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;</p>"),
    ("&lt;b&gt;x&lt;/b&gt;", "<p>&lt;b&gt;x&lt;/b&gt;</p>"),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    (
        "see https://example.org/a_b_(c).",
        '<p>see <a href="https://example.org/a_b_(c)" title="https://example.org/a_b_(c)" target="_blank" '
        'rel="noopener noreferrer nofollow">https://example.org/a_b_(c)</a>.</p>',
    ),
    (r"\*not\*", "<p>*not*</p>"),
    ("~~old~~", "<p><del>old</del></p>"),
    (
        "- [x] a\n- [ ] b",
        '<ul><li><span aria-hidden="true">☑ </span><span class="unseen">done: </span>a</li>'
        '<li><span aria-hidden="true">☐ </span><span class="unseen">to do: </span>b</li></ul>',
    ),
    (
        "a | b\n--|--\n1 | **2**",
        '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
        "<thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td><strong>2</strong></td></tr></tbody></table></div>",
    ),
]


async def test_markdown_is_rendered_as_elements(blank: Page) -> None:
    made = await blank.evaluate(
        """async sources => {
            const { markdown } = await import("/src/markdown.js");
            return sources.map((source) => {
                const box = document.createElement("div");
                box.append(markdown(source));
                return box.innerHTML;
            });
        }""",
        [source for source, _ in MARKDOWN],
    )
    assert made == [shown for _, shown in MARKDOWN]


async def test_pathological_markdown_is_rendered_quickly(blank: Page) -> None:
    took = await blank.evaluate(
        """async () => {
            const { markdown } = await import("/src/markdown.js");
            const began = performance.now();
            for (const piece of [
                "**a ", "[", "`a ", "_a ", "> ", "- ", "http://", "[a](", "\\n> ", "\\n- ", "((", "#",
            ]) {
                markdown(piece.repeat(20_000));
            }
            return performance.now() - began;
        }"""
    )
    assert took < 10_000


async def test_deltas_are_joined_by_character_offset_and_a_gap_is_ignored(
    blank: Page,
) -> None:
    texts = await blank.evaluate(
        """async () => {
            const { Conversation } = await import("/src/conversation.js");
            const talk = new Conversation();
            const shown = [];
            const piece = (offset, text) => {
                talk.take({ type: "agent.response.delta", breadcrumb_id: "a", trigger_id: "m", offset, text });
                shown.push(talk.drafts().map((draft) => draft.letters.join("")).join("|"));
            };
            piece(0, "🍞🍞 a");
            piece(4, "nd b");
            piece(20, "lost before");
            piece(2, "!");
            piece(0, "anew");
            talk.take({ operation: "created", breadcrumb_id: "a", version: 1, schema_name: "agent.response.v1",
                        title: "", tags: [], context: { message: "anew and done" }, updated_at: "2026" });
            piece(4, "too late");
            return shown;
        }"""
    )
    assert texts == ["🍞🍞 a", "🍞🍞 and b", "🍞🍞 and b", "🍞🍞!", "anew", ""]


async def test_an_edit_that_arrives_before_the_list_is_kept(blank: Page) -> None:
    shown = await blank.evaluate(
        """async () => {
            const { Conversation } = await import("/src/conversation.js");
            const talk = new Conversation();
            const answer = { schema_name: "agent.response.v1", title: "", tags: [] };
            talk.take({ ...answer, operation: "updated", breadcrumb_id: "a", version: 2,
                        context: { message: "as it is" }, updated_at: "2026-02" });
            const before = talk.entries().length;
            talk.add({ ...answer, id: "a", version: 1, context: { message: "as it was" },
                       created_at: "2026-01", updated_at: "2026-01" });
            return [before, ...talk.entries().map(({ text, at }) => [text, at])];
        }"""
    )
    assert shown == [0, ["as it is", "2026-01"]]


@pytest.mark.parametrize(
    "first", ["id: 7\n\n", 'id: 7\nevent: ping\ndata: {"type":"ping","ts":"2026-01-01T00:00:00Z"}\n\n']
)
async def test_a_stream_resumes_from_the_last_id_of_any_frame(blank: Page, first: str) -> None:
    told: list[Any] = await blank.evaluate(
        """(first) => new Promise(async (resolve) => {
            const { Client, EventStream } = await import("/client/index.js");
            const told = [];
            const quiet = 'id: 9\\nevent: ping\\ndata: {"type":"ping","ts":"2026-01-01T00:00:10Z"}\\n\\n';
            const fetch = async (address) => {
                const query = new URL(address).searchParams;
                told.push(query.get("last_event_id") ?? "from now on");
                if (told.filter((one) => one !== "fresh").length === 3) { stream.stop(); resolve(told); }
                const text = told.length === 1 ? first : quiet;
                return new Response(text, { headers: { "content-type": "text/event-stream" } });
            };
            const onOpen = (resumed) => resumed || told.push("fresh");
            const client = new Client({ server: "http://127.0.0.1:9", fetch });
            const stream = new EventStream(client, { session_id: "s" }, { onEvent() {}, onOpen });
            stream.start();
        })""",
        first,
    )
    assert told == ["from now on", "fresh", "7", "9"]


async def test_reconnects_to_a_server_that_hangs_up_are_delayed_more_and_more(blank: Page) -> None:
    times: list[float] = await blank.evaluate(
        """() => new Promise(async (resolve) => {
            const { Client, EventStream } = await import("/client/index.js");
            const times = [];
            const body = (text) => new Response(text, { headers: { "content-type": "text/event-stream" } });
            const fetch = async () => {
                times.push(performance.now());
                if (times.length === 6) { stream.stop(); resolve(times); }
                return body(times.length === 1 ? "id: 1\\n\\n" : "retry: 2000\\n: connected\\n\\n");
            };
            const stream = new EventStream(new Client({ fetch }), { session_id: "s" }, { onEvent() {} });
            stream.start();
        })"""
    )
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[-1] > 2 * pauses[0], pauses


async def test_events_are_parsed_from_chunks_of_any_size(blank: Page) -> None:
    messages: list[list[Any]] = await blank.evaluate(
        """async () => {
            const { SseParser } = await import("/client/index.js");
            const text = "retry: 2000\\n: hi\\n\\nid: 1\\n\\n"
                + 'id: 2\\ndata: {"a":\\ndata: 1}\\n\\nevent: ping\\r\\ndata: x\\r\\n\\r\\n';
            return [1, 2, 3, 7, 1000].map((size) => {
                const parser = new SseParser();
                const found = [];
                for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
                return found.map(({ event, data, id }) => [event, data, id]);
            });
        }"""
    )
    expected = [["message", "", "1"], ["message", '{"a":\n1}', "2"], ["ping", "x", "2"]]
    assert messages == [expected] * 5


async def test_a_stream_with_an_unknown_position_starts_over_and_reports_a_gap(
    blank: Page,
) -> None:
    told: list[Any] = await blank.evaluate(
        """() => new Promise(async (resolve) => {
            const { Client, EventStream } = await import("/client/index.js");
            const told = [];
            const replies = [
                new Response("id: 7\\n\\n", { headers: { "content-type": "text/event-stream" } }),
                Response.json({ title: "unknown position", status: 422 }, { status: 422 }),
                new Response("id: 1\\n\\n", { headers: { "content-type": "text/event-stream" } }),
            ];
            const fetch = async (address) => {
                told.push(new URL(address).searchParams.get("last_event_id"));
                if (replies.length) return replies.shift();
                stream.stop();
                resolve(told);
                return new Response();
            };
            const stream = new EventStream(new Client({ server: "http://127.0.0.1:9", fetch }), {}, {
                onEvent() {},
                onOpen: (resumed) => told.push(resumed ? "resumed" : "fresh"),
                onGap: () => told.push("gap"),
            });
            stream.start();
        })"""
    )
    assert told == [None, "fresh", "7", None, "gap", "resumed", "1"]


async def test_a_suspended_stream_resumes_from_its_last_event(blank: Page) -> None:
    told: list[Any] = await blank.evaluate(
        """() => new Promise(async (resolve) => {
            const { Client, EventStream } = await import("/client/index.js");
            const told = [];
            const fetch = async (address, { signal }) => {
                told.push(new URL(address).searchParams.get("last_event_id"));
                if (told.length > 1) { stream.stop(); resolve(told); }
                const open = new ReadableStream({ start(controller) {
                    controller.enqueue(new TextEncoder().encode("id: 7\\n\\n"));
                    signal.addEventListener("abort", () => controller.error(signal.reason));
                } });
                return new Response(open, { headers: { "content-type": "text/event-stream" } });
            };
            const client = new Client({ server: "http://127.0.0.1:9", fetch });
            const stream = new EventStream(client, {}, { onEvent() {}, onOpen: () => stream.suspend() });
            stream.start();
            setTimeout(() => { told.push("shown again"); stream.reconnect(); }, 1_000);
        })"""
    )
    assert told == [None, "shown again", "7"]


async def test_an_outbox_sends_in_order_retries_and_marks_refused_entries(
    blank: Page,
) -> None:
    sent, left = await blank.evaluate(
        """async () => {
            const { ApiError, Outbox } = await import("/client/index.js");
            const failure = (status) => new ApiError(`status ${status}`, { kind: "refused", server: "", status });
            const troubles = { first: [503, 0], second: [413], third: [] };
            let entries = [];
            const sent = [];
            const outbox = new Outbox({
                storage: { read: () => entries, change: (edit) => { entries = edit(entries); } },
                backoff: { firstMs: 1, longestMs: 1 },
                marks: { refused: (failed) => ({ failed }) },
                isWaiting: (entry) => !entry.failed,
                send: async ({ text, key }) => {
                    sent.push([text, key]);
                    const status = troubles[text].shift();
                    if (status !== undefined) throw failure(status);
                    if (text === "third") outbox.stop();
                },
            });
            for (const text of ["first", "second", "third"]) outbox.add({ text });
            await outbox.run();
            return [sent, entries.map(({ text, failed }) => [text, failed])];
        }"""
    )
    assert [text for text, _ in sent] == ["first", "first", "first", "second", "third"]
    assert len({key for text, key in sent if text == "first"}) == 1
    assert left == [["second", "status 413"]]
