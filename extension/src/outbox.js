// Breadcrumbs that the server has not confirmed. They are in the storage of the extension, which all panels share, so
// nothing is lost if the connection breaks, the panel is closed or Chrome quits.

import { Outbox, isKeyExpired } from "../client/index.js";

const KEY = "outbox";
const STORAGE_LOCK = "breadcrumbs-outbox";
const SENDER_LOCK = "breadcrumbs-sender";
const BACKOFF = { firstMs: 400, longestMs: 10_000 };

/**
 * @typedef {object} Parcel
 * @property {string} key
 * @property {string} target Server and token that it was written for. It is not sent to another target.
 * @property {string} session
 * @property {import("./server.js").NewCrumb} crumb
 * @property {number} at
 * @property {boolean} tried Whether a request was sent. If so, the server may already have it.
 * @property {string} [failed] Reason why it was refused.
 * @property {import("../client/index.js").CreatedBreadcrumb} [sent]
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

/** @param {(all: readonly Parcel[]) => readonly Parcel[]} edit */
async function change(edit) {
  await navigator.locks.request(STORAGE_LOCK, async () => {
    await chrome.storage.local.set({ [KEY]: edit(await parcels()) });
  });
}

/** Outbox of the panel. If there are several panels, one of them sends for all. */
export class PanelOutbox {
  #target;
  #outbox;
  #end = new AbortController();

  /**
   * @param {import("../client/index.js").Client} client
   * @param {string} target
   */
  constructor(client, target) {
    this.#target = target;
    /** @type {Outbox<Parcel, import("../client/index.js").CreatedBreadcrumb>} */
    this.#outbox = new Outbox({
      storage: { read: parcels, change },
      backoff: BACKOFF,
      marks: { refused: (failed) => ({ failed }), sent: (sent) => ({ sent }) },
      send: ({ crumb, key }, signal) => client.breadcrumbs.create(crumb, key, signal),
      isWaiting: (parcel) => parcel.target === target && !parcel.failed && !parcel.sent,
      objection: (parcel) =>
        isKeyExpired(parcel)
          ? "It may have been sent already. Check the conversation before you retry"
          : undefined,
    });
  }

  start() {
    const { signal } = this.#end;
    navigator.locks.request(SENDER_LOCK, { signal }, () => this.#run()).catch((error) => {
      if (!signal.aborted) throw error;
    });
  }

  stop() {
    this.#end.abort();
    this.#outbox.stop();
  }

  /** Send now, because there is a new entry or the server is reachable again. */
  retryNow() {
    this.#outbox.retryNow();
  }

  /** @param {{session: string, crumb: import("./server.js").NewCrumb}} parcel */
  async add(parcel) {
    await this.#outbox.add({ ...parcel, target: this.#target });
  }

  /** @param {string} key */
  async remove(key) {
    await this.#outbox.remove(key);
  }

  /** Send a parcel again that was refused or written for another server. @param {string} key */
  async resend(key) {
    await this.#outbox.update(key, { target: this.#target, at: Date.now(), failed: undefined });
    this.retryNow();
  }

  async #run() {
    onParcels(() => this.#outbox.wake());
    await change((all) => all.filter((parcel) => !parcel.sent)); // left by a panel that was closed before it removed them
    await this.#outbox.run();
  }
}
