/** Keyboard shortcuts. Whoever has some says so while it is on the screen; `?` lists them all. */

import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";

export interface Shortcut {
  /** As shown and matched: `n`, `/`, `?`, `Escape`, `g c` (one after the other), `Ctrl+Enter`. */
  keys: string;
  what: string;
  group: string;
  run?: () => void;
  /** Also while somebody writes in a field. */
  inFields?: boolean;
  /** Only while this holds; otherwise the key is left to others. */
  when?: () => boolean;
}

export const shortcuts = signal<readonly Shortcut[]>([]);

export function useShortcuts(wanted: readonly Shortcut[], deps: readonly unknown[]): void {
  useEffect(() => {
    shortcuts.value = [...shortcuts.value, ...wanted];
    return () => {
      shortcuts.value = shortcuts.value.filter((one) => !wanted.includes(one));
    };
  }, deps);
}

let first = "";
let firstAt = 0;

window.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  const pressed = name(event);
  const writing = isField(event.target);
  // A dialog has the keyboard for itself.
  const inDialog = document.querySelector("dialog[open]") !== null;
  const pair = Date.now() - firstAt < 1_500 ? `${first} ${pressed}` : "";
  const found = shortcuts.value.findLast(
    (one) =>
      one.run &&
      (one.keys === pressed || one.keys === pair) &&
      (one.inFields || !writing) &&
      !inDialog &&
      (one.when?.() ?? true),
  );
  first = writing ? "" : pressed;
  firstAt = Date.now();
  if (found?.run) {
    event.preventDefault();
    first = "";
    found.run();
  }
});

function name(event: KeyboardEvent): string {
  const control = event.ctrlKey || event.metaKey ? "Ctrl+" : "";
  const alt = event.altKey ? "Alt+" : "";
  return `${control}${alt}${event.key}`;
}

function isField(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("input:not([type=checkbox],[type=radio]), textarea, select"))
  );
}
