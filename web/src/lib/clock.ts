/** The time, for what changes by itself: reading it in a component draws that again twice a minute. */

import { signal } from "@preact/signals";

export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 30_000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) now.value = Date.now();
});
