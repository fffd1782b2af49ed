/** Light or dark: the system's choice, unless somebody chose here. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEPT = "crumb.theme";

export const theme = signal<Theme>((document.documentElement.dataset["theme"] as Theme | undefined) ?? "system");

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  try {
    if (chosen === "system") localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, chosen);
  } catch {
    // Storage may be forbidden: then it lasts until the page is loaded again.
  }
});

/** What is seen now. */
export function isDark(): boolean {
  return theme.value === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme.value === "dark";
}
