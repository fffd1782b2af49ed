/**
 * The time of the server, updated every 30 seconds. A component that reads it is rendered again at each update. With
 * the local clock, a wrong local time would make new messages look old.
 */

import { signal } from "@preact/signals";

/** Milliseconds that the clock of the server is ahead of the local clock. */
let ahead = 0;

export const now = signal(Date.now());

const update = () => {
  if (!document.hidden) now.value = Date.now() + ahead;
};
setInterval(update, 30_000);
document.addEventListener("visibilitychange", update);

/** Set the time of the server. Ignores a value that is not a time. */
export function setServerTime(iso: string | undefined): void {
  const ms = Date.parse(iso ?? "");
  if (Number.isNaN(ms)) return;
  const before = ahead;
  ahead = ms - Date.now();
  // Network latency alone must not render everything again.
  if (Math.abs(ahead - before) > 5_000) now.value = ms;
}
