/** Breadcrumbs of a session as messages of a conversation, and conversations as turns. */

import type { BreadcrumbEvent, Json, JsonObject, Message } from "@breadcrumbs/client";

const ROLES: Record<string, Message["role"]> = {
  "user.message.v1": "user",
  "agent.response.v1": "assistant",
  "agent.error.v1": "error",
  "tool.request.v1": "tool",
  "tool.response.v1": "tool",
};

/** The message that an event brings, as the server would list it; null where it is none. */
export function messageOfEvent(event: BreadcrumbEvent, createdAt: string): Message | null {
  const role = event.schema_name === undefined ? undefined : ROLES[event.schema_name];
  if (role === undefined || event.schema_name === undefined) return null;
  const context = event.context ?? {}; // what is secret comes without
  const message: Message = {
    id: event.breadcrumb_id,
    role,
    text: textOf(event.schema_name, context),
    schema_name: event.schema_name,
    created_at: createdAt,
    updated_at: event.updated_at,
    version: event.version,
    tags: event.tags,
    context,
  };
  const trigger = context["trigger_id"];
  if (typeof trigger === "string") message.trigger_id = trigger;
  const agent = agentOf(context);
  if (agent !== undefined) message.agent_id = agent;
  return message;
}

/** What the runtime puts into a context for itself: nobody said that. */
const GLUE = ["session_id", "trigger_id", "creator", "hops", "context_id", "context_version", "answers"];
const WORDS = ["message", "content", "text", "response_text", "formatted"];

/** The words of a message, as the server finds them (`text_of`): the same live and after a reload. */
function textOf(schema: string, context: JsonObject): string {
  if (schema === "agent.error.v1") return words(context["error"]);
  if (schema === "tool.request.v1") return words(context["input"]);
  if (schema === "tool.response.v1") return words("output" in context ? context["output"] : context["error"]);
  const { parts, message } = context;
  if (Array.isArray(parts) && typeof message !== "string") return parts.map(textOfPart).join("");
  const said = Object.fromEntries(Object.entries(context).filter(([name]) => !GLUE.includes(name)));
  const found = WORDS.map((name) => said[name]).find((value) => typeof value === "string");
  if (typeof found === "string") return found;
  return Object.values(said).some((value) => value !== null) ? words(said) : "";
}

function textOfPart(part: Json): string {
  const text = isObject(part) ? part["text"] : part;
  return typeof text === "string" ? text : "";
}

/** Anything that is not text as JSON, without what is null. */
function words(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(withoutNulls(value));
}

function withoutNulls(value: Json): Json {
  if (Array.isArray(value)) return value.filter((inner) => inner !== null).map(withoutNulls);
  if (!isObject(value)) return value;
  const left = Object.entries(value).filter(([, inner]) => inner !== null);
  return Object.fromEntries(left.map(([name, inner]) => [name, withoutNulls(inner)]));
}

export function agentOf(context: JsonObject): string | undefined {
  const creator = context["creator"];
  if (typeof creator === "string") return creator;
  const id = isObject(creator) ? creator["agent_id"] : undefined;
  return typeof id === "string" ? id : undefined;
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A tool's request and its response, which belong together. */
export interface ToolUse {
  kind: "tool";
  id: string;
  name: string;
  request?: Message;
  response?: Message;
}

export interface Said {
  kind: "message";
  message: Message;
}

/** Something that a turn shows, in its order. */
export type Step = ToolUse | Said;

/** What somebody said, and all that came of it. */
export interface Turn {
  id: string;
  /** Missing where the turn began before what is loaded, or without a message. */
  message?: Message;
  steps: Step[];
}

/**
 * Each answer stands below the message that it answers, also where another message came in between: that is
 * the order in which the agent took them.
 */
export function turnsOf(messages: readonly Message[]): Turn[] {
  const turns: Turn[] = [];
  const byMessage = new Map<string, Turn>();
  for (const message of messages) {
    if (message.role === "user") {
      const turn: Turn = { id: message.id, message, steps: [] };
      turns.push(turn);
      byMessage.set(message.id, turn);
    }
  }
  const orphans = new Map<string, Turn>();
  for (const message of messages) {
    if (message.role === "user") continue;
    const trigger = message.trigger_id;
    let turn = trigger === undefined ? undefined : (byMessage.get(trigger) ?? orphans.get(trigger));
    if (turn === undefined) {
      turn = { id: message.id, steps: [] };
      if (trigger !== undefined) orphans.set(trigger, turn);
      const later = turns.findIndex((other) => startOf(other) > message.created_at);
      turns.splice(later < 0 ? turns.length : later, 0, turn);
    }
    addStep(turn, message);
  }
  return turns;
}

function startOf(turn: Turn): string {
  const first = turn.message ?? firstOf(turn.steps[0]);
  return first?.created_at ?? "";
}

function firstOf(step: Step | undefined): Message | undefined {
  if (step === undefined) return undefined;
  return step.kind === "message" ? step.message : (step.request ?? step.response);
}

function addStep(turn: Turn, message: Message): void {
  if (message.role !== "tool") {
    turn.steps.push({ kind: "message", message });
    return;
  }
  const request = message.context["request_id"];
  const id = typeof request === "string" ? request : message.id;
  let use = turn.steps.find((step): step is ToolUse => step.kind === "tool" && step.id === id);
  if (use === undefined) {
    const name = message.context["tool"];
    use = { kind: "tool", id, name: typeof name === "string" ? name : "tool" };
    turn.steps.push(use);
  }
  if (message.schema_name === "tool.response.v1") use.response = message;
  else use.request = message;
}

/** The ids of the messages that an answer or an error settles. */
export function settledBy(message: Message): string[] {
  const merged = message.context["answers"];
  const more = Array.isArray(merged) ? merged.filter((id): id is string => typeof id === "string") : [];
  return message.trigger_id === undefined ? more : [message.trigger_id, ...more];
}

export function wasCancelled(message: Message): boolean {
  return message.context["cancelled"] === true;
}
