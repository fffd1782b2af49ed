/** Contexts, their explanations, and context configs: API calls, types and texts. */

import { ApiError, type Json, type JsonObject } from "@breadcrumbs/client";
import type { Finding, KnownValues } from "../components/json-editor/findings";
import { client } from "./server";

export type Place = "conversation" | "elsewhere" | "shared";

export interface SourceView {
  key: string;
  schema_name?: string;
  any_tags?: string[];
  all_tags?: string[];
  method: "recent" | "latest" | "event_data";
  limit?: number;
  max_tokens?: number;
  /** Limit of all sources with this key together. */
  key_limit?: number;
  /** Size to which a stepped window is cut. */
  keep?: number;
  /** Breadcrumbs of the source in the session up to the trigger, if its window is stepped. */
  count?: number;
  scope?: "current" | "user" | "all";
  shared?: boolean;
  found: number;
  /** The limit left out older breadcrumbs. */
  more?: boolean;
}

/** A breadcrumb in a context, in the order of the prompt. */
export interface Item {
  source: string;
  number?: number;
  place: Place;
  rank: number;
  tokens: number;
  id?: string;
  version?: number;
  schema_name?: string;
  session_id?: string;
  created_at?: string;
  title?: string;
  excerpt?: string;
  matched?: string[];
  is_trigger?: boolean;
  /** Set if `max_tokens` of the source cut the texts: characters kept, and characters of the longest text. */
  cut?: { kept: number; of: number };
  gone?: boolean;
  hidden?: boolean;
}

export type Reason =
  | "over budget"
  | "over limit"
  | "without its question"
  | "duplicate"
  | "excluded"
  | "internal"
  | "secret"
  | "private"
  | "not yet its turn";

export interface LeftOut {
  source: string;
  number?: number;
  reason: Reason;
  tokens?: number;
  id?: string;
  version?: number;
  schema_name?: string;
  created_at?: string;
  title?: string;
  gone?: boolean;
  hidden?: boolean;
}

export interface Part {
  place: Place;
  key: string;
  items: { id: string; creator?: string; content: JsonObject; [more: string]: unknown }[];
}

/** Item at which two contexts differ. Empty if one of them ends there. */
export interface BreakItem {
  source?: string;
  place?: Place;
  id?: string;
  version?: number;
  schema_name?: string;
  title?: string;
  gone?: boolean;
  hidden?: boolean;
}

/** The beginning of a context that repeats the previous one. */
export interface Reuse {
  previous_version: number;
  items: number;
  bytes: number;
  of_bytes: number;
  percent: number;
  broken?: { item: BreakItem; before: BreakItem };
}

export interface Explanation {
  consumer_id: string;
  session_id?: string;
  trigger_id: string;
  as_of: string;
  config: string;
  tokens: number;
  budget: number;
  counted_by: string;
  sources: SourceView[];
  items: Item[];
  left_out: LeftOut[];
  left_out_besides: number;
  /** Schemas that the session has, but that no source reads. */
  unread_schemas?: string[];
  /** Missing for previews and for the first context of a session. */
  reuse?: Reuse;
  notes: string[];
  parts?: Part[];
  /** Whether `parts` is exactly what the model got. Only for stored contexts. */
  parts_as_shown?: boolean;
  context_id?: string;
  version?: number;
  made_at?: string;
  /** Set if there is another page. */
  next_cursor?: string;
}

export interface Consumer {
  consumer_id: string;
  digest: string;
}

export interface Checked {
  ok: boolean;
  configs: Consumer[];
  complaints: Finding[];
  /** Settings of a valid text that have no effect. */
  warnings: Finding[];
}

export interface ConfigFile {
  name: string;
  path?: string;
  text?: string;
  etag: string;
  writable: boolean;
  locked?: string;
  configs: Consumer[];
  complaints: Finding[];
  /** The last valid text, if the file has errors. */
  in_force_text?: string;
  /** The file of context builders in other processes. */
  published?: boolean;
}

export interface OwnConfig {
  id: string;
  version: number;
  updated_at: string;
  title: string;
  consumer_id?: string;
  config: JsonObject;
  /** The text as it was saved, if it still has the same content. */
  text?: string;
  holds: boolean;
  problem?: string;
}

