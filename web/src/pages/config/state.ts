/** The configs that there are, and what somebody has typed but not saved. It outlives the page's leaving. */

import { batch, computed, effect, signal } from "@preact/signals";
import { ApiError, messageOf, newId, type Json, type JsonObject } from "@breadcrumbs/client";
import { logins, owner } from "../../lib/credential";
import { client } from "../../lib/server";
import { Stream } from "../../lib/stream";
import {
  CONFIG_SCHEMA,
  contexts,
  laidOut,
  type Complaint,
  type Configs,
  type Consumer,
} from "../../lib/contexts";

/** Something that can be opened in the editor. */
export interface Entry {
  /** In the address of the page. */
  key: string;
  kind: "file" | "built-in" | "breadcrumb" | "new";
  name: string;
  /** What is saved. */
  text: string;
  /** Names the state of what is saved: an edit was made on it. */
  tag: string;
  consumers: string[];
  /** Of its consumers, those for which it is in force. */
  holds: string[];
  complaints: readonly Complaint[];
  /** Why it cannot be used, where no line can be named. */
  problem?: string;
  path?: string;
  /** Why the file cannot be written. */
  locked?: string;
  /** Of a new one: somebody has deleted what this was an edit of. */
  deleted?: boolean;
}

interface Draft {
  text: string;
  /** The state that the edit was made on. */
  tag: string;
  /** The idempotency key with which this text was sent: whether it arrived may not be known. */
  sent?: string;
}

export const configs = signal<Configs | null>(null);
export const problem = signal("");
export const drafts = signal<Readonly<Record<string, Draft>>>({});
/** Entries that somebody else has saved since the edit on them began. */
export const overtaken = computed(() =>
  entries.value.filter((entry) => {
    const draft = drafts.value[entry.key];
    return draft !== undefined && entry.kind !== "new" && draft.tag !== entry.tag;
  }),
);

const TEMPLATE: Json = {
  consumer_id: "my-agent",
  update_triggers: [{ schema_name: "user.message.v1" }],
  sources: [
    { key: "conversation", schema_name: "user.message.v1", fetch: { method: "recent", limit: 10 } },
    { key: "conversation", schema_name: "agent.response.v1", fetch: { method: "recent", limit: 10 } },
  ],
  formatting: { max_tokens: 4000 },
};

export const entries = computed<Entry[]>(() => {
  const all = configs.value;
  if (!all) return [];
  const found: Entry[] = [];
  const heldBy = (id: string | undefined) =>
    all.in_force.filter((one) => one.id === id).map((one) => one.consumer_id);
  const fromFile = all.in_force.filter((one) => one.origin === "file").map((one) => one.consumer_id);
  const { file } = all;
  if (file) {
    const common = { tag: file.etag, complaints: file.complaints };
    const whole = file.text ?? "";
    const one = {
      ...common,
      name: file.name,
      text: whole,
      consumers: file.configs.map((config) => config.consumer_id),
      holds: fromFile,
    };
    if (file.writable) {
      found.push({ ...one, key: "file", kind: "file", ...(file.path && { path: file.path }) });
    } else {
      // What takes the place of a config is one breadcrumb for one consumer: each is edited by itself.
      const locked = file.locked ?? "";
      const several = parsed(whole);
      if (!Array.isArray(several)) found.push({ ...one, key: "file", kind: "built-in", locked });
      else {
        for (const config of several) {
          const consumer = consumerOf(config) ?? "";
          found.push({
            ...common,
            key: `file:${consumer}`,
            kind: "built-in",
            locked,
            name: file.name,
            text: `${laidOut(config)}\n`,
            consumers: [consumer],
            holds: fromFile.filter((one) => one === consumer),
          });
        }
      }
    }
  }
  for (const own of all.breadcrumbs) {
    found.push({
      key: own.id,
      kind: "breadcrumb",
      name: own.consumer_id ?? (own.title || "Config"),
      text: `${laidOut(own.config)}\n`,
      tag: String(own.version),
      consumers: own.consumer_id === undefined ? [] : [own.consumer_id],
      holds: heldBy(own.id),
      complaints: [],
      ...(own.problem !== undefined && { problem: own.problem }),
    });
  }
  const unsaved = { kind: "new" as const, text: "", tag: "", consumers: [], holds: [], complaints: [] };
  for (const [key, draft] of Object.entries(drafts.value)) {
    if (key === "new") found.push({ ...unsaved, key, name: "New config" });
    else if (!found.some((entry) => entry.key === key)) {
      const name = consumerOf(parsed(draft.text) ?? null) ?? "Config";
      found.push({ ...unsaved, key, name, deleted: true });
    }
  }
  return found;
});

export function textOf(entry: Entry): string {
  return drafts.value[entry.key]?.text ?? entry.text;
}

export function isEdited(entry: Entry): boolean {
  return drafts.value[entry.key] !== undefined;
}

export function edit(entry: Entry, text: string): void {
  const before = drafts.peek();
  if (text === entry.text && entry.kind !== "new") return forget(entry.key);
  drafts.value = { ...before, [entry.key]: { text, tag: before[entry.key]?.tag ?? entry.tag } };
}

export function forget(key: string): void {
  const { [key]: _, ...rest } = drafts.peek();
  drafts.value = rest;
}

/** Keep the edit, as one of what is saved now. */
export function rebase(entry: Entry): void {
  const draft = drafts.peek()[entry.key];
  if (draft) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, tag: entry.tag } };
}

