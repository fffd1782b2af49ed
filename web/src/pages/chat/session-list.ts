/** Live list of sessions, last active first. */

import { computed, signal } from "@preact/signals";
import { ApiError, messageOf, type BreadcrumbEvent, type Session } from "@breadcrumbs/client";
import { client } from "../../lib/server";

const PAGE = 40;
/** A search loads more pages until this number of sessions is loaded. */
const MAX_SEARCHED = 400;
/** Above this number of sessions the list is loaded again. Pages that the user loads increase the limit. */
const MAX_SESSIONS = 400;
/** Events come in bursts. Refresh this long after the first event, and at most once per interval. */
const REFRESH_DELAY_MS = 150;
const REFRESH_INTERVAL_MS = 1_000;
/** Up to this number of changed sessions are read one by one. For more, the first page of the list is read. */
const MAX_SINGLE_READS = 3;

export class SessionList {
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly problem = signal("");
  readonly search = signal("");
  readonly hasMore = signal(false);
  readonly loadingMore = signal(false);
  /** Sessions with answers that the user has not seen. */
  readonly unread = signal<ReadonlySet<string>>(new Set());

  /** The open session. It is loaded even if it is not on a loaded page of the list. */
  #open: string | undefined;
  readonly #all = signal<ReadonlyMap<string, Session>>(new Map());
  readonly #touched = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #refreshed = 0;
  /** Whether `#cursor` is set from the first page. */
  #hasCursor = false;
  #closed = false;
  #maxSize = MAX_SESSIONS;
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

  /** Keep a session in the list while it is open, however old it is. */
  keep(id: string | undefined): void {
    this.#open = id;
    if (this.state.peek() === "ready") this.#readOpen();
  }

  #readOpen(): void {
    const id = this.#open;
    if (id !== undefined && !this.#all.peek().has(id)) void this.#read(id);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  /** Load the first page of the list. Return its session ids, or null if that failed. */
  async load(): Promise<ReadonlySet<string> | null> {
    try {
      const page = await client.sessions.list({ limit: PAGE });
      if (this.#all.value.size > this.#maxSize) {
        this.#all.value = new Map();
        this.#hasCursor = false;
      }
      this.#put(page.sessions);
      if (!this.#hasCursor) this.#continueAt(page);
      this.state.value = "ready";
      this.#readOpen();
      return new Set(page.sessions.map((session) => session.id));
    } catch (error) {
      this.problem.value = messageOf(error);
      if (this.#all.value.size === 0) this.state.value = "failed";
      return null;
    }
  }

  /** Discard the list and load it again, because deletes were missed. */
  async startOver(): Promise<void> {
    this.#all.value = new Map();
    this.#hasCursor = false;
    this.hasMore.value = false;
    this.state.value = "loading";
    await this.load();
  }

  async loadMore(): Promise<void> {
    if (!this.hasMore.value || this.loadingMore.value || this.#cursor === undefined) return;
    this.loadingMore.value = true;
    try {
      const page = await client.sessions.list({ limit: PAGE, cursor: this.#cursor });
      this.#maxSize += page.sessions.length;
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
    while (text.trim() && this.search.value === text && this.hasMore.value && this.#all.value.size < MAX_SEARCHED) {
      const before = this.#all.value.size;
      await this.loadMore();
      if (this.#all.value.size === before) return;
    }
  }

  onEvent(event: BreadcrumbEvent, current: string | undefined): void {
    const id = event.session_id;
    if (id === undefined || event.schema_name === "agent.context.v1" || event.schema_name === "feedback.v1") return;
    const spoke = event.operation === "created" && event.schema_name === "agent.response.v1";
    if (spoke && id !== current) this.unread.value = new Set([...this.unread.value, id]);
    this.touch(id);
  }

  /** Schedule a refresh of one session. */
  touch(id: string): void {
    this.#touched.add(id);
    this.#refreshSoon();
  }

  #refreshSoon(): void {
    if (this.#closed) return;
    const pause = Math.max(REFRESH_DELAY_MS, this.#refreshed + REFRESH_INTERVAL_MS - Date.now());
    this.#timer ??= setTimeout(() => void this.#refresh(), pause);
  }

  /** Read the changed sessions, with a few requests only. Many changed sessions are all on the first page. */
  async #refresh(): Promise<void> {
    const listed = (id: string) => this.#all.value.has(id);
    let touched = [...this.#touched];
    this.#touched.clear(); // later changes are read by the next refresh
    if (touched.length > MAX_SINGLE_READS || !touched.every(listed)) {
      const read = await this.load();
      for (const id of touched) if (read && !listed(id)) this.forget(id); // created and deleted in the meantime
      touched = touched.filter((id) => listed(id) && !read?.has(id));
    }
    for (const id of touched.slice(MAX_SINGLE_READS)) this.#touched.add(id);
    await Promise.all(touched.slice(0, MAX_SINGLE_READS).map((id) => this.#read(id)));
    this.#refreshed = Date.now();
    this.#timer = undefined;
    if (this.#touched.size) this.#refreshSoon();
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
    this.seen(id);
  }

  async #read(id: string): Promise<void> {
    try {
      this.#put([await client.sessions.read(id)]);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.forget(id);
    }
  }

  #put(found: readonly Session[]): void {
    const all = new Map(this.#all.value);
    for (const session of found) {
      const known = all.get(session.id);
      // A session that was deleted and created again with the same id has lower versions.
      const another = known?.created_at !== session.created_at;
      if (!known || another || known.version <= session.version) all.set(session.id, session);
    }
    this.#all.value = all;
  }

  #continueAt(page: { has_more: boolean; next_cursor?: string }): void {
    this.#hasCursor = true;
    this.#cursor = page.next_cursor;
    this.hasMore.value = page.has_more && page.next_cursor !== undefined;
  }
}

/** Return the name of a session for display. */
export function nameOf(session: Session | undefined): string {
  return session ? session.title || session.summary || session.id : "New session";
}