export interface Configs {
  file?: ConfigFile;
  breadcrumbs: OwnConfig[];
  builders: { name: string; etag: string; builders: number; ok: boolean }[];
  in_force: (Consumer & { origin: "file" | "breadcrumb"; id?: string })[];
}

/** A config that came into force. */
export interface ConfigLogEntry {
  digest: string;
  at: string;
  consumer_id: string;
  source: string;
  in_force: boolean;
}

export interface PastConfig {
  digest: string;
  consumer_id: string;
  kept_at: string;
  in_force: boolean;
  valid: boolean;
  config: JsonObject;
}

export interface RolledBack {
  digest: string;
  consumer_id: string;
  origin: "file" | "breadcrumb" | "none";
  id?: string;
  version?: number;
}

export interface PreviewRequest {
  session_id: string;
  config: Json;
  consumer_id?: string;
  trigger_id?: string;
}

export interface TestRequest {
  config: Json;
  consumer_id?: string;
  session_id?: string;
  limit?: number;
  cursor?: string;
}

/** A turn whose prompt a changed config would have changed. */
export interface ChangedTurn {
  session_id: string | null;
  trigger_id: string;
  context_id: string;
  context_version: number;
  /** With the old and with the changed config. */
  tokens: number[];
  added: { source: string; id: string }[];
  removed: { source: string; id: string }[];
}

/** An item that a changed config would have taken from another session or user. */
export interface Crossing {
  trigger_id: string;
  session_id: string | null;
  item_id: string;
  source: string;
  boundary: "session" | "user";
  origin: string;
}

/** Result of a test of a changed config on some past turns. */
export interface TestResult {
  turns: number;
  changed: number;
  skipped: Record<string, number>;
  tokens: { old: number; new: number };
  prompt_bytes: { old: number; new: number };
  repeated_bytes: { old: number; new: number };
  boundary_crossings: number;
  crossings: Crossing[];
  changed_turns: ChangedTurn[];
  total: number;
  next_cursor?: string;
}

export const CONFIG_SCHEMA = "context.config.v1";
/** Pages that a user attaches to a message. */
export const ATTACHMENT_SCHEMA = "page.content.v1";

export const contexts = {
  /** Return a whole explanation. Large ones are read in several pages. */
  async explain(id: string, version?: number, signal?: AbortSignal, parts = true): Promise<Explanation> {
    const page = (cursor?: string) =>
      client.json<Explanation>(`/contexts/${encodeURIComponent(id)}/explain`, {
        query: { version, parts, cursor },
        ...(signal && { signal }),
      });
    const { next_cursor, ...whole } = await page();
    for (let cursor = next_cursor; cursor !== undefined; ) {
      const more = await page(cursor);
      whole.items.push(...more.items);
      whole.left_out.push(...more.left_out);
      if (more.parts) whole.parts = [...(whole.parts ?? []), ...more.parts];
      if (more.parts_as_shown === false) whole.parts_as_shown = false;
      cursor = more.next_cursor;
    }
    return whole;
  },
  preview: (body: PreviewRequest, signal?: AbortSignal) =>
    client.json<Explanation>("/contexts/preview", { body, ...(signal && { signal }) }),
  /** Test a changed config on past turns, one page per call. */
  test: (body: TestRequest, signal?: AbortSignal) =>
    client.json<TestResult>("/contexts/test", { body, ...(signal && { signal }) }),
  /** Return the configs and their ETag, or null if they still have the given ETag. */
  configs: async (etag?: string): Promise<{ configs: Configs; etag: string | undefined } | null> => {
    const headers = etag === undefined ? {} : { "if-none-match": etag };
    try {
      const { data, response } = await client.request<Configs>("/contexts/configs", { headers });
      return { configs: data, etag: response.headers.get("etag") ?? undefined };
    } catch (error) {
      if (error instanceof ApiError && error.status === 304) return null;
      throw error;
    }
  },
  values: () => client.json<KnownValues>("/contexts/config/values"),
  check: (text: string, signal?: AbortSignal) =>
    client.json<Checked>("/contexts/check", { body: { text }, ...(signal && { signal }) }),
  schema: () => client.json<JsonObject>("/contexts/config/schema"),
  /** Return when which config came into force, the newest first. */
  log: async (): Promise<ConfigLogEntry[]> =>
    (await client.json<{ entries: ConfigLogEntry[] }>("/contexts/config/log")).entries,
  /** Return a config that is or was in force. */
  past: (digest: string) => client.json<PastConfig>(`/contexts/config/log/${encodeURIComponent(digest)}`),
  rollBack: (digest: string) => client.json<RolledBack>("/contexts/config/rollback", { body: { digest } }),
  replaceFile: async (text: string, etag?: string): Promise<ConfigFile> => {
    const headers = etag === undefined ? {} : { "if-match": `"${etag}"` };
    return (await client.request<ConfigFile>("/contexts/config", { method: "PUT", body: { text }, headers })).data;
  },
};