/** What was typed is saved. What was typed while that happened is an edit of what is saved now. */
function settle(entry: Entry, typed: string, key: string, tag: string): void {
  const now = drafts.peek()[entry.key]?.text;
  const { [entry.key]: _, ...rest } = drafts.peek();
  drafts.value = now === undefined || now === typed ? rest : { ...rest, [key]: { text: now, tag } };
}

export function startNew(text?: string): void {
  if (drafts.peek()["new"] === undefined || text !== undefined) {
    drafts.value = { ...drafts.peek(), new: { text: text ?? `${laidOut(TEMPLATE)}\n`, tag: "" } };
  }
}

// Answers may come in another order than they were asked for.
let asked = 0;
let landed = 0;

export async function load(): Promise<void> {
  const number = ++asked;
  try {
    const found = await contexts.configs();
    if (number < landed) return; // something newer is known
    landed = number;
    batch(() => {
      configs.value = found;
      problem.value = "";
    });
  } catch (error) {
    if (number >= landed) problem.value = messageOf(error);
  }
}

// What was read with another credential may be somebody else's, and so may what was typed.
let former = owner.peek();
logins.subscribe((count) => {
  if (count === 0) return;
  landed = ++asked;
  configs.value = null;
  if (former && former !== owner.peek()) drafts.value = {};
  former = owner.peek();
});

/** Follow what others change. Gives what ends it. */
export function follow(): () => void {
  void load();
  const stream = new Stream(
    { schema_name: CONFIG_SCHEMA },
    { onEvent: () => void load(), onGap: () => void load(), onOpen: (again) => void (again && load()) },
  );
  // A file that was edited by hand makes no event: look when somebody comes back to this window.
  const look = () => void (document.hidden || load());
  document.addEventListener("visibilitychange", look);
  window.addEventListener("focus", look);
  return () => {
    stream.close();
    document.removeEventListener("visibilitychange", look);
    window.removeEventListener("focus", look);
  };
}

// Whoever closes the window with unsaved edits is asked.
effect(() => {
  window.onbeforeunload = Object.keys(drafts.value).length ? (event) => event.preventDefault() : null;
});

// --- Saving -----------------------------------------------------------------------------------------------

export type Saved =
  | { as: "file" | "breadcrumb"; key: string; consumers: string[] }
  | { as: "refused"; complaints: readonly Complaint[] }
  | { as: "overtaken" }
  | { as: "deleted" };

/** Save the edit of an entry. What is wrong with it comes back with its lines, and nothing is changed. */
export async function save(entry: Entry): Promise<Saved> {
  const draft = drafts.peek()[entry.key];
  const text = draft?.text ?? entry.text;
  try {
    if (entry.kind === "file") {
      const file = await contexts.replaceFile(text, draft?.tag ?? entry.tag);
      const all = configs.peek();
      landed = ++asked; // what is being read may be from before
      batch(() => {
        if (all) configs.value = { ...all, file };
        settle(entry, text, entry.key, file.etag);
      });
      void load();
      return { as: "file", key: entry.key, consumers: file.configs.map((one) => one.consumer_id) };
    }
    const checked = await checkOne(text);
    if (checked.complaints.length) return { as: "refused", complaints: checked.complaints };
    const { $schema: _, ...context } = JSON.parse(text) as JsonObject;
    const title = `Context config of ${consumerOf(context)}`;
    const written = await (entry.kind === "breadcrumb"
      ? client.breadcrumbs.update(entry.key, { context }, Number(draft?.tag ?? entry.tag))
      : client.breadcrumbs.create(
          { schema_name: CONFIG_SCHEMA, title, tags: ["context:config"], context },
          keyOf(entry, text),
        ));
    await load();
    settle(entry, text, written.id, String(written.version));
    return { as: "breadcrumb", key: written.id, consumers: checked.configs.map((one) => one.consumer_id) };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 412) {
      await load();
      return { as: "overtaken" };
    }
    if (error.status === 404 && entry.kind === "breadcrumb") {
      await load();
      return { as: "deleted" };
    }
    const lines = error.problem?.errors?.filter((one) => typeof one["line"] === "number");
    if (error.status === 422 && lines?.length) {
      return { as: "refused", complaints: lines as unknown as Complaint[] };
    }
    throw error;
  }
}

/** The same for the same text: what is saved again because no answer came is there once. */
function keyOf(entry: Entry, text: string): string {
  const draft = drafts.peek()[entry.key];
  const sent = draft?.sent ?? newId();
  if (draft?.text === text) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, sent } };
  return sent;
}

/** What is wrong with a text that is to be one config: a breadcrumb holds one. */
export async function checkOne(
  text: string,
  signal?: AbortSignal,
): Promise<{ configs: Consumer[]; complaints: readonly Complaint[] }> {
  const checked = await contexts.check(text, signal);
  if (checked.ok && Array.isArray(parsed(text))) {
    const message = "a breadcrumb holds one config: write { … } without the list around it";
    return { configs: [], complaints: [{ line: 1, column: 1, where: "", message }] };
  }
  return checked;
}

export function parsed(text: string): Json | undefined {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return undefined;
  }
}

function consumerOf(config: Json): string | undefined {
  const found = typeof config === "object" && config && !Array.isArray(config) ? config["consumer_id"] : undefined;
  return typeof found === "string" ? found : undefined;
}
