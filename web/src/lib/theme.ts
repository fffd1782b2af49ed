/** Light or dark theme. The default is the theme of the system. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const STORAGE_KEY = "crumb.theme";

export const theme = signal<Theme>((document.documentElement.dataset["theme"] as Theme | undefined) ?? "system");

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  try {
    if (chosen === "system") localStorage.removeItem(STORAGE_KEY);
    else localStorage.setItem(STORAGE_KEY, chosen);
  } catch {
    // Storage can be disabled. The choice is lost on reload then.
  }
});

/** Return whether the page is dark now. */
export function isDark(): boolean {
  return theme.value === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme.value === "dark";
}
