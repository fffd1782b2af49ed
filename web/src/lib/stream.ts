/**
 * What happens on the blackboard, as it happens. A stream comes back by itself where it was, so nothing is
 * missed; where the server no longer has what was missed, `onGap` says to list again.
 *
 * A browser gives a page only six connections to a server, over all its tabs. So a page has one stream at a
 * time, and a tab that nobody sees lets go of its own after a while and takes it up again where it was.
 */

import { signal } from "@preact/signals";
import { ApiError, api, credential, streamToken, withQuery, type JsonObject } from "./api";
import { setServerTime } from "./clock";

export interface CrumbEvent {
  type: "breadcrumb.created" | "breadcrumb.updated" | "breadcrumb.deleted";
  operation: "created" | "updated" | "deleted";
  breadcrumb_id: string;
  owner_id: string;
  version: number;
  schema_name?: string;
  session_id?: string;
  tags: string[];
  updated_at: string;
  title?: string;
  context?: JsonObject;
}

/** A piece of an answer that is being made. Pieces may get lost: `offset` says where this one belongs. */
export interface Delta {
  type: "agent.response.delta";
  owner_id: string;
  session_id?: string;
  agent_id: string;
  trigger_id: string;
  /** The id that the finished answer will have. */
  breadcrumb_id: string;
  offset: number;
  text: string;
}

export interface StreamQuery {
  [name: string]: string | readonly string[] | undefined;
  session_id?: string;
  schema_name?: string;
  any_tags?: readonly string[];
  all_tags?: readonly string[];
  /** A selector as JSON. */
  filters?: string;
}

export interface Listener {
  onEvent(event: CrumbEvent): void;
  onDelta?(delta: Delta): void;
  /** The stream is open. `again` is false the first time. What came in between follows as events. */
  onOpen?(again: boolean): void;
  /** The server no longer has what was missed: list what you need again. */
  onGap?(): void;
}

export type Connection = "idle" | "connecting" | "open" | "lost";

/** How the page's stream is doing; the shell shows it. */
export const connection = signal<Connection>("idle");

/** The server says something at least every 10 s; silence for much longer is a dead connection. */
const SILENCE = 35_000;
/** Coming back loses nothing, so a tab need not hold on for long. */
const HIDDEN_FOR = 20_000;
const SLOWEST_RETRY = 8_000;

export class Stream {
  #query: StreamQuery;
  readonly #listener: Listener;
  #source: EventSource | null = null;
  #lastId: string | undefined;
  #opened = false;
  #failures = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #watchdog: ReturnType<typeof setTimeout> | undefined;
  #hidden: ReturnType<typeof setTimeout> | undefined;
  #closed = false;
  #attempt = 0;
  readonly #forget: () => void;

  constructor(query: StreamQuery, listener: Listener, lastId?: string) {
    this.#query = query;
    this.#listener = listener;
    this.#lastId = lastId;
    document.addEventListener("visibilitychange", this.#onVisibility);
    window.addEventListener("online", this.#atOnce);
    let known = credential.peek();
    this.#forget = credential.subscribe((now) => {
      if (now !== known) this.#again();
      known = now;
    });
    void this.#connect();
  }

