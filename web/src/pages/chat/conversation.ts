/** One session as it is shown: what was said, what is being said, and what is still on its way out. */

import { computed, signal } from "@preact/signals";
import { ApiError, messageOf, newId, sessions, type Message } from "../../lib/api";
import { now } from "../../lib/clock";
import type { CrumbEvent, Delta } from "../../lib/stream";
import { messageOfEvent, settledBy, turnsOf } from "./message";

/** An answer in the making. */
export interface Draft {
  id: string;
  trigger: string;
  agent: string;
  text: string;
  /** How many characters of the answer are known, as the server counts them: code points. */
  length: number;
}

/** A message that the server has not confirmed. */
export interface Unsent {
  key: string;
  text: string;
  state: "sending" | "waiting" | "refused";
  problem?: string;
}

export type Progress = "answering" | "queued";

const PAGE = 50;
/** A message that nobody has answered for this long is not being answered. */
const PATIENCE = 15 * 60_000;

export class Conversation {
  readonly id: string;
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly problem = signal("");
  readonly messages = signal<readonly Message[]>([]);
  readonly drafts = signal<readonly Draft[]>([]);
  readonly unsent = signal<readonly Unsent[]>([]);
  readonly hasOlder = signal(false);
  readonly loadingOlder = signal(false);
  /** The newest answer or error that came while we looked; for screen readers. */
  readonly news = signal<Message | null>(null);
  readonly turns = computed(() => turnsOf(this.messages.value));
  /** Message → where it stands; what is not in here is settled. */
  readonly progress = computed(() => progressOf(this.messages.value, this.#retried.value, now.value));

  readonly #byId = new Map<string, Message>();
  readonly #gone = new Set<string>();
  readonly #retried = signal<ReadonlyMap<string, string>>(new Map());
  readonly #abort = new AbortController();
  /** A message that came by event before its own request was answered. */
  readonly #early = new Map<string, string>();
  #before: string | undefined;
  #after: string | undefined;
  #sending = false;
  #loading: Promise<void> | null = null;
  #catchingUp: Promise<void> = Promise.resolve();
  #wake: (() => void) | undefined;

  /** `isNew`: a session that begins with its first message. */
  constructor(id: string, isNew = false) {
    this.id = id;
    this.unsent.value = keptUnsent(id);
    if (isNew) this.state.value = "ready";
    else void this.load();
    void this.#send();
  }

  close(): void {
    this.#abort.abort();
  }

  load(): Promise<void> {
    this.#loading ??= this.#load().finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  async #load(): Promise<void> {
    const again = this.state.value === "ready";
    if (this.state.value === "failed") this.state.value = "loading";
    try {
      const page = await sessions.messages(this.id, { limit: PAGE }, this.#abort.signal);
      this.#before = page.before;
      this.#after = page.after ?? this.#after;
      this.hasOlder.value = page.has_more;
      this.#take(page.messages, again);
      this.state.value = "ready";
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      if (error instanceof ApiError && error.status === 404) {
        this.state.value = "ready"; // it begins with its first message
      } else {
        this.problem.value = messageOf(error);
        this.state.value = "failed";
      }
    }
  }

  async loadOlder(): Promise<void> {
    if (!this.hasOlder.value || this.loadingOlder.value || this.#before === undefined) return;
    this.loadingOlder.value = true;
    try {
      const page = await sessions.messages(this.id, { limit: PAGE, before: this.#before }, this.#abort.signal);
      this.#before = page.before ?? this.#before;
      this.hasOlder.value = page.has_more;
      this.#take(page.messages);
    } catch {
      // It stays where it is; scrolling there again tries again.
    } finally {
      this.loadingOlder.value = false;
    }
  }

  /** Forget what is shown and read it again: what was changed or deleted meanwhile is not known. */
  async startOver(): Promise<void> {
    this.#byId.clear();
    this.#after = undefined;
    await this.load();
    this.#show();
  }

  /** The stream is there (again): fetch what came after the last message that was fetched. */
  catchUp(): Promise<void> {
    this.#wake?.();
    // Not instead of one that is under way: it may have looked before the stream was there.
    this.#catchingUp = this.#catchingUp.then(() => this.#fetchNewer());
    return this.#catchingUp;
  }

  async #fetchNewer(): Promise<void> {
    await this.#loading; // the same is true of this
    if (this.state.value === "failed" || this.#after === undefined) {
      await this.load();
      return;
    }
    for (let more = true; more && !this.#abort.signal.aborted; ) {
      try {
        const page = await sessions.messages(this.id, { limit: PAGE, after: this.#after }, this.#abort.signal);
        this.#take(page.messages, true);
        more = page.has_more && page.after !== undefined;
        if (page.after !== undefined) this.#after = page.after;
      } catch (error) {
        if (!(error instanceof ApiError && error.passing)) return; // deleted, or no longer for us
        await pause(error.retryAfter ? error.retryAfter * 1000 : 1_000);
      }
    }
  }

  // --- What happens ---------------------------------------------------------------------------------------

  onEvent(event: CrumbEvent): void {
    if (event.session_id !== this.id) return;
    if (event.operation === "deleted") {
      this.#gone.add(event.breadcrumb_id);
      if (this.#byId.delete(event.breadcrumb_id)) this.#show();
      return;
    }
    const known = this.#byId.get(event.breadcrumb_id);
    const message = messageOfEvent(event, known);
    if (message === null || (known && known.version >= message.version)) return;
    if (message.role === "user") this.#recognise(message);
    this.#take([message], true);
  }

  onDelta(delta: Delta): void {
    if (delta.session_id !== this.id || this.#byId.has(delta.breadcrumb_id)) return;
    const drafts = this.drafts.value;
    const known = drafts.find((draft) => draft.id === delta.breadcrumb_id);
    const pieces = [...delta.text].length;
    let text = delta.text;
    if (known && delta.offset > 0) {
      if (delta.offset >= known.length) {
        text = known.text + (delta.offset > known.length ? " … " : "") + delta.text; // a piece got lost
      } else {
        text = [...known.text].slice(0, delta.offset).join("") + delta.text; // said again
      }
    } else if (!known && delta.offset > 0) {
      text = `… ${delta.text}`; // it began before we listened
    }
    const draft: Draft = {
      id: delta.breadcrumb_id,
      trigger: delta.trigger_id,
      agent: delta.agent_id,
      text,
      length: delta.offset + pieces,
    };
    this.drafts.value = known
      ? drafts.map((other) => (other.id === draft.id ? draft : other))
      : [...drafts, draft];
  }

  #take(messages: readonly Message[], areNew = false): void {
    let changed = false;
    for (const message of messages) {
      const known = this.#byId.get(message.id);
      if (this.#gone.has(message.id) || (known && known.version >= message.version)) continue;
      this.#byId.set(message.id, message);
      changed = true;
      if (areNew && !known && (message.role === "assistant" || message.role === "error")) this.news.value = message;
    }
    if (changed) this.#show();
  }

  #show(): void {
    const all = [...this.#byId.values()];
    all.sort((a, b) => (a.created_at < b.created_at ? -1 : a.created_at > b.created_at ? 1 : a.id < b.id ? -1 : 1));
    this.messages.value = all;
    const settled = new Set(all.filter((one) => one.role === "error").flatMap(settledBy));
    const left = this.drafts.value.filter((draft) => !this.#byId.has(draft.id) && !settled.has(draft.trigger));
    if (left.length !== this.drafts.value.length) this.drafts.value = left;
  }

  // --- What we say ----------------------------------------------------------------------------------------

  say(text: string): void {
    this.#setUnsent([...this.unsent.value, { key: newId(), text, state: "sending" }]);
    void this.#send();
  }

  /** Try again to send what was refused. */
  resend(key: string): void {
    this.#setUnsent(this.unsent.value.map((one) => (one.key === key ? { ...one, state: "sending" } : one)));
    void this.#send();
  }

  discard(key: string): string {
    const text = this.unsent.value.find((one) => one.key === key)?.text ?? "";
    this.#setUnsent(this.unsent.value.filter((one) => one.key !== key));
    return text;
  }

  async stop(): Promise<void> {
    await sessions.cancel(this.id);
  }

  async retry(failed: Message): Promise<void> {
    const started = await sessions.retry(this.id, failed.trigger_id);
    this.#retried.value = new Map(this.#retried.value).set(started.message_id, failed.created_at);
  }

  /** One after the other, in their order, until none is left or one cannot be sent. */
  async #send(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    try {
      for (let failures = 0; ; ) {
        const next = this.unsent.value[0];
        if (next === undefined || next.state === "refused" || this.#abort.signal.aborted) return;
        try {
          const message = await sessions.say(this.id, next.text, next.key);
          failures = 0;
          this.#early.delete(next.key);
          this.#take([message]);
          this.#setUnsent(this.unsent.value.filter((one) => one.key !== next.key));
        } catch (error) {
          const passing = error instanceof ApiError && error.passing;
          this.#setUnsent(
            this.unsent.value.map((one) =>
              one.key === next.key
                ? { ...one, state: passing ? "waiting" : "refused", problem: messageOf(error) }
                : one,
            ),
          );
          if (!passing) return;
          // The key makes it safe: whether or not it arrived the first time, it is there once.
          const asked = (error as ApiError).retryAfter;
          const rest = pause(asked ? asked * 1000 : Math.min(5_000, 500 * 2 ** failures++));
          await Promise.race([rest, new Promise<void>((wake) => (this.#wake = wake))]);
        }
      }
    } finally {
      this.#sending = false;
    }
  }

  /** Our own message may come back as an event before its request is answered: it must not be shown twice. */
  #recognise(message: Message): void {
    const ours = this.unsent.value.find((one) => one.text === message.text && !this.#early.has(one.key));
    if (ours) {
      this.#early.set(ours.key, message.id);
      this.unsent.value = [...this.unsent.value];
    }
  }

  /** What is not yet shown as a message. */
  readonly shownUnsent = computed(() => {
    const shown = new Set(this.messages.value.map((message) => message.id));
    return this.unsent.value.filter((one) => !shown.has(this.#early.get(one.key) ?? ""));
  });

  #setUnsent(unsent: readonly Unsent[]): void {
    this.unsent.value = unsent;
    keepUnsent(this.id, unsent);
  }
}

function progressOf(
  messages: readonly Message[],
  retried: ReadonlyMap<string, string>,
  time: number,
): ReadonlyMap<string, Progress> {
  const settled = new Set<string>();
  for (const message of messages) {
    if (message.role !== "assistant" && message.role !== "error") continue;
    for (const id of settledBy(message)) {
      // What was asked for again after an error is settled by what came after that error.
      const since = retried.get(id);
      if (since === undefined || message.created_at > since) settled.add(id);
    }
  }
  const waiting = messages.filter((message) => message.role === "user" && !settled.has(message.id));
  const recent = waiting.filter(
    (message) => retried.has(message.id) || time - Date.parse(message.created_at) < PATIENCE,
  );
  return new Map(recent.map((message, index) => [message.id, index === 0 ? "answering" : "queued"]));
}

// --- What survives a reload ---------------------------------------------------------------------------------

const outbox = (id: string) => `crumb.unsent.${id}`;

function keptUnsent(id: string): Unsent[] {
  try {
    const kept = JSON.parse(sessionStorage.getItem(outbox(id)) ?? "[]") as Unsent[];
    return kept.map(({ key, text }) => ({ key, text, state: "sending" }));
  } catch {
    return [];
  }
}

function keepUnsent(id: string, unsent: readonly Unsent[]): void {
  try {
    if (unsent.length) sessionStorage.setItem(outbox(id), JSON.stringify(unsent));
    else sessionStorage.removeItem(outbox(id));
  } catch {
    // Storage may be forbidden or full: then a reload forgets what was not sent.
  }
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));
