/** Conversion of events to messages, and of messages to turns. */

import type { BreadcrumbEvent, Json, JsonObject, Message } from "@breadcrumbs/client";

const ROLES: Record<string, Message["role"]> = {
  "user.message.v1": "user",
  "agent.response.v1": "assistant",
  "agent.error.v1": "error",
  "tool.request.v1": "tool",
  "tool.response.v1": "tool",
};

/** Return the message of an event as the server would list it, or null if it is not a message. */
export function messageOfEvent(event: BreadcrumbEvent, createdAt: string): Message | null {
  const role = event.schema_name === undefined ? undefined : ROLES[event.schema_name];
  if (role === undefined || event.schema_name === undefined) return null;
  const context = event.context ?? {}; // missing for secret breadcrumbs
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

/** Context keys that the runtime adds. They are not part of the text. */
const RUNTIME_KEYS = [
  "session_id",
  "trigger_id",
  "creator",
  "hops",
  "root_id",
  "addressed_to",
  "structured_output",
  "context_id",
  "context_version",
  "answers",
  "adk",
  "state_delta",
  "model_reasoning",
  "model_receipt",
];
const TEXT_KEYS = ["message", "content", "text", "response_text", "formatted"];

/** Return the text of a message. Same rules as on the server (`text_of`), so that a reload changes nothing. */
function textOf(schema: string, context: JsonObject): string {
  if (schema === "agent.error.v1") return words(context["error"]);
  if (schema === "tool.request.v1") return words(context["input"]);
  if (schema === "tool.response.v1") return words("output" in context ? context["output"] : context["error"]);
  const { parts, message } = context;
  if (Array.isArray(parts) && typeof message !== "string") return parts.map(textOfPart).join("");
  const own = Object.fromEntries(Object.entries(context).filter(([name]) => !RUNTIME_KEYS.includes(name)));
  const found = TEXT_KEYS.map((name) => own[name]).find((value) => typeof value === "string");
  if (typeof found === "string") return found;
  return Object.values(own).some((value) => value !== null) ? words(own) : "";
}

function textOfPart(part: Json): string {
  const text = isObject(part) ? part["text"] : part;
  return typeof text === "string" ? text : "";
}

/** Return text as it is, and any other value as JSON without nulls. */
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

/** A tool request with its response. */
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

/** One step of a turn. */
export type Step = ToolUse | Said;

/** A message and everything that it triggered. */
export interface Turn {
  id: string;
  /** Missing if the message is not loaded, or if the turn has none. */
  message?: Message;
  steps: Step[];
}

/**
 * Group messages into turns. Each answer is placed below its message, even if another message was sent in between,
 * because agents answer the messages in this order.
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
    // An answer to another agent's answer belongs to the turn of the message that the chain began with.
    const root = message.context["root_id"];
    let turn = trigger === undefined ? undefined : (byMessage.get(trigger) ?? orphans.get(trigger));
    if (turn === undefined && typeof root === "string") turn = byMessage.get(root);
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

/** Return the answer of another agent that triggered a message of a turn, or undefined. */
export function handedOverBy(turn: Turn, message: Message): Message | undefined {
  if (message.trigger_id === turn.id) return undefined;
  const found = turn.steps.find((step) => step.kind === "message" && step.message.id === message.trigger_id);
  return found?.kind === "message" ? found.message : undefined;
}

/** Whether an answer with this trigger belongs to a turn. */
export function isTriggeredIn(turn: Turn, trigger: string): boolean {
  return turn.id === trigger || turn.steps.some((step) => step.kind === "message" && step.message.id === trigger);
}

/** Return the ids of the messages that an answer or an error settles. */
export function settledBy(message: Message): string[] {
  const merged = message.context["answers"];
  const more = Array.isArray(merged) ? merged.filter((id): id is string => typeof id === "string") : [];
  return message.trigger_id === undefined ? more : [message.trigger_id, ...more];
}

export function wasCancelled(message: Message): boolean {
  return message.context["cancelled"] === true;
}
