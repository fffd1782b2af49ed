/** Context configs and unsaved edits. The state survives leaving the page. */

import { batch, computed, effect, signal } from "@preact/signals";
import { ApiError, messageOf, newId, type Json, type JsonObject } from "@breadcrumbs/client";
import type { Finding } from "../../components/json-editor/findings";
import { logins, owner } from "../../lib/credential";
import { client } from "../../lib/server";
import { Stream } from "../../lib/stream";
import {
  CONFIG_SCHEMA,
  contexts,
  formatJson,
  type Configs,
  type Consumer,
} from "../../lib/contexts";

/** A config that can be opened in the editor. */
export interface Entry {
  /** Part of the address of the page. */
  key: string;
  kind: "file" | "built-in" | "breadcrumb" | "new";
  name: string;
  /** The saved text. */
  text: string;
  /** Version of the saved text: an ETag, or the version of a breadcrumb. */
  tag: string;
  consumers: string[];
  /** The consumers for which it is active. */
  activeFor: string[];
  complaints: readonly Finding[];
  /** Reason why it is not valid, if there is no line number. */
  problem?: string;
  path?: string;
  /** Reason why the file is read-only. */
  locked?: string;
  /** The last valid text, which is active, if the file has errors. */
  activeText?: string;
  /** Whether the edited config was deleted. Its edits are then a new config. */
  deleted?: boolean;
}

interface Draft {
  text: string;
  /** Version of the text that the edit is based on. */
  tag: string;
  /** Idempotency key of a request with this text whose outcome may be unknown. */
  sent?: string;
}

export const configs = signal<Configs | null>(null);
export const problem = signal("");
export const drafts = signal<Readonly<Record<string, Draft>>>({});
/** Edited entries that another user has saved since the edit started. */
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
    { key: "conversation", schema_name: "user.message.v1" },
    { key: "conversation", schema_name: "agent.response.v1" },
  ],
  limits: [{ key: "conversation", limit: 48, keep: 20 }],
  formatting: { max_tokens: 16000, keep_tokens: 4000 },
};

export const entries = computed<Entry[]>(() => {
  const all = configs.value;
  if (!all) return [];
  const found: Entry[] = [];
  const activeConsumers = (id: string | undefined) =>
    all.in_force.filter((one) => one.id === id).map((one) => one.consumer_id);
  const fromFile = all.in_force.filter((one) => one.origin === "file").map((one) => one.consumer_id);
  const { file } = all;
  if (file) {
    const common = {
      tag: file.etag,
      complaints: file.complaints,
      ...(file.in_force_text !== undefined && { activeText: file.in_force_text }),
    };
    const whole = file.text ?? "";
    const one = {
      ...common,
      name: file.name,
      text: whole,
      consumers: file.configs.map((config) => config.consumer_id),
      activeFor: fromFile,
    };
    if (file.writable) {
      found.push({ ...one, key: "file", kind: "file", ...(file.path && { path: file.path }) });
    } else {
      // A breadcrumb replaces the config of one consumer, so each config of the file is a separate entry.
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
            text: `${formatJson(config)}\n`,
            consumers: [consumer],
            activeFor: fromFile.filter((one) => one === consumer),
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
      text: own.text ?? `${formatJson(own.config)}\n`,
      tag: String(own.version),
      consumers: own.consumer_id === undefined ? [] : [own.consumer_id],
      activeFor: activeConsumers(own.id),
      complaints: [],
      ...(own.problem !== undefined && { problem: own.problem }),
    });
  }
  const unsaved = { kind: "new" as const, text: "", tag: "", consumers: [], activeFor: [], complaints: [] };
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

/** Base the edit on the version that is saved now, so that saving overwrites it. */
export function rebase(entry: Entry): void {
  const draft = drafts.peek()[entry.key];
  if (draft) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, tag: entry.tag } };
}

/** Remove a draft that was saved. Text that was typed during the save becomes a new edit. */
function settle(entry: Entry, typed: string, key: string, tag: string): void {
  const now = drafts.peek()[entry.key]?.text;
  const { [entry.key]: _, ...rest } = drafts.peek();
  drafts.value = now === undefined || now === typed ? rest : { ...rest, [key]: { text: now, tag } };
}

export function startNew(text?: string): void {
  if (drafts.peek()["new"] === undefined || text !== undefined) {
    drafts.value = { ...drafts.peek(), new: { text: text ?? `${formatJson(TEMPLATE)}\n`, tag: "" } };
  }
}

/** ETag of `configs`. Undefined after a local change, so that the next load reads everything. */
let etag: string | undefined;

// Replies can arrive out of order. A reply that is older than the last one is ignored.
let requested = 0;
let applied = 0;

