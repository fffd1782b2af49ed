/** Agents in force and unsaved definitions. The state survives leaving the page. */

import { batch, computed, signal } from "@preact/signals";
import { ApiError, messageOf, newId, type JsonObject } from "@breadcrumbs/client";
import { formatJson } from "../../lib/contexts";
import { logins } from "../../lib/credential";
import { DEFINITION_SCHEMA, definitions, type AgentInForce, type AgentList } from "../../lib/definitions";
import { client } from "../../lib/server";
import { Stream } from "../../lib/stream";

export const NEW = "new";

/** An agent or an unusable definition, as an entry of the list. */
export interface Entry {
  /** Part of the address of the page. */
  key: string;
  name: string;
  /** The agent in force. Undefined for a new or unusable definition. */
  agent?: AgentInForce;
  breadcrumb?: string;
  problem?: string;
}

/** The definition of an entry, as it is stored. */
export interface Stored {
  text: string;
  version: number;
}

interface Draft {
  text: string;
  /** Version of the breadcrumb that the edit is based on. 0: none. */
  version: number;
  /** Idempotency key of a request with this text whose outcome may be unknown. */
  sent?: string;
}

const TEMPLATE: JsonObject = {
  agent_id: "my-agent",
  description: "Answers messages with the tag ask:my-agent.",
  system_prompt: "You are a helpful assistant.",
  tools: [],
  subscriptions: {
    selectors: [
      { role: "trigger", schema_name: "user.message.v1", all_tags: ["ask:my-agent"] },
      { role: "context", schema_name: "user.message.v1", key: "conversation", fetch: { method: "recent", limit: 20 } },
      { role: "context", schema_name: "agent.response.v1", key: "conversation", fetch: { method: "recent", limit: 20 } },
    ],
  },
};

export const listed = signal<AgentList | null>(null);
export const problem = signal("");
export const stored = signal<Readonly<Record<string, Stored>>>({});
const drafts = signal<Readonly<Record<string, Draft>>>({});

export const entries = computed<Entry[]>(() => {
  const all = listed.value;
  if (!all) return [];
  const found: Entry[] = all.agents.map((agent) => ({
    key: agent.agent_id,
    name: agent.agent_id,
    agent,
    ...(agent.breadcrumb_id !== undefined && { breadcrumb: agent.breadcrumb_id }),
    ...(agent.problem !== undefined && { problem: agent.problem }),
  }));
  for (const one of all.unusable) {
    found.push({
      key: one.breadcrumb_id,
      name: one.title || "Definition",
      breadcrumb: one.breadcrumb_id,
      problem: one.problem,
    });
  }
  if (drafts.value[NEW]) found.push({ key: NEW, name: "New agent" });
  return found;
});

export function textOf(entry: Entry): string {
  return drafts.value[entry.key]?.text ?? stored.value[entry.key]?.text ?? "";
}

export function isEdited(entry: Entry): boolean {
  return drafts.value[entry.key] !== undefined;
}

export function edit(entry: Entry, text: string): void {
  const saved = stored.peek()[entry.key];
  if (saved && text === saved.text) return forget(entry.key);
  const before = drafts.peek();
  drafts.value = { ...before, [entry.key]: { text, version: before[entry.key]?.version ?? saved?.version ?? 0 } };
}

export function forget(key: string): void {
  const { [key]: _, ...rest } = drafts.peek();
  drafts.value = rest;
}

/** Start a new definition, from a template or from an existing text. */
export function startNew(text = `${formatJson(TEMPLATE)}\n`): void {
  drafts.value = { ...drafts.peek(), [NEW]: { text, version: 0 } };
}

/** Whether the breadcrumb has a newer version than the one that was edited. */
export function isOvertaken(entry: Entry): boolean {
  const draft = drafts.value[entry.key];
  const saved = stored.value[entry.key];
  return draft !== undefined && saved !== undefined && draft.version > 0 && saved.version > draft.version;
}

