/** What a breadcrumb is to people: a message, a context, a tool call, an answer, an error, or something else. */

import type { IconName } from "../../components/icons";
import { plural, shortened } from "../../lib/format";

export type Kind = "message" | "context" | "request" | "response" | "answer" | "error" | "other";

export const KINDS: Record<Kind, { icon: IconName; name: string }> = {
  message: { icon: "chat", name: "Message" },
  context: { icon: "layers", name: "Context" },
  request: { icon: "tool", name: "Tool call" },
  response: { icon: "check", name: "Tool result" },
  answer: { icon: "spark", name: "Answer" },
  error: { icon: "alert", name: "Error" },
  other: { icon: "crumb", name: "Breadcrumb" },
};

const BY_SCHEMA: Record<string, Kind> = {
  "user.message.v1": "message",
  "agent.context.v1": "context",
  "tool.request.v1": "request",
  "tool.response.v1": "response",
  "agent.response.v1": "answer",
  "agent.error.v1": "error",
};

export function kindOf(schema: string | undefined, tags: readonly string[] = []): Kind {
  const known = BY_SCHEMA[schema ?? ""];
  // A config may give its contexts another schema; who they are for stands in a tag.
  return known ?? (tags.some((tag) => tag.startsWith("consumer:")) ? "context" : "other");
}

const LONGEST = 200;

/** One line about it, from what it holds. Empty where that says nothing. */
export function gist(kind: Kind, context: Record<string, unknown> | undefined): string {
  if (!context) return "";
  switch (kind) {
    case "request":
      return words(`${text(context["tool"])} ${brief(context["input"])}`);
    case "response":
      return words(`${text(context["tool"])}: ${brief(context["error"] ?? context["output"])}`);
    case "context": {
      const items = itemsIn(context);
      return items === undefined ? "" : words(`${plural(items, "item")} for ${text(context["consumer_id"])}`);
    }
    case "error":
      return words(text(context["error"]));
    default:
      return words(["message", "content", "text"].map((name) => text(context[name])).find(Boolean) ?? "");
  }
}

/** How many items a context holds; unknown for its older versions, which keep references only. */
export function itemsIn(context: Record<string, unknown>): number | undefined {
  const parts = context["parts"];
  if (!Array.isArray(parts)) return undefined;
  return parts.reduce<number>((sum, part: { items?: unknown }) => sum + (Array.isArray(part?.items) ? part.items.length : 0), 0);
}

function words(whole: string): string {
  return shortened(whole, LONGEST);
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function brief(value: unknown): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export const SESSION = "session:";

export function sessionOf(tags: readonly string[]): string | undefined {
  return tags.find((tag) => tag.startsWith(SESSION))?.slice(SESSION.length);
}
