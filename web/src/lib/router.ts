/** Hash router. `#/chat/abc?x=1` is `{page: "chat", rest: ["abc"], query: {x: "1"}}`. */

import { signal } from "@preact/signals";

export const PAGES = ["chat", "board", "config", "agents", "feedback", "usage", "operations"] as const;
export type Page = (typeof PAGES)[number];

export interface Route {
  page: Page;
  rest: string[];
  query: Record<string, string>;
}

export const route = signal<Route>(read());

window.addEventListener("hashchange", () => {
  route.value = read();
});

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decoded);
  return {
    page: PAGES.find((known) => known === page) ?? "chat",
    rest: rest.filter(Boolean),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(page: Page, rest: string[] = [], query: Record<string, string> = {}): string {
  const path = [page, ...rest].map(encodeURIComponent).join("/");
  const text = new URLSearchParams(query).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

/** Navigate to an address. With `replace`, without a new entry in the browser history. */
export function go(to: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", to);
    route.value = read();
  } else {
    location.hash = to;
  }
}
