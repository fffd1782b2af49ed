/** Keyboard shortcuts. Components register theirs while they are mounted, and `?` lists them all. */

import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";

export interface Shortcut {
  /** Keys as shown and matched: `n`, `/`, `?`, `Escape`, `g c` (a sequence), `Ctrl+Enter`. */
  keys: string;
  what: string;
  group: string;
  run?: () => void;
  /** Whether it also works while a text field has the focus. */
  inFields?: boolean;
  /** Whether it is active now. If not, other shortcuts with the same key apply. */
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
  // An open dialog disables all shortcuts.
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