// --- Texts ------------------------------------------------------------------------------------------------

export const REASONS: Record<Reason, string> = {
  "over budget": "This item, or a newer item of the conversation, exceeds the token budget.",
  "over limit": "The key has a limit, and newer items fill it.",
  "without its question": "It answers a message that was left out.",
  duplicate: "Another source has already found it.",
  excluded: "The config excludes its schema or one of its tags.",
  internal: "Internal breadcrumbs are never shown to models.",
  secret: "Secret breadcrumbs are never shown to models.",
  private: "Private breadcrumbs are never shown to models.",
  "not yet its turn": "It is newer than the message being answered and gets its own answer.",
};

const SCOPES = { current: "in this session", user: "in every session of this user", all: "in every session" };

/** Describe what a source fetches. */
export function sourceInWords(source: SourceView): string {
  if (source.method === "event_data") return "the breadcrumb being answered";
  const what = [
    source.schema_name,
    source.all_tags?.length ? `with ${source.all_tags.join(" and ")}` : "",
    source.any_tags?.length ? `with ${source.any_tags.join(" or ")}` : "",
  ].filter(Boolean);
  const many = source.method === "recent" ? `the newest ${source.limit ?? ""}`.trim() : "the newest one";
  const where = source.scope ? SCOPES[source.scope] : "";
  const most = source.max_tokens === undefined ? "" : `each cut to ${source.max_tokens} tokens`;
  const together = source.key_limit === undefined ? "" : `at most ${source.key_limit} for this key`;
  const steps = source.keep === undefined ? "" : `cut to ${source.keep} when there are more`;
  const found = [many, "of", ...what, where, source.shared ? "or without a session" : ""].filter(Boolean).join(" ");
  return [found, most, together, steps].filter(Boolean).join(", ");
}

/** Describe the rank of an item among those that a source found: `newest`, `2nd newest`. */
export function rankInWords(rank: number): string {
  if (rank === 0) return "newest";
  const n = rank + 1;
  const teen = n % 100 > 10 && n % 100 < 14;
  return `${n}${teen ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th")} newest`;
}

/** Return the author or the name of an item. */
export function speakerOf(item: { schema_name?: string; title?: string }, creator?: string): string {
  switch (item.schema_name) {
    case "user.message.v1":
      return "User";
    case "agent.response.v1":
      return creator ?? "Agent";
    case "tool.response.v1":
      return "Tool result";
    default:
      return item.title || item.schema_name || "Breadcrumb";
  }
}

const TEXT_KEYS = ["message", "content", "text"];

/** Return the plain text of an item, and its remaining fields. */
export function wordsOf(content: JsonObject): { words: string; rest: JsonObject } {
  const rest = { ...content };
  for (const name of TEXT_KEYS) {
    const value = content[name];
    if (typeof value !== "string") continue;
    delete rest[name];
    // Answers contain the same text under two keys.
    for (const other of TEXT_KEYS) if (rest[other] === value) delete rest[other];
    return { words: value, rest };
  }
  const names = Object.keys(content);
  const only = names.length === 1 ? content[names[0]!] : undefined;
  return typeof only === "string" ? { words: only, rest: {} } : { words: "", rest };
}

// --- Token budget -------------------------------------------------------------------------------------------

export interface Share {
  name: string;
  place: Place;
  tokens: number;
}

