/** The sessions at the left: the last active one first, kept up to date as things happen. */

import { computed, signal } from "@preact/signals";
import { ApiError, messageOf, sessions, type Session } from "../../lib/api";
import type { CrumbEvent } from "../../lib/stream";

const PAGE = 40;
/** While searching, how many sessions are looked through before somebody has to ask for more. */
const SEARCHED = 400;
/** Events of one session come in bursts; it is read once for each. */
const GATHER = 150;

export class SessionList {
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly problem = signal("");
  readonly search = signal("");
  readonly hasMore = signal(false);
  readonly loadingMore = signal(false);
  /** Sessions in which something was said that was not looked at. */
  readonly unread = signal<ReadonlySet<string>>(new Set());

  readonly #all = signal<ReadonlyMap<string, Session>>(new Map());
  readonly #touched = new Map<string, ReturnType<typeof setTimeout>>();
  #cursor: string | undefined;

  readonly sorted = computed(() =>
    [...this.#all.value.values()].sort((a, b) => (a.last_active_at < b.last_active_at ? 1 : -1)),
  );

  readonly shown = computed(() => {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return this.sorted.value;
    return this.sorted.value.filter((session) => {
      const text = `${session.title ?? ""} ${session.summary ?? ""} ${session.id}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  });

  get(id: string): Session | undefined {
    return this.#all.value.get(id);
  }

  close(): void {
    for (const timer of this.#touched.values()) clearTimeout(timer);
  }

  /** Read the beginning of the list (again). */
  async load(): Promise<void> {
    try {
      const page = await sessions.list({ limit: PAGE });
      const first = this.#all.value.size === 0;
      this.#put(page.sessions);
      if (first) this.#continueAt(page);
      this.state.value = "ready";
    } catch (error) {
      this.problem.value = messageOf(error);
      if (this.#all.value.size === 0) this.state.value = "failed";
    }
  }

  async loadMore(): Promise<void> {
    if (!this.hasMore.value || this.loadingMore.value || this.#cursor === undefined) return;
    this.loadingMore.value = true;
    try {
      const page = await sessions.list({ limit: PAGE, cursor: this.#cursor });
      this.#put(page.sessions);
      this.#continueAt(page);
    } catch (error) {
      this.problem.value = messageOf(error);
    } finally {
      this.loadingMore.value = false;
    }
  }

  async find(text: string): Promise<void> {
    this.search.value = text;
    while (text.trim() && this.search.value === text && this.hasMore.value && this.#all.value.size < SEARCHED) {
      const before = this.#all.value.size;
      await this.loadMore();
      if (this.#all.value.size === before) return;
    }
  }

  onEvent(event: CrumbEvent, current: string | undefined): void {
    const id = event.session_id;
    if (id === undefined || event.schema_name === "agent.context.v1") return;
    const spoke = event.operation === "created" && event.schema_name === "agent.response.v1";
    if (spoke && id !== current) this.unread.value = new Set([...this.unread.value, id]);
    this.touch(id);
  }

  /** Read one session again, soon. */
  touch(id: string): void {
    if (this.#touched.has(id)) return;
    this.#touched.set(
      id,
      setTimeout(() => {
        this.#touched.delete(id);
        void this.#read(id);
      }, GATHER),
    );
  }

  seen(id: string): void {
    if (!this.unread.value.has(id)) return;
    this.unread.value = new Set([...this.unread.value].filter((other) => other !== id));
  }

  put(session: Session): void {
    this.#put([session]);
  }

  forget(id: string): void {
    const left = new Map(this.#all.value);
    if (left.delete(id)) this.#all.value = left;
  }

  async #read(id: string): Promise<void> {
    try {
      this.#put([await sessions.read(id)]);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.forget(id);
    }
  }

  #put(found: readonly Session[]): void {
    const all = new Map(this.#all.value);
    for (const session of found) {
      const known = all.get(session.id);
      if (!known || known.version <= session.version) all.set(session.id, session);
    }
    this.#all.value = all;
  }

  #continueAt(page: { has_more: boolean; next_cursor?: string }): void {
    this.#cursor = page.next_cursor;
    this.hasMore.value = page.has_more && page.next_cursor !== undefined;
  }
}

/** What a session is called. */
export function nameOf(session: Session | undefined): string {
  return session ? session.title || session.summary || session.id : "New session";
}