  /** Listen for something else from here on; nothing in between is missed. */
  follow(query: StreamQuery): void {
    if (JSON.stringify(query) === JSON.stringify(this.#query)) return;
    this.#query = query;
    this.#shut();
    void this.#connect();
  }

  close(): void {
    this.#closed = true;
    this.#shut();
    document.removeEventListener("visibilitychange", this.#onVisibility);
    window.removeEventListener("online", this.#atOnce);
    clearTimeout(this.#hidden);
    this.#forget();
    connection.value = "idle";
  }

  #shut(): void {
    this.#attempt += 1;
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
  }

  async #connect(): Promise<void> {
    const attempt = ++this.#attempt;
    if (document.hidden) this.#letGoSoon(); // opened behind the others, or woken there
    if (connection.value !== "lost") connection.value = "connecting";
    let token: string;
    try {
      token = await streamToken();
    } catch (error) {
      if (attempt !== this.#attempt) return;
      this.#failures += 1;
      connection.value = "lost";
      this.#later(error instanceof ApiError ? error.retryAfter : undefined);
      return;
    }
    if (attempt !== this.#attempt || this.#closed) return;
    const address = withQuery("/events/stream", {
      ...this.#query,
      last_event_id: this.#lastId,
      access_token: token,
    });
    const source = (this.#source = new EventSource(address));
    source.onopen = () => {
      connection.value = "open";
      this.#listener.onOpen?.(this.#opened);
      this.#opened = true;
      this.#heard(source);
    };
    source.onmessage = (message) => {
      this.#heard(source, message);
      if (message.data) this.#listener.onEvent(JSON.parse(message.data) as CrumbEvent);
    };
    source.addEventListener("agent.response.delta", (message) => {
      this.#heard(source, message);
      this.#listener.onDelta?.(JSON.parse(message.data) as Delta);
    });
    // A position that came without an event is told by the next ping, and until then by the source itself.
    source.addEventListener("ping", (message) => {
      this.#heard(source, message);
      setServerTime((JSON.parse(message.data) as { ts?: string }).ts);
    });
    source.addEventListener("gap", (message) => {
      this.#heard(source, message);
      this.#listener.onGap?.();
    });
    source.onerror = () => {
      if (this.#source !== source) return;
      this.#failures += 1;
      connection.value = "lost";
      clearTimeout(this.#watchdog);
      // While it can, the source tries again by itself, and knows where it was. After an HTTP error it does not.
      if (source.readyState === EventSource.CLOSED) {
        this.#shut();
        void this.#whyRefused();
      } else if (token) {
        // The server ends a stream when its token expires: coming back takes a fresh one.
        this.#shut();
        this.#later();
      }
    };
  }

  #heard(source: EventSource, message?: MessageEvent<string>): void {
    if (message?.lastEventId) this.#lastId = message.lastEventId;
    if (message) this.#failures = 0; // a connection that says nothing before it breaks was none
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => {
      if (this.#source === source) this.#again();
    }, SILENCE);
  }

  /** An event source does not tell what the server answered; a plain request does. */
  async #whyRefused(): Promise<void> {
    const attempt = this.#attempt;
    const abort = new AbortController();
    try {
      const query = { ...this.#query, last_event_id: this.#lastId };
      const ask = api("/events/stream", { query, signal: abort.signal, headers: { accept: "text/event-stream" } });
      // Refusals come at once; what does not is a stream.
      await Promise.race([ask, new Promise((done) => setTimeout(done, 2_000))]);
    } catch (error) {
      if (error instanceof ApiError && error.status === 422 && this.#lastId !== undefined) {
        this.#lastId = undefined; // another server, or another data directory
        if (attempt === this.#attempt) this.#listener.onGap?.();
      }
    } finally {
      abort.abort();
    }
    if (attempt === this.#attempt) this.#later();
  }

  /** `seconds`: how long the server asked to wait. */
  #later(seconds?: number): void {
    if (this.#closed) return;
    clearTimeout(this.#timer);
    const pause = seconds ? seconds * 1000 : Math.min(SLOWEST_RETRY, 250 * 2 ** Math.min(this.#failures, 6));
    this.#timer = setTimeout(() => void this.#connect(), pause * (0.75 + Math.random() / 2));
  }

  #again(): void {
    if (this.#closed) return;
    this.#shut();
    void this.#connect();
  }

  readonly #atOnce = () => {
    if (connection.value !== "open") this.#again();
  };

  readonly #onVisibility = () => {
    clearTimeout(this.#hidden);
    if (document.hidden) this.#letGoSoon();
    else if (this.#source === null) this.#again();
  };

  #letGoSoon(): void {
    clearTimeout(this.#hidden);
    this.#hidden = setTimeout(() => this.#shut(), HIDDEN_FOR);
  }
}
