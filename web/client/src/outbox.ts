/**
 * Queue of messages that the server has not confirmed. They are stored and sent in order until the server accepts or
 * refuses them. Each has an idempotency key, so a retry never writes twice.
 */

import { ApiError, messageOf } from "./errors.ts";
import { newId } from "./ids.ts";
import { Pause, retryDelay, type Backoff } from "./retries.ts";

export interface OutboxEntry {
  /** The idempotency key. */
  key: string;
  /** When it was added or released for another attempt, in milliseconds of the local clock. */
  at: number;
  /** Whether a request was sent. If so, the server may already have it. */
  tried: boolean;
}

/** Storage of the entries. Several windows can share it. */
export interface OutboxStorage<E> {
  read(): readonly E[] | Promise<readonly E[]>;
  /** Replace the entries by the result of `edit`. */
  change(edit: (entries: readonly E[]) => readonly E[]): void | Promise<void>;
}

/** Fields that the outbox sets on an entry when its state changes. */
export interface OutboxMarks<E, R> {
  refused(reason: string, error?: unknown): Partial<E>;
  /** The request failed and is retried after a delay. */
  waiting?(reason: string): Partial<E>;
  /** Set before the entry is removed, so that other windows see the result. */
  sent?(result: R): Partial<E>;
}

export interface OutboxOptions<E, R> {
  storage: OutboxStorage<E>;
  backoff: Backoff;
  marks: OutboxMarks<E, R>;
  send(entry: E, signal: AbortSignal): Promise<R>;
  /** Whether an entry has to be sent: not refused, not sent yet, and written for this server. */
  isWaiting(entry: E): boolean;
  /** Returns the reason why an entry needs a decision of the user before it is sent. */
  objection?(entry: E): string | undefined;
  /** Called before the entry is removed. */
  onSent?(entry: E, result: R): void;
}

/** Idempotency keys expire on the server after a day by default. One hour is a safety margin. */
const KEY_LIFETIME_MS = 23 * 3600_000;

/** Whether a retry could write an entry twice, because its key has expired. */
export function isKeyExpired({ tried, at }: OutboxEntry): boolean {
  return tried && Date.now() - at > KEY_LIFETIME_MS;
}

export class Outbox<E extends OutboxEntry, R> {
  readonly #options: OutboxOptions<E, R>;
  readonly #end = new AbortController();
  readonly #pause = new Pause();
  #failures = 0;

  constructor(options: OutboxOptions<E, R>) {
    this.#options = options;
  }

  /** Add an entry. A synchronous storage has it when this returns. */
  async add(fields: Omit<E, keyof OutboxEntry>): Promise<void> {
    const entry = { key: newId(), ...fields, at: Date.now(), tried: false } as unknown as E;
    await this.#options.storage.change((entries) => [...entries, entry]);
    this.wake();
  }

  async remove(key: string): Promise<void> {
    await this.#options.storage.change((entries) => entries.filter((entry) => entry.key !== key));
    this.wake();
  }

  /** Change an entry, for example to send it again. */
  async update(key: string, fields: Partial<E>): Promise<void> {
    await this.#mark(key, fields);
    this.wake();
  }

  /** Check the entries now. */
  wake(): void {
    this.#pause.end();
  }

  /** Check the entries now, and reset the delay between retries. */
  retryNow(): void {
    this.#failures = 0;
    this.wake();
  }

  stop(): void {
    this.#end.abort();
    this.wake();
  }

  /** Send entries until `stop` is called. Only one window may run this for a shared storage. */
  async run(): Promise<void> {
    const { storage, isWaiting } = this.#options;
    while (!this.#end.signal.aborted) {
      const change = this.#pause.wait(); // started before the read, so that no change in between is missed
      const next = (await storage.read()).find((entry) => isWaiting(entry));
      if (next) await this.#process(next);
      else await change;
    }
  }

  async #process(entry: E): Promise<void> {
    const objection = this.#options.objection?.(entry);
    if (objection !== undefined) {
      await this.#mark(entry.key, this.#options.marks.refused(objection));
      return;
    }
    if (!entry.tried) await this.#mark(entry.key, { tried: true } as Partial<E>);
    try {
      const result = await this.#options.send(entry, this.#end.signal);
      this.#failures = 0;
      await this.#confirm(entry, result);
    } catch (error) {
      if (!this.#end.signal.aborted) await this.#handleError(entry, error);
    }
  }

  async #confirm(entry: E, result: R): Promise<void> {
    const { marks, onSent } = this.#options;
    if (marks.sent) await this.#mark(entry.key, marks.sent(result));
    onSent?.(entry, result);
    await this.remove(entry.key);
  }

  async #handleError(entry: E, error: unknown): Promise<void> {
    const { marks, backoff } = this.#options;
    if (!(error instanceof ApiError && error.isRetryable)) {
      this.#failures = 0;
      await this.#mark(entry.key, marks.refused(messageOf(error), error));
      return;
    }
    if (marks.waiting) await this.#mark(entry.key, marks.waiting(error.message));
    const delay = retryDelay(backoff, this.#failures++);
    await this.#pause.wait(error.retryAfter === undefined ? delay : error.retryAfter * 1000);
  }

  async #mark(key: string, fields: Partial<E>): Promise<void> {
    await this.#options.storage.change((entries) =>
      entries.map((entry) => (entry.key === key ? { ...entry, ...fields } : entry)),
    );
  }
}