/** Base the edit on the version that is saved now, so that saving overwrites it. */
export function rebase(entry: Entry): void {
  const draft = drafts.peek()[entry.key];
  const saved = stored.peek()[entry.key];
  if (draft && saved) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, version: saved.version } };
}

// Replies can arrive out of order. A reply that is older than the last one is ignored.
let requested = 0;
let applied = 0;

export async function load(): Promise<void> {
  const number = ++requested;
  try {
    const found = await definitions.list();
    if (number < applied) return;
    applied = number;
    batch(() => {
      listed.value = found;
      problem.value = "";
    });
  } catch (error) {
    if (number >= applied) problem.value = messageOf(error);
  }
}

/** Load the stored definition of an entry. Agents of files and programs have none, or one that is read-only. */
export async function loadDefinition(entry: Entry): Promise<void> {
  const found = entry.breadcrumb === undefined ? readOnly(entry) : await fromBreadcrumb(entry.breadcrumb);
  if (found) stored.value = { ...stored.peek(), [entry.key]: found };
}

function readOnly(entry: Entry): Stored | undefined {
  const definition = entry.agent?.definition;
  return definition && { text: `${formatJson(definition)}\n`, version: 0 };
}

async function fromBreadcrumb(id: string): Promise<Stored> {
  const crumb = await client.breadcrumbs.full(id);
  return { text: `${formatJson(crumb.context ?? {})}\n`, version: crumb.version };
}

// After a login with another credential, the agents can belong to another owner.
logins.subscribe((count) => {
  if (count === 0) return;
  applied = ++requested;
  batch(() => {
    listed.value = null;
    stored.value = {};
    drafts.value = {};
  });
});

const POLL_MS = 10_000;

/** Load the agents and keep them up to date. Return a function that stops this. */
export function follow(): () => void {
  void load();
  const stream = new Stream(
    { schema_name: DEFINITION_SCHEMA },
    { onEvent: () => void load(), onGap: () => void load(), onOpen: (again) => void (again && load()) },
  );
  // Programs that start or stop cause no event.
  const timer = setInterval(() => void (document.hidden || load()), POLL_MS);
  return () => {
    stream.close();
    clearInterval(timer);
  };
}

// --- Saving -----------------------------------------------------------------------------------------------

export interface Saved {
  as: "saved" | "overtaken" | "deleted";
}

/** Save a definition that was checked before. */
export async function save(entry: Entry, agent: string): Promise<Saved> {
  const text = textOf(entry);
  const context = JSON.parse(text) as JsonObject;
  const draft = drafts.peek()[entry.key];
  try {
    if (entry.breadcrumb !== undefined && draft && draft.version > 0) {
      await client.breadcrumbs.update(entry.breadcrumb, { context }, draft.version);
    } else {
      const sent = draft?.sent ?? newId();
      if (draft) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, sent } };
      const created = { schema_name: DEFINITION_SCHEMA, title: `Agent ${agent}`, tags: ["agent:def"], context };
      await client.breadcrumbs.create(created, sent);
    }
  } catch (error) {
    if (!(error instanceof ApiError) || (error.status !== 412 && error.status !== 404)) throw error;
    await Promise.all([load(), loadDefinition(entry).catch(() => undefined)]);
    return { as: error.status === 412 ? "overtaken" : "deleted" };
  }
  if (textOf(entry) === text) forget(entry.key);
  const { [agent]: _, [entry.key]: __, ...rest } = stored.peek();
  stored.value = rest;
  await load();
  return { as: "saved" };
}

/** Delete the breadcrumb of a definition. */
export async function remove(entry: Entry): Promise<void> {
  if (entry.breadcrumb === undefined) return;
  await client.breadcrumbs.remove(entry.breadcrumb);
  const { [entry.key]: _, ...rest } = stored.peek();
  stored.value = rest;
  forget(entry.key);
  await load();
}
