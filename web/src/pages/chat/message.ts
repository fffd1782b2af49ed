/** Breadcrumbs of a session as messages of a conversation, and conversations as turns. */

import type { Json, JsonObject, Message } from "../../lib/api";
import type { CrumbEvent } from "../../lib/stream";

const ROLES: Record<string, Message["role"]> = {
  "user.message.v1": "user",
  "agent.response.v1": "assistant",
  "agent.error.v1": "error",
  "tool.request.v1": "tool",
  "tool.response.v1": "tool",
};

/** The message that an event brings, as the server would list it; null where it is none. */
export function messageOfEvent(event: CrumbEvent, known: Message | undefined): Message | null {
  const role = event.schema_name === undefined ? undefined : ROLES[event.schema_name];
  if (role === undefined || event.schema_name === undefined) return null;
  const context = event.context ?? {}; // what is secret comes without
  const message: Message = {
    id: event.breadcrumb_id,
    role,
    text: textOf(context),
    schema_name: event.schema_name,
    created_at: known?.created_at ?? event.updated_at,
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

function textOf(context: JsonObject): string {
  for (const key of ["message", "content", "text", "response_text", "formatted", "error"]) {
    const value = context[key];
    if (typeof value === "string") return value;
  }
  return "";
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
