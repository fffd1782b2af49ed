/** Short notifications that disappear after a few seconds. */

import { signal } from "@preact/signals";
import { messageOf } from "@breadcrumbs/client";
import { Icon } from "./icons";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

const toasts = signal<readonly Toast[]>([]);
let last = 0;

export function toast(text: string, bad = false): void {
  const id = ++last;
  toasts.value = [...toasts.value, { id, text, bad }].slice(-4);
  setTimeout(() => dismiss(id), bad ? 12_000 : 5_000);
}

/** Run an action. If it fails, show the error and return undefined. */
export async function attempt<T>(what: string, action: () => Promise<T>): Promise<T | undefined> {
  try {
    return await action();
  } catch (error) {
    toast(`${what}: ${messageOf(error)}`, true);
    return undefined;
  }
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

/** Shows the notifications. Rendered once, in the shell. */
export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={`toast ${one.bad ? "bad" : ""}`}>
          <span class="grow">{one.text}</span>
          <button type="button" class="button bare tiny square" aria-label="Dismiss" onClick={() => dismiss(one.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
