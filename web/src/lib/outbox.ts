/**
 * What somebody has said and the server has not confirmed. It goes on being sent whatever page or session is
 * looked at, and survives a reload of this tab.
 */

import { signal } from "@preact/signals";
import { ApiError, logins, messageOf, newId, owner, sessions, type Message } from "./api";

/** A message that the server has not confirmed. */
export interface Unsent {
  key: string;
  text: string;
  /** When it was said, or said to be sent again, by our clock. */
  at: number;
  /** Whose credential it was said with; empty: not known. */
  owner: string;
  /** The server may have it already. */
  tried: boolean;
  state: "sending" | "waiting" | "refused";
  problem?: string;
  /** Refused for want of a good credential: the next one may do. */
  locked?: boolean;
}

/** The server forgets idempotency keys after a day unless it is told otherwise. */
const KEYS_ARE_KNOWN = 23 * 3600_000;
const SLOWEST_RETRY = 5_000;

const PLACE = "crumb.unsent.";
const boxes = new Map<string, Outbox>();

/** The one of a session. */
export function outboxOf(session: string): Outbox {
  let box = boxes.get(session);
  if (box === undefined) boxes.set(session, (box = new Outbox(session)));
  return box;
}

/** Go on where this tab was before it was loaded again. */
export function sendWhatIsLeft(): void {
  try {
    for (const name of Object.keys(sessionStorage)) {
      if (name.startsWith(PLACE)) outboxOf(name.slice(PLACE.length));
    }
  } catch {
    // Storage may be forbidden: then nothing was kept.
  }
}

/** The server is there (again): do not wait any longer. */
export function sendNow(): void {
  for (const box of boxes.values()) box.wake();
}

class Outbox {
  readonly unsent = signal<readonly Unsent[]>([]);
  /** Told of what has arrived, before it leaves the list. */
  onSent: ((key: string, message: Message) => void) | null = null;

  readonly #session: string;
  #sending = false;
  #wake: (() => void) | undefined;

  constructor(session: string) {
    this.#session = session;
    this.unsent.value = kept(session);
    void this.#send();
    let before = logins.peek();
    logins.subscribe((now) => {
      if (now !== before) this.#unlock();
      before = now;
    });
  }

  say(text: string): void {
    const said = { key: newId(), text, at: Date.now(), owner: owner.peek(), tried: false, state: "sending" } as const;
    this.#set([...this.unsent.peek(), said]);
    void this.#send();
  }

  /** Try again to send what was refused: whoever says so has looked. */
  resend(key: string): void {
    this.#change(key, { at: Date.now(), owner: owner.peek(), state: "sending", locked: false });
    void this.#send();
  }

  discard(key: string): void {
    this.#set(this.unsent.peek().filter((one) => one.key !== key));
    void this.#send();
  }

  wake(): void {
    this.#wake?.();
  }

  /** There is another credential. */
  #unlock(): void {
    for (const one of this.unsent.peek()) if (one.locked) this.#change(one.key, { state: "sending", locked: false });
    this.wake();
    void this.#send();
  }

  /** One after the other, in their order, until none is left that can be sent. */
  async #send(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    try {
      for (let failures = 0; ; ) {
        const next = this.unsent.peek().find((one) => one.state !== "refused");
        if (next === undefined) return;
        const doubt = doubtAbout(next);
        if (doubt !== undefined) {
          this.#change(next.key, { state: "refused", problem: doubt });
          continue;
        }
        if (!next.tried) this.#change(next.key, { tried: true });
        try {
          const message = await sessions.say(this.#session, next.text, next.key);
          failures = 0;
          this.onSent?.(next.key, message);
          this.#set(this.unsent.peek().filter((one) => one.key !== next.key));
        } catch (error) {
          const passing = error instanceof ApiError && error.passing;
          this.#change(next.key, {
            state: passing ? "waiting" : "refused",
            problem: messageOf(error),
            locked: error instanceof ApiError && error.status === 401,
          });
          if (!passing) continue;
          // The key makes it safe: whether or not it arrived the first time, it is there once.
          const rest = error.retryAfter ? error.retryAfter * 1000 : Math.min(SLOWEST_RETRY, 500 * 2 ** failures++);
          await new Promise<void>((done) => {
            this.#wake = done;
            setTimeout(done, rest);
          });
        }
      }
    } finally {
      this.#sending = false;
    }
  }

  #change(key: string, fields: Partial<Unsent>): void {
    this.#set(this.unsent.peek().map((one) => (one.key === key ? { ...one, ...fields } : one)));
  }

  #set(unsent: readonly Unsent[]): void {
    this.unsent.value = unsent;
    try {
      if (unsent.length) sessionStorage.setItem(PLACE + this.#session, JSON.stringify(unsent));
      else sessionStorage.removeItem(PLACE + this.#session);
    } catch {
      // Storage may be forbidden or full: then a reload forgets what was not sent.
    }
  }
}

export type { Outbox };

/** Why a message must not go out by itself. */
function doubtAbout({ at, tried, owner: whose }: Unsent): string | undefined {
  if (tried && Date.now() - at > KEYS_ARE_KNOWN) {
    return "Nobody knows any more whether this has arrived. Look before you send it again.";
  }
  if (whose && owner.peek() && whose !== owner.peek()) return "It was written with the key of somebody else.";
  return undefined;
}

function kept(session: string): Unsent[] {
  try {
    const found = JSON.parse(sessionStorage.getItem(PLACE + session) ?? "[]") as Unsent[];
    return found.map((one) => ({ ...one, state: "sending" }));
  } catch {
    return [];
  }
}
