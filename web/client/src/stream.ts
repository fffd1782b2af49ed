/**
 * Event stream of a server. It reconnects automatically and continues after the last received event, so no event is
 * lost. If the server no longer has the events in between, it calls `onGap`.
 *
 * It uses `fetch`, because `EventSource` cannot send headers and hides the error messages of the server.
 */

import type { Client, Query } from "./client.ts";
import { ApiError } from "./errors.ts";
import type { JsonObject } from "./json.ts";
import { Pause, retryDelay, type Backoff } from "./retries.ts";
import { SseParser, type ServerSentEvent } from "./sse.ts";

export interface BreadcrumbEvent {
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

/** A model failed and is called again. */
export interface RetryNotice {
  /** Number of the attempt that follows. */
  attempt: number;
  reason: string;
  /** Time of the next attempt, by the clock of the server. */
  retry_at: string;
  /** Seconds until the next attempt, when the notice was sent. */
  retry_in: number;
}

/**
 * A piece of an answer that is being written. Deltas can get lost. `offset` is the position of this one: keep the text
 * before it and replace the rest. A client that joins later gets the whole text so far with offset 0.
 */
export interface AnswerDelta {
  type: "agent.response.delta";
  owner_id: string;
  session_id?: string;
  agent_id: string;
  trigger_id: string;
  /** Id of the future answer. */
  breadcrumb_id: string;
  /** In code points. */
  offset: number;
  text: string;
  /** Position in the reasoning of the model, in code points. Missing: there is no reasoning. */
  reasoning_offset?: number;
  reasoning?: string;
  /** The last failure of the model. It is over when a delta has none. */
  notice?: RetryNotice;
}

export interface StreamQuery extends Query {
  session_id?: string;
  schema_name?: string;
  any_tags?: readonly string[];
  all_tags?: readonly string[];
  /** A selector, as JSON. */
  filters?: string;
}

/**
 * `connecting`: not connected yet. `open`: connected. `lost`: disconnected, with a retry after a delay. `refused`: the
 * server refused the stream; no retry until `retryNow` or `reconnect` is called.
 */
export type StreamStatus = "connecting" | "open" | "lost" | "refused";

export interface StreamState {
  status: StreamStatus;
  /** Reason why the stream is lost or refused. */
  detail?: string;
  error?: ApiError;
}

export interface StreamHandlers {
  onEvent(event: BreadcrumbEvent): void;
  onDelta?(delta: AnswerDelta): void;
  /** The stream is open. If it is not `resumed`, list the breadcrumbs: earlier events are not sent. */
  onOpen?(resumed: boolean): void;
  /** Events were lost. List everything again. */
  onGap?(): void;
  /** The time of the server, as ISO 8601. */
  onTime?(time: string): void;
  onState?(state: StreamState): void;
}

export interface StreamOptions {
  backoff?: Backoff;
  /** A connection without data for this long is dead. The server sends a ping every 10 s by default. */
  silenceMs?: number;
  /** Also retry after errors that are not temporary. */
  retryRefusals?: boolean;
  /** Returns a token for the address of the stream, sent instead of the token of the client. Empty if there is none. */
  accessToken?: () => Promise<string>;
}

const BACKOFF: Backoff = { firstMs: 400, longestMs: 10_000 };
const SILENCE_MS = 60_000;

export class EventStream {
  readonly #client: Client;
  readonly #handlers: StreamHandlers;
  readonly #options: StreamOptions;
  readonly #end = new AbortController();
  readonly #pause = new Pause();
  #query: StreamQuery;
  #connection = new AbortController();
  #status: StreamStatus = "connecting";
  #lastId: string | undefined;
  /** Whether the server rejected our position. The next connection then starts with new events. */
  #positionLost = false;
  #isSuspended = false;
  #failures = 0;

  constructor(client: Client, query: StreamQuery, handlers: StreamHandlers, options: StreamOptions = {}) {
    this.#client = client;
    this.#query = query;
    this.#handlers = handlers;
    this.#options = options;
  }

  start(): void {
    this.#report({ status: "connecting" });
    void this.#run();
  }

  stop(): void {
    this.#end.abort();
    this.#connection.abort();
    this.#pause.end();
  }

  /** Change the query. No event in between is lost. */
  follow(query: StreamQuery): void {
    this.#query = query;
    this.reconnect();
  }

