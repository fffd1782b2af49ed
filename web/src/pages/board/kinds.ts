/** Kinds of breadcrumbs on the board: message, context, model step, tool call, tool result, answer, error, other. */

import type { IconName } from "../../components/icons";
import { plural, shortened } from "../../lib/format";

export type Kind = "message" | "context" | "step" | "started" | "request" | "response" | "answer" | "error" | "other";

export const KINDS: Record<Kind, { icon: IconName; name: string }> = {
  message: { icon: "chat", name: "Message" },
  context: { icon: "layers", name: "Context" },
  step: { icon: "spark", name: "Model step" },
  request: { icon: "tool", name: "Tool call" },
  started: { icon: "play", name: "Tool started" },
  response: { icon: "check", name: "Tool result" },
  answer: { icon: "spark", name: "Answer" },
  error: { icon: "alert", name: "Error" },
  other: { icon: "crumb", name: "Breadcrumb" },
};

const BY_SCHEMA: Record<string, Kind> = {
  "user.message.v1": "message",
  "agent.context.v1": "context",
  "agent.step.v1": "step",
  "tool.request.v1": "request",
  "tool.started.v1": "started",
  "tool.response.v1": "response",
  "agent.response.v1": "answer",
  "agent.error.v1": "error",
};

export function kindOf(schema: string | undefined, tags: readonly string[] = []): Kind {
  const known = BY_SCHEMA[schema ?? ""];
  // A config can use another schema for its contexts. All contexts have a tag `consumer:`.
  return known ?? (tags.some((tag) => tag.startsWith("consumer:")) ? "context" : "other");
}

const MAX_LENGTH = 200;

/** Return a one-line summary of the content, or an empty string if there is none. */
export function gist(kind: Kind, context: Record<string, unknown> | undefined): string {
  if (!context) return "";
  switch (kind) {
    case "started":
      return words(text(context["tool"]));
    case "step": {
      const calls = Array.isArray(context["calls"]) ? context["calls"] : [];
      return words(text(context["text"]) || plural(calls.length, "tool call"));
    }
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

/** Return the number of items in a context. Undefined for older versions, which contain only references. */
export function itemsIn(context: Record<string, unknown>): number | undefined {
  const parts = context["parts"];
  if (!Array.isArray(parts)) return undefined;
  return parts.reduce<number>((sum, part: { items?: unknown }) => sum + (Array.isArray(part?.items) ? part.items.length : 0), 0);
}

function words(whole: string): string {
  return shortened(whole, MAX_LENGTH);
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
