/** One session as it is shown: what was said, what is being said, and what is still on its way out. */

import { computed, signal } from "@preact/signals";
import { ApiError, messageOf, type AnswerDelta, type BreadcrumbEvent, type Message } from "@breadcrumbs/client";
import { now } from "../../lib/clock";
import { outboxOf, type SessionOutbox } from "../../lib/outbox";
import { client } from "../../lib/server";
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
  readonly hasOlder = signal(false);
  readonly loadingOlder = signal(false);
  /** The newest answer or error that came while we looked; for screen readers. */
  readonly news = signal<Message | null>(null);
  readonly turns = computed(() => turnsOf(this.messages.value));
  /** Message → where it stands; what is not in here is settled. */
  readonly progress = computed(() => progressOf(this.messages.value, this.#retried.value, now.value));

  readonly #byId = new Map<string, Message>();
  readonly #gone = new Set<string>();
  /** What was shown at some time: it is no news. */
  readonly #seen = new Set<string>();
  readonly #retried = signal<ReadonlyMap<string, string>>(new Map());
  readonly #abort = new AbortController();
  /** A message that came by event before its own request was answered. */
  readonly #early = new Map<string, string>();
  #before: string | undefined;
  #after: string | undefined;
  #loading: Promise<void> | null = null;
  #catchingUp: Promise<boolean> = Promise.resolve(false);
  /** What we have said. It goes out also when nobody looks at this session any more. */
  readonly #outbox: SessionOutbox;

  /** `isNew`: a session that begins with its first message. */
  constructor(id: string, isNew = false) {
    this.id = id;
    this.#outbox = outboxOf(id);
    this.#outbox.onSent = this.#onSent;
    if (isNew) this.state.value = "ready";
    else void this.load();
  }

  close(): void {
    this.#abort.abort();
    if (this.#outbox.onSent === this.#onSent) this.#outbox.onSent = null;
  }

  readonly #onSent = (key: string, message: Message) => {
    this.#early.delete(key);
    this.#take([message]);
  };

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
      const page = await client.sessions.messages(this.id, { limit: PAGE }, this.#abort.signal);
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
      const page = await client.sessions.messages(this.id, { limit: PAGE, before: this.#before }, this.#abort.signal);
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
    await this.#loading; // what it brings is from before
    this.#byId.clear();
    this.#gone.clear();
    this.#before = this.#after = undefined;
    this.hasOlder.value = false;
    await this.load();
    this.#show();
  }

  /**
   * The stream is there (again): fetch what came after the last message that was fetched. True where that place
   * is no longer known: the session is gone, or it is another store.
   */
  catchUp(): Promise<boolean> {
    // Not instead of one that is under way: it may have looked before the stream was there.
    this.#catchingUp = this.#catchingUp.then(() => this.#fetchNewer());
    return this.#catchingUp;
  }

  async #fetchNewer(): Promise<boolean> {
    await this.#loading; // the same is true of this
    if (this.state.value === "failed" || this.#after === undefined) {
      await this.load();
      return false;
    }
    for (let more = true; more && !this.#abort.signal.aborted; ) {
      try {
        const page = await client.sessions.messages(this.id, { limit: PAGE, after: this.#after }, this.#abort.signal);
        this.#take(page.messages, true);
        more = page.has_more && page.after !== undefined;
        if (page.after !== undefined) this.#after = page.after;
      } catch (error) {
        if (!(error instanceof ApiError)) return false;
        if (error.status === 404 || error.status === 422) {
          await this.startOver();
          return true;
        }
        if (!error.isRetryable) return false; // no longer for us
        await pause(error.retryAfter ? error.retryAfter * 1000 : 1_000);
      }
    }
    return false;
  }

  // --- What happens ---------------------------------------------------------------------------------------

  onEvent(event: BreadcrumbEvent): void {
    if (event.session_id !== this.id) return;
    if (event.operation === "deleted") {
      this.#gone.add(event.breadcrumb_id);
      if (this.#byId.delete(event.breadcrumb_id)) this.#show();
      return;
    }
    const known = this.#byId.get(event.breadcrumb_id);
    const message = messageOfEvent(event, known?.created_at ?? event.updated_at);
    if (message === null || (known && known.version >= message.version)) return;
    if (!known && event.operation === "updated") {
      void this.#placed(message);
      return;
    }
    if (message.role === "user") this.#recognise(message);
    this.#take([message], true);
    if (event.context === undefined) void this.#uncovered(event, message.created_at);
  }

  /** An edit tells when it was made, and not when the message was: that says where it stands. */
  async #placed(message: Message): Promise<void> {
    try {
      const { created_at } = await client.breadcrumbs.full(message.id, this.#abort.signal);
      await this.#loading;
      const oldest = this.messages.value[0]?.created_at ?? "";
      if (this.hasOlder.value && created_at < oldest) return; // it comes with its page
      this.#take([{ ...message, created_at }]);
    } catch {
      // It is gone, or not for us.
    }
  }

  /** The stream's token reads no secrets; we may. */
  async #uncovered(event: BreadcrumbEvent, createdAt: string): Promise<void> {
    try {
      const { context, version } = await client.breadcrumbs.full(event.breadcrumb_id, this.#abort.signal);
      const message = context && messageOfEvent({ ...event, context }, createdAt);
      if (!message || this.#byId.get(message.id)?.version !== version) return;
      this.#byId.set(message.id, message);
      this.#show();
    } catch {
      // It is gone, or secret for us too.
    }
  }

  onDelta(delta: AnswerDelta): void {
    if (delta.session_id !== this.id || this.#byId.has(delta.breadcrumb_id)) return;
    const drafts = this.drafts.value;
    const known = drafts.find((draft) => draft.id === delta.breadcrumb_id);
    if (!known && delta.offset > 0 && this.#hasFailed(delta)) return; // a straggler of what has ended
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
      if (this.#seen.has(message.id)) continue;
      this.#seen.add(message.id);
      if (areNew && (message.role === "assistant" || message.role === "error")) this.news.value = message;
      // It ends what was being written. What is begun after it is another try.
      if (message.role === "error") this.drafts.value = this.drafts.value.filter((draft) => !endedBy(message, draft));
    }
    if (changed) this.#show();
  }

  #hasFailed(delta: AnswerDelta): boolean {
    const draft = { trigger: delta.trigger_id, agent: delta.agent_id };
    const since = this.#retried.value.get(draft.trigger) ?? "";
    return this.messages.value.some(
      (one) => one.role === "error" && one.created_at > since && endedBy(one, draft),
    );
  }

  #show(): void {
    const all = [...this.#byId.values()];
    all.sort((a, b) => (a.created_at < b.created_at ? -1 : a.created_at > b.created_at ? 1 : a.id < b.id ? -1 : 1));
    this.messages.value = all;
    const left = this.drafts.value.filter((draft) => !this.#byId.has(draft.id));
    if (left.length !== this.drafts.value.length) this.drafts.value = left;
  }

  // --- What we say ----------------------------------------------------------------------------------------

  say(text: string): void {
    this.#outbox.say(text);
  }

  /** Try again to send what was refused. */
  resend(key: string): void {
    this.#outbox.resend(key);
  }

  discard(key: string): void {
    this.#outbox.discard(key);
  }

  async stop(): Promise<void> {
    await client.sessions.cancel(this.id);
  }

  async retry(failed: Message): Promise<void> {
    const started = await client.sessions.retry(this.id, failed.trigger_id);
    this.#retried.value = new Map(this.#retried.value).set(started.message_id, failed.created_at);
  }

  /** Our own message may come back as an event before its request is answered: it must not be shown twice. */
  #recognise(message: Message): void {
    const ours = this.#outbox.unsent.value.find((one) => one.text === message.text && !this.#early.has(one.key));
    if (ours) this.#early.set(ours.key, message.id);
  }

  /** What is not yet shown as a message. */
  readonly shownUnsent = computed(() => {
    const shown = new Set(this.messages.value.map((message) => message.id));
    return this.#outbox.unsent.value.filter((one) => !shown.has(this.#early.get(one.key) ?? ""));
  });
}

/** Whether an error is the end of what an agent was writing about a message. */
function endedBy(error: Message, draft: Pick<Draft, "trigger" | "agent">): boolean {
  const failed = error.context["agent_id"]; // where it is one agent of several
  return (failed === undefined || failed === draft.agent) && settledBy(error).includes(draft.trigger);
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

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));