/** Return the tokens of each part of the prompt, in its order. */
export function sharesOf(items: readonly Item[]): Share[] {
  const found = new Map<string, Share>();
  for (const item of items) {
    const inConversation = item.schema_name === ATTACHMENT_SCHEMA ? "attachments" : "conversation";
    const name = item.place === "conversation" ? inConversation : item.source;
    const key = `${item.place} ${name}`;
    const share = found.get(key) ?? { name, place: item.place, tokens: 0 };
    share.tokens += item.tokens;
    found.set(key, share);
  }
  return [...found.values()];
}

// --- Comparison of two contexts -----------------------------------------------------------------------------

export type Change = "in" | "out" | "changed" | "moved" | "same";

export interface Line {
  change: Change;
  item: Item;
  /** The item before the change. */
  before?: Item;
  /** Why an item is removed. */
  reason?: Reason | "not found";
}

/** Compare two contexts. Return added, removed, changed and unchanged items in the order of the prompt. */
export function difference(before: Explanation, after: Explanation): Line[] {
  const old = before.items.filter((item) => item.id !== undefined);
  const now = after.items.filter((item) => item.id !== undefined);
  const kept = commonSubsequence(
    old.map((item) => item.id!),
    now.map((item) => item.id!),
  );
  const wasThere = new Map(old.map((item) => [item.id!, item]));
  const isThere = new Set(now.map((item) => item.id!));
  const reasons = new Map(
    after.left_out.filter((out) => out.reason !== "duplicate").map((out) => [out.id, out.reason]),
  );
  const lines: Line[] = [];
  let at = 0;
  const pass = (until: number) => {
    for (; at < until; at++) {
      const item = old[at]!;
      if (isThere.has(item.id!)) continue; // moved: listed at its new position
      lines.push({ change: "out", item, reason: reasons.get(item.id!) ?? "not found" });
    }
  };
  for (const [place, item] of now.entries()) {
    const was = wasThere.get(item.id!);
    const from = kept.get(place);
    if (from !== undefined) {
      pass(from);
      at = from + 1;
    }
    if (was === undefined) lines.push({ change: "in", item });
    else if (from === undefined || was.place !== item.place || was.source !== item.source)
      lines.push({ change: "moved", item, before: was });
    else if (was.tokens !== item.tokens || was.version !== item.version)
      lines.push({ change: "changed", item, before: was });
    else lines.push({ change: "same", item });
  }
  pass(old.length);
  return lines;
}

/** Return the longest common subsequence, as index in the new list → index in the old list. */
function commonSubsequence(old: readonly string[], now: readonly string[]): Map<number, number> {
  const places = new Map(old.map((id, place) => [id, place]));
  const common = now.flatMap((id, place) => {
    const was = places.get(id);
    return was === undefined ? [] : [{ place, was, previous: -1 }];
  });
  const ends: number[] = []; // for each length: the last index of the subsequence with the smallest `was`
  for (const [index, one] of common.entries()) {
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (common[ends[middle]!]!.was < one.was) low = middle + 1;
      else high = middle;
    }
    one.previous = low ? ends[low - 1]! : -1;
    ends[low] = index;
  }
  const kept = new Map<number, number>();
  for (let index = ends.at(-1) ?? -1; index >= 0; index = common[index]!.previous) {
    kept.set(common[index]!.place, common[index]!.was);
  }
  return kept;
}

// --- Formatting -------------------------------------------------------------------------------------------------

const WIDTH = 96;

/** Format JSON. A value that fits on one line stays on one line. */
export function formatJson(value: Json, indent = ""): string {
  const flat = onOneLine(value);
  if (typeof value !== "object" || value === null) return flat;
  const inner = `${indent}  `;
  const entries = Array.isArray(value)
    ? value.map((one) => formatJson(one, inner))
    : Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${formatJson(one, inner)}`);
  // The top level always uses several lines.
  if (!entries.length || (indent && indent.length + flat.length <= WIDTH)) return flat;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${inner}${entries.join(`,\n${inner}`)}\n${indent}${close}`;
}

function onOneLine(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(onOneLine).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${onOneLine(one)}`);
  return `{${members.join(", ")}}`;
}
