/**
 * The time as the server has it, for what changes by itself: reading it in a component draws that again twice a
 * minute. A clock of ours that is wrong would make what was just said look old.
 */

import { signal } from "@preact/signals";

/** How far the server's clock is ahead of ours, in milliseconds. */
let ahead = 0;

export const now = signal(Date.now());

const tell = () => {
  if (!document.hidden) now.value = Date.now() + ahead;
};
setInterval(tell, 30_000);
document.addEventListener("visibilitychange", tell);

/** The server has said what time it is. */
export function setServerTime(iso: string | undefined): void {
  const ms = Date.parse(iso ?? "");
  if (Number.isNaN(ms)) return;
  const before = ahead;
  ahead = ms - Date.now();
  // What the way takes is no reason to draw everything again.
  if (Math.abs(ahead - before) > 5_000) now.value = ms;
}