  /** Retry now, without waiting for the delay. */
  retryNow(): void {
    this.#failures = 0;
    this.#pause.end();
  }

  /** Connect again immediately, even if the stream is open. */
  reconnect(): void {
    this.#isSuspended = false;
    if (this.#status !== "lost") this.#report({ status: "connecting" });
    this.#connection.abort();
    this.#pause.end();
  }

  /** Close the connection until `reconnect` is called. */
  suspend(): void {
    this.#isSuspended = true;
    this.#connection.abort();
    this.#pause.end();
  }

  async #run(): Promise<void> {
    while (!this.#end.signal.aborted) {
      if (this.#isSuspended) {
        await this.#pause.wait();
        continue;
      }
      const connection = (this.#connection = new AbortController());
      const state = await this.#connect(connection);
      if (connection.signal.aborted || state === undefined) continue;
      this.#report(state);
      await this.#waitAfter(state);
    }
  }

  /** Read the stream until it ends. Return the reason, or undefined to open it again immediately. */
  async #connect(connection: AbortController): Promise<StreamState | undefined> {
    try {
      await this.#follow(connection.signal);
      return { status: "lost", detail: "The server ended the connection." };
    } catch (error) {
      if (!(error instanceof ApiError)) return { status: "lost", detail: "The connection broke." };
      if (error.status === 422 && this.#lastId !== undefined) {
        this.#lastId = undefined; // the position is from another store
        this.#positionLost = true;
        return undefined;
      }
      const isLost = error.isRetryable || this.#options.retryRefusals;
      return { status: isLost ? "lost" : "refused", detail: error.message, error };
    }
  }

  async #waitAfter({ status, error }: StreamState): Promise<void> {
    if (status === "refused") {
      await this.#pause.wait();
      if (!this.#end.signal.aborted) this.#report({ status: "connecting" });
      return;
    }
    const delay = retryDelay(this.#options.backoff ?? BACKOFF, this.#failures++);
    await this.#pause.wait(error?.retryAfter === undefined ? delay : error.retryAfter * 1000);
  }

  async #follow(connection: AbortSignal): Promise<void> {
    const silence = new AbortController();
    const watch = () => setTimeout(() => silence.abort(), this.#options.silenceMs ?? SILENCE_MS);
    let timer = watch();
    try {
      const signal = AbortSignal.any([connection, silence.signal]);
      const resumed = this.#lastId !== undefined;
      const reader = await this.#open(signal);
      let isOpen = resumed;
      if (resumed) this.#opened(true);
      const parser = new SseParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = watch();
        for (const message of parser.feed(value)) {
          // Only a message resets the delay. A connection that ends without one counts as a failure.
          this.#failures = 0;
          if (message.id) this.#lastId = message.id;
          if (!isOpen) this.#opened(false);
          isOpen = true;
          reportErrors(() => this.#dispatch(message));
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async #open(signal: AbortSignal): Promise<ReadableStreamDefaultReader<string>> {
    const accessToken = await this.#options.accessToken?.();
    signal.throwIfAborted();
    const response = await this.#client.open("/events/stream", {
      query: { ...this.#query, last_event_id: this.#lastId, access_token: accessToken },
      headers: { accept: "text/event-stream" },
      signal,
      ...(accessToken !== undefined && { token: "", quiet: true }),
    });
    if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) {
      throw this.#client.malformed(response);
    }
    return response.body.pipeThrough(new TextDecoderStream()).getReader();
  }

  #opened(resumed: boolean): void {
    this.#report({ status: "open" });
    if (this.#positionLost) this.#handlers.onGap?.();
    this.#handlers.onOpen?.(resumed || this.#positionLost);
    this.#positionLost = false;
  }

  #dispatch({ event, data }: ServerSentEvent): void {
    if (!data) return;
    switch (event) {
      case "message":
        return this.#handlers.onEvent(JSON.parse(data) as BreadcrumbEvent);
      case "agent.response.delta":
        return this.#handlers.onDelta?.(JSON.parse(data) as AnswerDelta);
      case "ping":
        return this.#handlers.onTime?.((JSON.parse(data) as { ts: string }).ts);
      case "gap":
        return this.#handlers.onGap?.();
    }
  }

  #report(state: StreamState): void {
    this.#status = state.status;
    this.#handlers.onState?.(state);
  }
}

/** Call a handler. Report its error as uncaught, so that it does not end the connection. */
function reportErrors(handle: () => void): void {
  try {
    handle();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
