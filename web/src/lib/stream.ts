/**
 * Event stream of the page.
 *
 * A browser allows six connections to a server, over all tabs. So each page has one stream, and a hidden tab closes
 * its stream after a while. When the tab is shown again, the stream continues without losing events.
 */

import { signal } from "@preact/signals";
import {
  EventStream,
  type AnswerDelta,
  type BreadcrumbEvent,
  type StreamOptions,
  type StreamQuery,
  type StreamState,
} from "@breadcrumbs/client";
import { setServerTime } from "./clock";
import { credential, credentialWanted } from "./credential";
import { client, streamToken } from "./server";

export interface Listener {
  onEvent(event: BreadcrumbEvent): void;
  onDelta?(delta: AnswerDelta): void;
  /** The stream is open. `again` is false the first time. Missed events follow. */
  onOpen?(again: boolean): void;
  /** Events were lost. List everything again. */
  onGap?(): void;
}

export type Connection = "idle" | "connecting" | "open" | "lost";

/** State of the stream, shown by the shell. */
export const connection = signal<Connection>("idle");

const OPTIONS: StreamOptions = {
  backoff: { firstMs: 500, longestMs: 8_000 },
  silenceMs: 35_000,
  retryRefusals: true,
  accessToken: streamToken,
};

/** A hidden tab closes its connection after this time. */
const HIDDEN_MS = 20_000;

export class Stream {
  readonly #listener: Listener;
  readonly #events: EventStream;
  readonly #unsubscribe: () => void;
  #query: StreamQuery;
  #hasOpened = false;
  #isSuspended = false;
  #hiddenTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(query: StreamQuery, listener: Listener) {
    this.#query = query;
    this.#listener = listener;
    this.#events = new EventStream(client, query, this.#handlers(), OPTIONS);
    document.addEventListener("visibilitychange", this.#onVisibility);
    window.addEventListener("online", this.#onOnline);
    let known = credential.peek();
    this.#unsubscribe = credential.subscribe((now) => {
      if (now !== known) this.#reconnect();
      known = now;
    });
    if (document.hidden) this.#suspendSoon();
    this.#events.start();
  }

  /** Change the query. No event in between is lost. */
  follow(query: StreamQuery): void {
    if (JSON.stringify(query) === JSON.stringify(this.#query)) return;
    this.#query = query;
    this.#isSuspended = false;
    this.#events.follow(query);
    if (document.hidden) this.#suspendSoon();
  }

  close(): void {
    this.#events.stop();
    document.removeEventListener("visibilitychange", this.#onVisibility);
    window.removeEventListener("online", this.#onOnline);
    clearTimeout(this.#hiddenTimer);
    this.#unsubscribe();
    connection.value = "idle";
  }

  #handlers() {
    const listener = this.#listener;
    return {
      onEvent: (event: BreadcrumbEvent) => listener.onEvent(event),
      onDelta: (delta: AnswerDelta) => listener.onDelta?.(delta),
      onOpen: () => {
        listener.onOpen?.(this.#hasOpened);
        this.#hasOpened = true;
      },
      onGap: () => listener.onGap?.(),
      onTime: setServerTime,
      onState: ({ status, error }: StreamState) => {
        connection.value = status === "refused" ? "lost" : status;
        if (error?.status === 401) credentialWanted.value = error.message;
      },
    };
  }

  #reconnect(): void {
    this.#isSuspended = false;
    this.#events.reconnect();
    if (document.hidden) this.#suspendSoon();
  }

  readonly #onOnline = () => {
    if (connection.value !== "open") this.#reconnect();
  };

  readonly #onVisibility = () => {
    clearTimeout(this.#hiddenTimer);
    if (document.hidden) this.#suspendSoon();
    else if (this.#isSuspended || connection.value === "lost") this.#reconnect();
  };

  #suspendSoon(): void {
    clearTimeout(this.#hiddenTimer);
    this.#hiddenTimer = setTimeout(() => {
      this.#isSuspended = true;
      this.#events.suspend();
    }, HIDDEN_MS);
  }
}
