// What is on its way to the server. It is kept in the browser until the server has confirmed it, so that nothing
// is lost when the connection breaks, the panel is closed or Chrome ends; and each thing has an idempotency key,
// so that nothing is written twice however often it is sent.

import { Problem } from "./api.js";
import { waitAfter } from "./feed.js";

const KEY = "outbox";
const LOCK = "breadcrumbs-outbox";

// The server forgets idempotency keys after a day unless it is told otherwise.
const KEYS_ARE_KNOWN_MS = 23 * 3600 * 1000;

/**
 * @typedef {object} Parcel
 * @property {string} key
 * @property {string} target The server and the token that it was written for: it goes nowhere else by itself.
 * @property {string} session
 * @property {import("./api.js").NewCrumb} crumb
 * @property {number} at
 * @property {boolean} tried Whether the server may have it already.
 * @property {string} [failed] Why the server does not take it.
 * @property {import("./api.js").Written} [sent]
 */

/** @returns {Promise<Parcel[]>} */
export async function parcels() {
  const { [KEY]: all } = await chrome.storage.local.get({ [KEY]: [] });
  return /** @type {Parcel[]} */ (all);
}

/** @param {(parcels: Parcel[]) => void} changed */
export function onParcels(changed) {
  chrome.storage.local.onChanged.addListener((changes) => {
    if (changes[KEY]) changed(/** @type {Parcel[]} */ (changes[KEY].newValue ?? []));
  });
}

/** @param {{target: string, session: string, crumb: import("./api.js").NewCrumb}} parcel */
export async function put(parcel) {
  await change((all) => [...all, { ...parcel, key: crypto.randomUUID(), at: Date.now(), tried: false }]);
}

/** @param {string} key */
export async function discard(key) {
  await change((all) => all.filter((parcel) => parcel.key !== key));
}

/**
 * Try a parcel again that was refused, or written for another server.
 * @param {string} key
 * @param {string} target
 */
export async function again(key, target) {
  await change((all) =>
    all.map((parcel) => (parcel.key === key ? { ...parcel, target, at: Date.now(), failed: undefined } : parcel)),
  );
}

/** @param {(all: Parcel[]) => Parcel[]} edit */
async function change(edit) {
  await navigator.locks.request(LOCK, async () => {
    await chrome.storage.local.set({ [KEY]: edit(await parcels()) });
  });
}

/** Sends what is in the outbox, in its order. With several panels one of them does it for all. */
export class Sender {
  #api;
  #target;
  #end = new AbortController();
  #wake = () => {};
  #failures = 0;

  /**
   * @param {import("./api.js").Api} api
   * @param {string} target
   */
  constructor(api, target) {
    this.#api = api;
    this.#target = target;
  }

  start() {
    const { signal } = this.#end;
    navigator.locks.request("breadcrumbs-sender", { signal }, () => this.#run()).catch((error) => {
      if (!signal.aborted) throw error;
    });
  }

  stop() {
    this.#end.abort();
    this.#wake();
  }

  /** There is something new, or a better time to try again. */
  nudge() {
    this.#failures = 0;
    this.#wake();
  }

  async #run() {
    const { signal } = this.#end;
    onParcels(() => this.#wake());
    await change((all) => all.filter((parcel) => !parcel.sent)); // of a panel that was closed at that moment
    while (!signal.aborted) {
      const waiting = this.#pause();
      const next = (await parcels()).find((parcel) => parcel.target === this.#target && !parcel.failed && !parcel.sent);
      if (!next) {
        await waiting;
        continue;
      }
      await this.#send(next);
    }
  }

  /** @param {Parcel} parcel */
  async #send(parcel) {
    const { signal } = this.#end;
    if (parcel.tried && Date.now() - parcel.at > KEYS_ARE_KNOWN_MS) {
      await this.#mark(parcel.key, { failed: "Nobody knows any more whether this has arrived. Look before you send it again" });
      return;
    }
    if (!parcel.tried) await this.#mark(parcel.key, { tried: true });
    try {
      const sent = await this.#api.post(parcel.crumb, parcel.key, signal);
      this.#failures = 0;
      // Marked first, so that every panel knows what it has become before it is gone.
      await this.#mark(parcel.key, { sent });
      await discard(parcel.key);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      if (error.passes) {
        await this.#pause(error.retryAfterMs ?? waitAfter(this.#failures++));
      } else {
        await this.#mark(parcel.key, { failed: error.message });
      }
    }
  }

  /**
   * @param {string} key
   * @param {Partial<Parcel>} fields
   */
  async #mark(key, fields) {
    await change((all) => all.map((parcel) => (parcel.key === key ? { ...parcel, ...fields } : parcel)));
  }

  /** @param {number} [ms] Without it: until there is something to do. */
  #pause(ms) {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
  }
}
