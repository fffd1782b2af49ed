/** The sessions at the left: the last active one first, kept up to date as things happen. */

import { computed, signal } from "@preact/signals";
import { ApiError, messageOf, type BreadcrumbEvent, type Session } from "@breadcrumbs/client";
import { client } from "../../lib/server";

const PAGE = 40;
/** While searching, how many sessions are looked through before somebody has to ask for more. */
const SEARCHED = 400;
/** How many are kept that nobody asked for: on a busy server others come all the time. */
const KEPT = 400;
/** Events come in bursts: what they touch is read once, and again after a while. */
const GATHER = 150;
const EVERY = 1_000;
/** So many sessions are read one by one; where more happens, the beginning of the list has it all. */
const FEW = 3;

export class SessionList {
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly problem = signal("");
  readonly search = signal("");
  readonly hasMore = signal(false);
  readonly loadingMore = signal(false);
  /** Sessions in which something was said that was not looked at. */
  readonly unread = signal<ReadonlySet<string>>(new Set());

  readonly #all = signal<ReadonlyMap<string, Session>>(new Map());
  readonly #touched = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #refreshed = 0;
  /** Where the list goes on is known. */
  #begun = false;
  #closed = false;
  #room = KEPT;
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
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  /** Read the beginning of the list (again). What is in it, if that worked. */
  async load(): Promise<ReadonlySet<string> | null> {
    try {
      const page = await client.sessions.list({ limit: PAGE });
      if (this.#all.value.size > this.#room) {
        this.#all.value = new Map();
        this.#begun = false;
      }
      this.#put(page.sessions);
      if (!this.#begun) this.#continueAt(page);
      this.state.value = "ready";
      return new Set(page.sessions.map((session) => session.id));
    } catch (error) {
      this.problem.value = messageOf(error);
      if (this.#all.value.size === 0) this.state.value = "failed";
      return null;
    }
  }

  /** Forget the list and read it again: what was deleted meanwhile is not known. */
  async startOver(): Promise<void> {
    this.#all.value = new Map();
    this.#begun = false;
    this.hasMore.value = false;
    this.state.value = "loading";
    await this.load();
  }

  async loadMore(): Promise<void> {
    if (!this.hasMore.value || this.loadingMore.value || this.#cursor === undefined) return;
    this.loadingMore.value = true;
    try {
      const page = await client.sessions.list({ limit: PAGE, cursor: this.#cursor });
      this.#room += page.sessions.length;
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

  onEvent(event: BreadcrumbEvent, current: string | undefined): void {
    const id = event.session_id;
    if (id === undefined || event.schema_name === "agent.context.v1") return;
    const spoke = event.operation === "created" && event.schema_name === "agent.response.v1";
    if (spoke && id !== current) this.unread.value = new Set([...this.unread.value, id]);
    this.touch(id);
  }

  /** Read one session again, soon. */
  touch(id: string): void {
    this.#touched.add(id);
    this.#refreshSoon();
  }

  #refreshSoon(): void {
    if (this.#closed) return;
    const pause = Math.max(GATHER, this.#refreshed + EVERY - Date.now());
    this.#timer ??= setTimeout(() => void this.#refresh(), pause);
  }

  /** A few requests a second, however much happens: what was active last is at the beginning of the list. */
  async #refresh(): Promise<void> {
    const listed = (id: string) => this.#all.value.has(id);
    let touched = [...this.#touched];
    this.#touched.clear(); // what is touched from here on is read another time
    if (touched.length > FEW || !touched.every(listed)) {
      const read = await this.load();
      for (const id of touched) if (read && !listed(id)) this.forget(id); // begun and deleted in one moment
      touched = touched.filter((id) => listed(id) && !read?.has(id));
    }
    for (const id of touched.slice(FEW)) this.#touched.add(id);
    await Promise.all(touched.slice(0, FEW).map((id) => this.#read(id)));
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
      // One that was deleted and begun again under its name counts its versions from the beginning.
      const another = known?.created_at !== session.created_at;
      if (!known || another || known.version <= session.version) all.set(session.id, session);
    }
    this.#all.value = all;
  }

  #continueAt(page: { has_more: boolean; next_cursor?: string }): void {
    this.#begun = true;
    this.#cursor = page.next_cursor;
    this.hasMore.value = page.has_more && page.next_cursor !== undefined;
  }
}

/** What a session is called. */
export function nameOf(session: Session | undefined): string {
  return session ? session.title || session.summary || session.id : "New session";
}
