/** State of one open session: messages, answers in progress, and unsent messages. */

import { computed, signal } from "@preact/signals";
import {
  ApiError,
  messageOf,
  type AnswerDelta,
  type BreadcrumbEvent,
  type Message,
  type RetryNotice,
} from "@breadcrumbs/client";
import { now } from "../../lib/clock";
import { outboxOf, type SessionOutbox } from "../../lib/outbox";
import { client } from "../../lib/server";
import { AttachedPages } from "./attached-pages";
import { messageOfEvent, settledBy, turnsOf } from "./message";
import { SessionFeedback } from "./session-feedback";

/** An answer that is being written. */
export interface Draft {
  id: string;
  trigger: string;
  agent: string;
  text: string;
  /** Number of received characters, in code points like the offsets of the server. */
  length: number;
  /** Reasoning of the model so far. */
  reasoning: string;
  /** The last failure of the model, while it is called again. */
  notice: RetryNotice | undefined;
}

export type Progress = "answering" | "queued";

const PAGE = 50;
/** After this time (in ms), an unanswered message no longer counts as being answered. */
const ANSWER_TIMEOUT_MS = 15 * 60_000;

export class Conversation {
  readonly id: string;
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly problem = signal("");
  readonly messages = signal<readonly Message[]>([]);
  readonly drafts = signal<readonly Draft[]>([]);
  readonly hasOlder = signal(false);
  readonly loadingOlder = signal(false);
  /** The newest answer or error that arrived while the session was open, for screen readers. */
  readonly news = signal<Message | null>(null);
  readonly turns = computed(() => turnsOf(this.messages.value));
  /** Progress by message id. Settled messages are not included. */
  readonly progress = computed(() => progressOf(this.messages.value, this.#retried.value, now.value));

  readonly pages: AttachedPages;
  readonly feedback: SessionFeedback;

  readonly #byId = new Map<string, Message>();
  readonly #deleted = new Set<string>();
  /** Messages that were shown before. They are not announced again. */
  readonly #seen = new Set<string>();
  readonly #retried = signal<ReadonlyMap<string, string>>(new Map());
  readonly #abort = new AbortController();
  /** Own messages whose event arrived before the reply to their request: outbox key → message id. */
  readonly #early = new Map<string, string>();
  #before: string | undefined;
  #after: string | undefined;
  #loading: Promise<void> | null = null;
  #catchingUp: Promise<boolean> = Promise.resolve(false);
  /** Unsent messages. They are sent even after the session is closed. */
  readonly #outbox: SessionOutbox;

  /** Open a session. With `isNew` there is nothing to load: its first message creates it. */
  constructor(id: string, isNew = false) {
    this.id = id;
    this.pages = new AttachedPages(id);
    this.feedback = new SessionFeedback(id);
    this.#outbox = outboxOf(id);
    this.#outbox.onSent = this.#onSent;
    if (isNew) this.state.value = "ready";
    else void Promise.all([this.load(), this.pages.load(this.#abort.signal), this.feedback.load(this.#abort.signal)]);
  }

  close(): void {
    this.#abort.abort();
    if (this.#outbox.onSent === this.#onSent) this.#outbox.onSent = null;
  }

  readonly #onSent = (key: string, message: Message) => {
    this.#early.delete(key);
    this.#add([message]);
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
      this.#add(page.messages, again);
      this.state.value = "ready";
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      if (error instanceof ApiError && error.status === 404) {
        this.state.value = "ready"; // the first message will create the session
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
      this.#add(page.messages);
    } catch {
      // Scrolling to the top again retries.
    } finally {
      this.loadingOlder.value = false;
    }
  }

  /** Discard all messages and load them again, because updates and deletes were missed. */
  async startOver(): Promise<void> {
    await this.#loading; // its result is outdated
    this.#byId.clear();
    this.#deleted.clear();
    this.#before = this.#after = undefined;
    this.hasOlder.value = false;
    await this.load();
    this.#show();
  }

  /**
   * Load the messages after the last loaded one, because the stream is open again. Return true if the server does not
   * know that position: the session was deleted, or the server has another store.
   */
  catchUp(): Promise<boolean> {
    // Run it even if one is in progress, which may have read before the stream was open.
    this.#catchingUp = this.#catchingUp.then(() => this.#fetchNewer());
    return this.#catchingUp;
  }

  async #fetchNewer(): Promise<boolean> {
    await this.#loading; // it may also have read before the stream was open
    if (this.state.value === "failed" || this.#after === undefined) {
      await this.load();
      return false;
    }
    for (let more = true; more && !this.#abort.signal.aborted; ) {
      try {
        const page = await client.sessions.messages(this.id, { limit: PAGE, after: this.#after }, this.#abort.signal);
        this.#add(page.messages, true);
        more = page.has_more && page.after !== undefined;
        if (page.after !== undefined) this.#after = page.after;
      } catch (error) {
        if (!(error instanceof ApiError)) return false;
        if (error.status === 404 || error.status === 422) {
          await this.startOver();
          return true;
        }
        if (!error.isRetryable) return false; // we may no longer read it
        await pause(error.retryAfter ? error.retryAfter * 1000 : 1_000);
      }
    }
    return false;
  }

  // --- Events ---------------------------------------------------------------------------------------------

  onEvent(event: BreadcrumbEvent): void {
    if (event.session_id !== this.id) return;
    this.pages.onEvent(event);
    this.feedback.onEvent(event);
    if (event.operation === "deleted") {
      this.#deleted.add(event.breadcrumb_id);
      if (this.#byId.delete(event.breadcrumb_id)) this.#show();
      return;
    }
    const known = this.#byId.get(event.breadcrumb_id);
    const message = messageOfEvent(event, known?.created_at ?? event.updated_at);
    if (message === null || (known && known.version >= message.version)) return;
    if (!known && event.operation === "updated") {
      void this.#addEdited(message);
      return;
    }
    if (message.role === "user") this.#matchUnsent(message);
    this.#add([message], true);
    if (event.context === undefined) void this.#loadSecret(event, message.created_at);
  }

  /** Add an edited message that is not loaded. Its event lacks the creation time, which determines its position. */
  async #addEdited(message: Message): Promise<void> {
    try {
      const { created_at } = await client.breadcrumbs.full(message.id, this.#abort.signal);
      await this.#loading;
      const oldest = this.messages.value[0]?.created_at ?? "";
      if (this.hasOlder.value && created_at < oldest) return; // it will be loaded with its page
      this.#add([{ ...message, created_at }]);
    } catch {
      // The message was deleted, or we may not read it.
    }
  }

  /** Load the context of a secret message. The token of the stream may not read secrets, but the credential may. */
  async #loadSecret(event: BreadcrumbEvent, createdAt: string): Promise<void> {
    try {
      const { context, version } = await client.breadcrumbs.full(event.breadcrumb_id, this.#abort.signal);
      const message = context && messageOfEvent({ ...event, context }, createdAt);
      if (!message || this.#byId.get(message.id)?.version !== version) return;
      this.#byId.set(message.id, message);
      this.#show();
    } catch {
      // The message was deleted, or the credential may not read it either.
    }
  }

  onDelta(delta: AnswerDelta): void {
    if (delta.session_id !== this.id || this.#byId.has(delta.breadcrumb_id)) return;
    const drafts = this.drafts.value;
    const known = drafts.find((draft) => draft.id === delta.breadcrumb_id);
    if (!known && delta.offset > 0 && this.#hasFailed(delta)) return; // a late delta of a failed turn
    const pieces = [...delta.text].length;
    let text = delta.text;
    if (known && delta.offset > 0) {
      if (delta.offset >= known.length) {
        text = known.text + (delta.offset > known.length ? " … " : "") + delta.text; // a delta got lost
      } else {
        text = [...known.text].slice(0, delta.offset).join("") + delta.text; // the agent replaces its text
      }
    } else if (!known && delta.offset > 0) {
      text = `… ${delta.text}`; // the stream was opened after the answer started
    }
    const draft: Draft = {
      id: delta.breadcrumb_id,
      trigger: delta.trigger_id,
      agent: delta.agent_id,
      text,
      length: delta.offset + pieces,
      reasoning: [...(known?.reasoning ?? "")].slice(0, delta.reasoning_offset ?? 0).join("") + (delta.reasoning ?? ""),
      notice: delta.notice,
    };
    this.drafts.value = known
      ? drafts.map((other) => (other.id === draft.id ? draft : other))
      : [...drafts, draft];
  }

  #add(messages: readonly Message[], areNew = false): void {
    let changed = false;
    for (const message of messages) {
      const known = this.#byId.get(message.id);
      if (this.#deleted.has(message.id) || (known && known.version >= message.version)) continue;
      this.#byId.set(message.id, message);
      changed = true;
      if (this.#seen.has(message.id)) continue;
      this.#seen.add(message.id);
      if (areNew && (message.role === "assistant" || message.role === "error")) this.news.value = message;
      // An error ends the answer in progress. A later delta belongs to another attempt.
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

  // --- Own messages ---------------------------------------------------------------------------------------

  say(text: string): void {
    this.#outbox.say(text);
  }

  /** Send a refused message again. */
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

  /** Match an event to an unsent message. The event can arrive before the reply, and must not be shown twice. */
  #matchUnsent(message: Message): void {
    const ours = this.#outbox.unsent.value.find((one) => one.text === message.text && !this.#early.has(one.key));
    if (ours) this.#early.set(ours.key, message.id);
  }

  /** Unsent messages that are not yet in `messages`. */
  readonly shownUnsent = computed(() => {
    const shown = new Set(this.messages.value.map((message) => message.id));
    return this.#outbox.unsent.value.filter((one) => !shown.has(this.#early.get(one.key) ?? ""));
  });
}

/** Whether an error ends the draft of an agent. */
function endedBy(error: Message, draft: Pick<Draft, "trigger" | "agent">): boolean {
  const failed = error.context["agent_id"]; // set if only one of several agents failed
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
      // After a retry, only an outcome that is newer than the error settles the message.
      const since = retried.get(id);
      if (since === undefined || message.created_at > since) settled.add(id);
    }
  }
  const waiting = messages.filter((message) => message.role === "user" && !settled.has(message.id));
  const recent = waiting.filter(
    (message) => retried.has(message.id) || time - Date.parse(message.created_at) < ANSWER_TIMEOUT_MS,
  );
  return new Map(recent.map((message, index) => [message.id, index === 0 ? "answering" : "queued"]));
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));