export async function load(): Promise<void> {
  const number = ++requested;
  try {
    const found = await contexts.configs(configs.peek() === null ? undefined : etag);
    if (number < applied) return; // a newer reply has arrived
    applied = number;
    batch(() => {
      if (found) {
        configs.value = found.configs;
        etag = found.etag;
      }
      problem.value = "";
    });
  } catch (error) {
    if (number >= applied) problem.value = messageOf(error);
  }
}

// After a login with another credential, configs and edits may belong to another owner.
let former = owner.peek();
logins.subscribe((count) => {
  if (count === 0) return;
  applied = ++requested;
  configs.value = null;
  if (former && former !== owner.peek()) drafts.value = {};
  former = owner.peek();
});

const POLL_MS = 2000;

/** Load the configs and keep them up to date. Return a function that stops this. */
export function follow(): () => void {
  void load();
  const stream = new Stream(
    { schema_name: CONFIG_SCHEMA },
    { onEvent: () => void load(), onGap: () => void load(), onOpen: (again) => void (again && load()) },
  );
  // Editing the file causes no event, so ask regularly while the page is visible. Without a change, the reply is 304.
  const look = () => void (document.hidden || load());
  const timer = setInterval(look, POLL_MS);
  document.addEventListener("visibilitychange", look);
  window.addEventListener("focus", look);
  return () => {
    stream.close();
    clearInterval(timer);
    document.removeEventListener("visibilitychange", look);
    window.removeEventListener("focus", look);
  };
}

// Ask before the window is closed with unsaved edits.
effect(() => {
  window.onbeforeunload = Object.keys(drafts.value).length ? (event) => event.preventDefault() : null;
});

// --- Saving -----------------------------------------------------------------------------------------------

export type Saved =
  | { as: "file" | "breadcrumb"; key: string; consumers: string[] }
  | { as: "refused"; complaints: readonly Finding[] }
  | { as: "overtaken" }
  | { as: "deleted" };

/** Save the edit of an entry. If it is not valid, return the errors and save nothing. */
export async function save(entry: Entry): Promise<Saved> {
  const draft = drafts.peek()[entry.key];
  const text = draft?.text ?? entry.text;
  try {
    if (entry.kind === "file") {
      const file = await contexts.replaceFile(text, draft?.tag ?? entry.tag);
      const all = configs.peek();
      applied = ++requested; // ignore loads in progress, which may have read the old file
      batch(() => {
        if (all) configs.value = { ...all, file };
        etag = undefined;
        settle(entry, text, entry.key, file.etag);
      });
      void load();
      return { as: "file", key: entry.key, consumers: file.configs.map((one) => one.consumer_id) };
    }
    const checked = await checkOne(text);
    if (checked.complaints.length) return { as: "refused", complaints: checked.complaints };
    // `$text` keeps the layout of the text. The server ignores it.
    const context = { ...(JSON.parse(text) as JsonObject), $text: text };
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
      return { as: "refused", complaints: lines as unknown as Finding[] };
    }
    throw error;
  }
}

/** Return the idempotency key of a text. A retry after a lost reply uses the same key and writes only once. */
function keyOf(entry: Entry, text: string): string {
  const draft = drafts.peek()[entry.key];
  const sent = draft?.sent ?? newId();
  if (draft?.text === text) drafts.value = { ...drafts.peek(), [entry.key]: { ...draft, sent } };
  return sent;
}

/** Check the text of a breadcrumb, which must contain exactly one config. */
export async function checkOne(
  text: string,
  signal?: AbortSignal,
): Promise<{ configs: Consumer[]; complaints: readonly Finding[]; warnings: readonly Finding[] }> {
  const checked = await contexts.check(text, signal);
  if (checked.ok && Array.isArray(parsed(text))) {
    const message = "a breadcrumb contains one config: write { … } without the surrounding list";
    return { configs: [], complaints: [{ line: 1, column: 1, where: "", message }], warnings: [] };
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

/** Text about running context builders that use another config file, or empty. */
export const differingBuilders = computed(() => {
  const all = configs.value;
  const files = new Set(all?.builders.map((one) => one.etag));
  if (!all || files.size === 0) return "";
  if (files.size > 1) return "The context builders use different config files.";
  const { file } = all;
  const differs = file && !file.published && !file.complaints.length && !files.has(file.etag);
  return differs && all.builders.every((one) => one.ok) ? "The context builders use another config file." : "";
});

function consumerOf(config: Json): string | undefined {
  const found = typeof config === "object" && config && !Array.isArray(config) ? config["consumer_id"] : undefined;
  return typeof found === "string" ? found : undefined;
}
