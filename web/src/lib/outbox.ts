/** Outboxes of this tab, one per session. They send in the background and survive a reload. */

import { signal } from "@preact/signals";
import {
  ApiError,
  isKeyExpired,
  Outbox,
  type Message,
  type OutboxEntry,
  type OutboxStorage,
} from "@breadcrumbs/client";
import { logins, owner } from "./credential";
import { client } from "./server";

/** A message that the server has not confirmed. */
export interface Unsent extends OutboxEntry {
  text: string;
  /** Owner of the credential at that time, or empty if it is not known. */
  owner: string;
  state: "sending" | "waiting" | "refused";
  problem?: string;
  /** Whether it was refused because of the credential. It is sent again after the next login. */
  locked?: boolean;
}

const BACKOFF = { firstMs: 500, longestMs: 5_000, jitter: 0 };
const KEY_PREFIX = "crumb.unsent.";
const outboxes = new Map<string, SessionOutbox>();

/** Return the outbox of a session. */
export function outboxOf(session: string): SessionOutbox {
  let outbox = outboxes.get(session);
  if (outbox === undefined) outboxes.set(session, (outbox = new SessionOutbox(session)));
  return outbox;
}

/** Send the messages that were left when this tab was reloaded. */
export function sendStored(): void {
  try {
    for (const name of Object.keys(sessionStorage)) {
      if (name.startsWith(KEY_PREFIX)) outboxOf(name.slice(KEY_PREFIX.length));
    }
  } catch {
    // Storage can be disabled. Nothing was stored then.
  }
}

/** Send now, because the server is reachable. */
export function sendNow(): void {
  for (const outbox of outboxes.values()) outbox.wake();
}

export class SessionOutbox {
  readonly unsent = signal<readonly Unsent[]>([]);
  /** Called with a message that was sent, before it is removed from the list. */
  onSent: ((key: string, message: Message) => void) | null = null;

  readonly #outbox: Outbox<Unsent, Message>;

  constructor(session: string) {
    const name = KEY_PREFIX + session;
    this.unsent.value = load(name);
    const storage: OutboxStorage<Unsent> = {
      read: () => this.unsent.peek(),
      change: (edit) => {
        this.unsent.value = edit(this.unsent.peek());
        save(name, this.unsent.peek());
      },
    };
    this.#outbox = new Outbox<Unsent, Message>({
      storage,
      backoff: BACKOFF,
      marks: {
        waiting: (problem) => ({ state: "waiting", problem, locked: false }),
        refused: (problem, error) => ({
          state: "refused",
          problem,
          locked: error instanceof ApiError && error.status === 401,
        }),
      },
      send: (entry) => client.sessions.say(session, entry.text, entry.key),
      isWaiting: (entry) => entry.state !== "refused",
      objection: objectionTo,
      onSent: (entry, message) => this.onSent?.(entry.key, message),
    });
    void this.#outbox.run();
    let before = logins.peek();
    logins.subscribe((now) => {
      if (now !== before) this.#unlock();
      before = now;
    });
  }

  say(text: string): void {
    void this.#outbox.add({ text, owner: owner.peek(), state: "sending" });
  }

  /** Send a refused message again, at the request of the user. */
  resend(key: string): void {
    void this.#outbox.update(key, { at: Date.now(), owner: owner.peek(), state: "sending", locked: false });
  }

  discard(key: string): void {
    void this.#outbox.remove(key);
  }

  wake(): void {
    this.#outbox.wake();
  }

  /** Send the messages again that were refused because of the previous credential. */
  #unlock(): void {
    for (const { key, locked } of this.unsent.peek()) {
      if (locked) void this.#outbox.update(key, { state: "sending", locked: false });
    }
    this.wake();
  }
}

function objectionTo(entry: Unsent): string | undefined {
  if (isKeyExpired(entry)) return "It may have been sent already. Check the conversation before you retry.";
  const now = owner.peek();
  if (entry.owner && now && entry.owner !== now) return "It was written with the key of another owner.";
  return undefined;
}

function load(name: string): Unsent[] {
  try {
    const stored = JSON.parse(sessionStorage.getItem(name) ?? "[]") as Unsent[];
    return stored.map((entry) => ({ ...entry, state: "sending" }));
  } catch {
    return [];
  }
}

function save(name: string, unsent: readonly Unsent[]): void {
  try {
    if (unsent.length) sessionStorage.setItem(name, JSON.stringify(unsent));
    else sessionStorage.removeItem(name);
  } catch {
    // Storage can be disabled or full. Unsent messages are lost on reload then.
  }
}
