/** State of the chat page: session list, open conversation, and the event stream for both. */

import { effect, signal, untracked } from "@preact/signals";
import { newId, type Message, type StreamQuery } from "@breadcrumbs/client";
import { shortened } from "../../lib/format";
import { sendNow } from "../../lib/outbox";
import { go, href, route } from "../../lib/router";
import { Stream } from "../../lib/stream";
import { Conversation } from "./conversation";
import { MessageSearch } from "./message-search";
import { nameOf, SessionList } from "./session-list";

export class Chat {
  readonly list = new SessionList();
  readonly found = new MessageSearch();
  readonly open = signal<Conversation | null>(null);
  /** The answer that is explained in the side panel. */
  readonly why = signal<Message | null>(null);
  /** Whether the session list is open. On narrow screens it covers the conversation. */
  readonly listShown = signal(false);
  /** Whether the open session was reached with a key that is also a letter. Then the composer must not take the focus. */
  isBrowsing = false;

  readonly #stream: Stream;
  readonly #unwatch: () => void;
  readonly #untitle: () => void;

  constructor() {
    this.#stream = new Stream(queryFor(sessionInAddress()), {
      onEvent: (event) => {
        this.open.peek()?.onEvent(event);
        this.list.onEvent(event, this.open.peek()?.id);
      },
      onDelta: (delta) => this.open.peek()?.onDelta(delta),
      onOpen: () => {
        // Load messages from while the stream was closed. The stream also sends missed events, but not if they were
        // too old, or if the address now belongs to another server.
        sendNow();
        void this.list.load();
        void this.#catchUp();
      },
      onGap: () => {
        void this.open.peek()?.startOver();
        void this.list.startOver();
      },
    });
    void this.list.load();
    this.#unwatch = effect(() => {
      const id = sessionInAddress();
      if (route.value.page === "chat") untracked(() => this.#show(id));
    });
    this.#untitle = effect(() => {
      const unread = this.list.unread.value.size;
      const open = this.open.value;
      const name = open ? shortened(nameOf(this.list.get(open.id)), 60) : "Chat";
      document.title = `${unread ? `(${unread}) ` : ""}${name} · Breadcrumbs`;
    });
    window.addEventListener("focus", this.#onFocus);
  }

  close(): void {
    this.#unwatch();
    this.#untitle();
    this.#stream.close();
    this.open.peek()?.close();
    this.list.close();
    this.found.close();
    window.removeEventListener("focus", this.#onFocus);
  }

  /** Send a message. Creates a session if none is open. */
  say(text: string): void {
    let conversation = this.open.peek();
    if (conversation === null) {
      conversation = new Conversation(newId(), true);
      this.#enter(conversation, true);
      go(href("chat", [conversation.id]), true);
    }
    conversation.say(text);
    this.list.touch(conversation.id);
  }

  startNew(): void {
    this.listShown.value = false;
    go(href("chat"));
  }

  /** Open the next or previous session in the list. */
  step(by: 1 | -1, isBrowsing = false): void {
    const shown = this.list.shown.peek();
    const here = shown.findIndex((session) => session.id === this.open.peek()?.id);
    const next = shown[here < 0 ? 0 : here + by];
    if (!next) return;
    this.isBrowsing = isBrowsing;
    go(href("chat", [next.id]));
  }

  #show(id: string | undefined): void {
    const before = this.open.peek();
    this.listShown.value = false;
    if (before?.id === id) return;
    if (id === undefined) {
      this.#leave();
      this.list.keep(undefined);
      this.#stream.follow(queryFor(undefined));
    } else {
      this.#enter(new Conversation(id));
    }
  }

  #enter(conversation: Conversation, isNew = false): void {
    this.#leave();
    this.open.value = conversation;
    this.list.seen(conversation.id);
    if (!isNew) this.list.keep(conversation.id);
    this.#stream.follow(queryFor(conversation.id));
  }

  async #catchUp(): Promise<void> {
    if (await this.open.peek()?.catchUp()) await this.list.startOver();
  }

  #leave(): void {
    this.open.peek()?.close();
    this.open.value = null;
    this.why.value = null;
  }

  readonly #onFocus = () => {
    void this.list.load();
  };
}

function sessionInAddress(): string | undefined {
  return route.value.page === "chat" ? route.value.rest[0] : undefined;
}

/** Return the query for all events of the open session, and the events of others that change the list. */
function queryFor(session: string | undefined): StreamQuery {
  const listed = ["user:message", "agent:response", "agent:error", "session-change"];
  return { any_tags: session === undefined ? listed : [`session:${session}`, ...listed] };
}
