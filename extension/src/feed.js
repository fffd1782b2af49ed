// The event stream of one session, which comes back by itself where it was.
//
// It is read with fetch and not with EventSource, so that the token travels in a header and not in the address.

import { Problem } from "./api.js";

// The server says something at least every ten seconds unless it is told otherwise.
const SILENCE_MS = 60_000;
const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 10_000;

/** @typedef {{event: string, data: string, id: string | undefined}} Message */
/**
 * `connecting`: not yet there. `open`: live. `lost`: it was there or could not be reached, and is tried again.
 * `refused`: the server does not let us in, and will not until something is changed.
 * @typedef {{status: "connecting" | "open" | "lost" | "refused", detail?: string}} FeedState
 */

/** Server-sent events out of text, however it is cut into pieces. */
export class SseParser {
  #rest = "";
  #event = "message";
  /** @type {string[]} */
  #data = [];
  /** @type {string | undefined} */
  #id = undefined;

  /**
   * @param {string} piece
   * @returns {Message[]}
   */
  feed(piece) {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = /** @type {string} */ (lines.pop());
    return lines.map((line) => this.#take(line.replace(/\r$/, ""))).filter((message) => message !== undefined);
  }

  /** @param {string} line */
  #take(line) {
    if (line === "") {
      const message =
        this.#data.length || this.#id !== undefined
          ? { event: this.#event, data: this.#data.join("\n"), id: this.#id }
          : undefined;
      this.#event = "message";
      this.#data = [];
      return message;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
    return undefined;
  }
}

export class Feed {
  #api;
  #session;
  #handlers;
  #end = new AbortController();
  #wake = () => {};
  /** @type {string | undefined} */
  #lastId = undefined;
  #failures = 0;

  /**
   * @param {import("./api.js").Api} api
   * @param {string} session
   * @param {{onEvent: (payload: any) => void, onFresh: () => void, onState: (state: FeedState) => void,
   *   onTime: (iso: string) => void}} handlers `onTime`: what time it is on the server.
   *   `onFresh`: events are complete from here on, and only from here on, so whatever was before has to be listed.
   */
  constructor(api, session, handlers) {
    this.#api = api;
    this.#session = session;
    this.#handlers = handlers;
  }

  start() {
    this.#run().catch((error) => {
      if (!this.#end.signal.aborted) throw error;
    });
  }

  stop() {
    this.#end.abort();
    this.#wake();
  }

  /** Try again now, where we are waiting. */
  nudge() {
    this.#failures = 0;
    this.#wake();
  }

  async #run() {
    this.#handlers.onState({ status: "connecting" });
    while (!this.#end.signal.aborted) {
      let detail = "The server ended the connection.";
      /** @type {number | undefined} */
      let wait;
      try {
        await this.#follow();
      } catch (error) {
        if (this.#end.signal.aborted) return;
        if (error instanceof Problem) {
          detail = error.message;
          wait = error.retryAfterMs;
          if (error.status === 422 && this.#lastId !== undefined) {
            this.#lastId = undefined; // another store than before: begin anew
            continue;
          }
          if (!error.passes) {
            this.#handlers.onState({ status: "refused", detail });
            await this.#pause(undefined);
            this.#handlers.onState({ status: "connecting" });
            continue;
          }
        } else {
          detail = "The connection broke.";
        }
      }
      if (this.#end.signal.aborted) return;
      this.#handlers.onState({ status: "lost", detail });
      await this.#pause(wait ?? waitAfter(this.#failures++));
    }
  }

  async #follow() {
    const resuming = this.#lastId !== undefined;
    const attempt = new AbortController();
    const silence = () => setTimeout(() => attempt.abort(), SILENCE_MS);
    let timer = silence();
    try {
      const response = await this.#api.request("GET", "/events/stream", {
        query: { session_id: this.#session },
        headers: {
          Accept: "text/event-stream",
          ...(this.#lastId === undefined ? {} : { "Last-Event-ID": this.#lastId }),
        },
        signal: AbortSignal.any([this.#end.signal, attempt.signal]),
        endless: true,
      });
      if (!response.body || !response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
        throw new Problem(`What answers at ${this.#api.server} is not a Breadcrumbs server`, { status: 406 });
      }
      const parser = new SseParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      if (resuming) this.#handlers.onState({ status: "open" });
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = silence();
        for (const message of parser.feed(value)) this.#take(message);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {Message} message */
  #take(message) {
    this.#failures = 0; // a connection that says nothing before it breaks was none
    if (message.id) {
      const first = this.#lastId === undefined;
      this.#lastId = message.id;
      if (first) {
        this.#handlers.onState({ status: "open" });
        this.#handlers.onFresh();
      }
    }
    if (!message.data) return;
    if (message.event === "gap") this.#handlers.onFresh();
    else if (message.event === "ping") this.#handlers.onTime(JSON.parse(message.data).ts);
    else this.#handlers.onEvent(JSON.parse(message.data));
  }

  /** @param {number | undefined} ms Until somebody nudges us, where it is undefined. */
  async #pause(ms) {
    await new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
    this.#wake = () => {};
  }
}

/**
 * Longer and longer, and not for all clients at the same moment.
 * @param {number} failures
 */
export function waitAfter(failures) {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** failures) * (0.75 + Math.random() / 2);
}
