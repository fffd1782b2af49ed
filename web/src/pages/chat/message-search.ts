/** Search over the messages of all sessions. The server scans them in parts, each with its own request. */

import { signal } from "@preact/signals";
import { messageOf, type MessageMatch, type Session } from "@breadcrumbs/client";
import { client } from "../../lib/server";

/** Typing pauses for this long before a request is sent. */
const DELAY_MS = 300;
const MIN_LENGTH = 2;
const PAGE = 20;
/** A search stops after this number of requests until the user asks for more. */
const MAX_REQUESTS = 10;

export class MessageSearch {
  readonly state = signal<"idle" | "searching" | "done" | "failed">("idle");
  readonly problem = signal("");
  readonly text = signal("");
  readonly matches = signal<readonly MessageMatch[]>([]);
  /** Sessions with a matching title or message, by id. */
  readonly sessions = signal<ReadonlyMap<string, Session>>(new Map());
  /** Whether the search has stopped before the end. */
  readonly hasMore = signal(false);

  #cursor: string | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #request = new AbortController();

  find(text: string): void {
    this.close();
    this.text.value = text.trim();
    this.matches.value = [];
    this.sessions.value = new Map();
    this.hasMore.value = false;
    this.#cursor = undefined;
    const isWanted = this.text.value.length >= MIN_LENGTH;
    this.state.value = isWanted ? "searching" : "idle";
    if (isWanted) this.#timer = setTimeout(() => void this.more(), DELAY_MS);
  }

  /** Continue where the search has stopped. */
  async more(): Promise<void> {
    const { signal } = (this.#request = new AbortController());
    const enough = this.matches.value.length + PAGE;
    this.state.value = "searching";
    try {
      for (let count = 0; count < MAX_REQUESTS && this.matches.value.length < enough; count += 1) {
        const page = await client.sessions.search(this.text.value, { limit: PAGE, cursor: this.#cursor }, signal);
        signal.throwIfAborted();
        this.matches.value = [...this.matches.value, ...page.matches];
        this.sessions.value = new Map([...this.sessions.value, ...page.sessions.map((one) => [one.id, one] as const)]);
        this.#cursor = page.next_cursor;
        this.hasMore.value = page.has_more;
        if (!page.has_more) break;
      }
      this.state.value = "done";
    } catch (error) {
      if (signal.aborted) return;
      this.problem.value = messageOf(error);
      this.state.value = "failed";
    }
  }

  /** Cancel the search. */
  close(): void {
    clearTimeout(this.#timer);
    this.#request.abort();
  }
}
