/** The server, as functions. What goes wrong is an `ApiError` whose `message` can be shown to people. */

import { batch, signal } from "@preact/signals";
import { sentence } from "./format";

// --- Who we are -------------------------------------------------------------------------------------------

const KEPT = "crumb.credential";
const KEPT_OWNER = "crumb.owner";

/** An API key or a token. Kept for this tab only, and sent with every request. Empty: none. */
export const credential = signal(kept(KEPT));

/** Whose credential it is, where that is known. */
export const owner = signal(kept(KEPT_OWNER));

/** Counts credentials: what is on the screen was read with the one before, and may be somebody else's. */
export const logins = signal(0);

/** The server asked for a credential; the shell shows a dialog while this is set. */
export const credentialWanted = signal<string | null>(null);

function kept(name: string): string {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function keep(name: string, text: string): void {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch {
    // Storage may be forbidden: then it lasts until the page is loaded again.
  }
}

export function useCredential(text: string, whose: string): void {
  batch(() => {
    owner.value = whose;
    credential.value = text;
    credentialWanted.value = null;
    logins.value += 1;
  });
  keep(KEPT, text);
  keep(KEPT_OWNER, whose);
}

/** Whose credential this is; empty where the server does not say. */
export async function ownerOf(given: string): Promise<string> {
  const claims = claimsOf(given);
  if (claims) return typeof claims["owner_id"] === "string" ? claims["owner_id"] : "";
  try {
    return (await newToken({ ttl_sec: 1 }, given)).owner_id;
  } catch {
    return "";
  }
}

/**
 * What may stand in the address of an event stream, which cannot send headers: a token that can read and no more,
 * for an hour, never the API key itself, because addresses end up in logs.
 */
export async function streamToken(): Promise<string> {
  const given = credential.value;
  if (!given || claimsOf(given)) return given; // a token gets no other token
  try {
    return (await newToken({ roles: ["subscriber"], ttl_sec: STREAM_TOKEN_SECONDS }, given)).token;
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 403)) throw error;
    return (await newToken({ ttl_sec: STREAM_TOKEN_SECONDS }, given)).token; // a key that has other roles
  }
}

const STREAM_TOKEN_SECONDS = 3600;

function newToken(wanted: { roles?: string[]; ttl_sec: number }, given: string) {
  return api<{ token: string; owner_id: string }>("/auth/token", { body: wanted, credential: given });
}

/** What a token says about itself; null for an API key. */
function claimsOf(given: string): JsonObject | null {
  const middle = /^[\w-]+\.([\w-]+)\.[\w-]+$/.exec(given)?.[1];
  if (middle === undefined) return null;
  try {
    return JSON.parse(atob(middle.replaceAll("-", "+").replaceAll("_", "/"))) as JsonObject;
  } catch {
    return null;
  }
}

// --- Requests ---------------------------------------------------------------------------------------------

/** An RFC 9457 problem document. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail?: string;
  errors?: { where?: string; message?: string; [more: string]: unknown }[];
  current_version?: number;
  [more: string]: unknown;
}

export class ApiError extends Error {
  /** 0: the server was not reached. */
  readonly status: number;
  readonly problem: Problem | undefined;
  /** Seconds that the server asked to wait. */
  readonly retryAfter: number | undefined;

  constructor(message: string, status: number, problem?: Problem, retryAfter?: number) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.problem = problem;
    this.retryAfter = retryAfter;
  }

  /** The same request may well work in a moment. */
  get passing(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export interface Options {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  query?: Record<string, string | number | boolean | readonly string[] | undefined>;
  /** Sent as JSON; makes it a POST unless `method` says otherwise. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Do not ask for a credential when the server wants one. */
  quiet?: boolean;
  /** Instead of the one in use. */
  credential?: string;
  /** Milliseconds until it is given up: a connection may die without a word. */
  limit?: number;
}

const LIMIT = 30_000;

export async function api<T>(path: string, options: Options = {}): Promise<T> {
  return (await request<T>(path, options)).data;
}

/** The same, with the response: for its headers. */
export async function request<T>(
  path: string,
  options: Options = {},
): Promise<{ data: T; response: Response }> {
  const headers = new Headers(options.headers);
  const sent = options.credential ?? credential.value;
  if (sent) headers.set("authorization", `Bearer ${sent}`);
  const init: RequestInit = { method: options.method ?? (options.body === undefined ? "GET" : "POST"), headers };
  if (options.body !== undefined) {
    if (!headers.has("content-type")) headers.set("content-type", "application/json");
    init.body = JSON.stringify(options.body);
  }
  const late = new AbortController();
  init.signal = options.signal ? AbortSignal.any([options.signal, late.signal]) : late.signal;
  const timer = setTimeout(() => late.abort(), options.limit ?? LIMIT);
  try {
    const response = await fetch(withQuery(path, options.query), init);
    if (!response.ok) throw await errorOf(response);
    const type = response.headers.get("content-type") ?? "";
    const data = (type.includes("json") ? await response.json() : await response.text()) as T;
    return { data, response };
  } catch (error) {
    if (options.signal?.aborted) throw error;
    if (error instanceof ApiError) {
      // Not for one that somebody has replaced while this was on its way.
      if (error.status === 401 && !options.quiet && sent === credential.value) credentialWanted.value = error.message;
      throw error;
    }
    const why = late.signal.aborted ? "The server does not answer." : "The server cannot be reached.";
    throw new ApiError(why, 0);
  } finally {
    clearTimeout(timer);
  }
}

export function withQuery(path: string, query: Options["query"] = {}): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const one of value) pairs.append(name, one);
    else pairs.append(name, String(value));
  }
  return pairs.size ? `${path}?${pairs}` : path;
}

async function errorOf(response: Response): Promise<ApiError> {
  const after = Number(response.headers.get("retry-after")) || undefined;
  try {
    const problem = (await response.json()) as Problem;
    const text = problem.detail ?? problem.title ?? `The server answered ${response.status}.`;
    return new ApiError(sentence(text), response.status, problem, after);
  } catch {
    return new ApiError(`The server answered ${response.status}.`, response.status, undefined, after);
  }
}

/** What can be shown of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// --- Breadcrumbs ------------------------------------------------------------------------------------------

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export interface Breadcrumb {
  id: string;
  title?: string;
  schema_name?: string;
  tags: string[];
  version: number;
  created_at: string;
  updated_at: string;
  context?: JsonObject;
  [more: string]: unknown;
}

export interface NewBreadcrumb {
  schema_name: string;
  title?: string;
  tags?: string[];
  context?: JsonObject;
  [more: string]: unknown;
}

export interface BreadcrumbQuery {
  [name: string]: string | number | boolean | readonly string[] | undefined;
  tag?: string;
  any_tags?: readonly string[];
  all_tags?: readonly string[];
  schema_name?: string;
  session_id?: string;
  updated_since?: string;
  limit?: number;
  cursor?: string;
  sort?: "created_at" | "-created_at" | "updated_at" | "-updated_at";
  include_context?: boolean;
}

/** Where the next page begins, from the Link header. */
function nextCursor(response: Response): string | undefined {
  const next = /[?&]cursor=([^&>]+)/.exec(response.headers.get("link") ?? "")?.[1];
  return next === undefined ? undefined : decodeURIComponent(next);
}

export const breadcrumbs = {
  async list(query: BreadcrumbQuery, signal?: AbortSignal): Promise<{ items: Breadcrumb[]; next?: string }> {
    const { data, response } = await request<Breadcrumb[]>("/breadcrumbs", {
      query,
      ...(signal && { signal }),
    });
    const next = nextCursor(response);
    return next === undefined ? { items: data } : { items: data, next };
  },
  full: (id: string, signal?: AbortSignal) =>
    api<Breadcrumb>(`/breadcrumbs/${encodeURIComponent(id)}/full`, { ...(signal && { signal }) }),
  /** All versions. A long history comes in several pages. */
  async history(id: string, signal?: AbortSignal): Promise<Omit<Breadcrumb, "id" | "created_at">[]> {
    const found: Omit<Breadcrumb, "id" | "created_at">[] = [];
    let cursor: string | undefined;
    do {
      const { data, response } = await request<Omit<Breadcrumb, "id" | "created_at">[]>(
        `/breadcrumbs/${encodeURIComponent(id)}/history`,
        { query: { cursor }, ...(signal && { signal }) },
      );
      found.push(...data);
      cursor = nextCursor(response);
    } while (cursor !== undefined);
    return found;
  },
  create: (crumb: NewBreadcrumb, idempotencyKey = newId()) =>
    api<{ id: string; version: number; created_at: string; updated_at: string }>("/breadcrumbs", {
      body: crumb,
      headers: { "idempotency-key": idempotencyKey },
    }),
  update: (id: string, changes: Partial<NewBreadcrumb>, version?: number) =>
    api<{ id: string; version: number; updated_at: string }>(`/breadcrumbs/${encodeURIComponent(id)}`, {
      method: "PATCH",
      body: changes,
      headers: version === undefined ? {} : { "if-match": String(version) },
    }),
  remove: (id: string) =>
    api<{ ok: true }>(`/breadcrumbs/${encodeURIComponent(id)}`, { method: "DELETE" }),
};

// --- Sessions ---------------------------------------------------------------------------------------------

export interface Session {
  id: string;
  title?: string;
  user_id?: string;
  version: number;
  created_at: string;
  last_active_at: string;
  returning: boolean;
  active: boolean;
  counts: { messages: number; answers: number; errors: number; breadcrumbs: number };
  state?: JsonObject;
  summary?: string;
}

export interface Message {
  id: string;
  role: "user" | "assistant" | "error" | "tool";
  /** Empty where it is secret for us. */
  text: string;
  schema_name: string;
  created_at: string;
  updated_at: string;
  version: number;
  tags: string[];
  trigger_id?: string;
  agent_id?: string;
  tool?: JsonObject;
  /** Empty where it is secret for us. */
  context: JsonObject;
}

/** As the server sends it: what is secret is missing. */
type SentMessage = Omit<Message, "text" | "context"> & Partial<Pick<Message, "text" | "context">>;

const readable = (message: SentMessage): Message => ({ text: "", context: {}, ...message });

export interface MessagePage {
  messages: Message[];
  has_more: boolean;
  before?: string;
  after?: string;
}

const at = (id: string, more = "") => `/sessions/${encodeURIComponent(id)}${more}`;

export const sessions = {
  list: (query: { limit?: number; cursor?: string; user_id?: string } = {}, signal?: AbortSignal) =>
    api<{ sessions: Session[]; has_more: boolean; next_cursor?: string }>("/sessions", {
      query,
      ...(signal && { signal }),
    }),
  create: (session: { id?: string; title?: string; state?: JsonObject } = {}, key = newId()) =>
    api<Session>("/sessions", { body: session, headers: { "idempotency-key": key } }),
  read: (id: string, signal?: AbortSignal) => api<Session>(at(id), { ...(signal && { signal }) }),
  change: (id: string, changes: { title?: string; state?: JsonObject; active?: boolean }) =>
    api<Session>(at(id), { method: "PATCH", body: changes }),
  // All that is in it goes one after the other, which may take its time.
  remove: (id: string) => api<{ ok: true; deleted: number }>(at(id), { method: "DELETE", limit: 10 * LIMIT }),
  /** Say something in a session, which begins with it if it is not there. */
  async say(id: string, message: string, key: string, context?: JsonObject): Promise<Message> {
    const said = await api<{ message: SentMessage }>(at(id, "/messages"), {
      body: context ? { message, context } : { message },
      headers: { "idempotency-key": key },
    });
    return readable(said.message);
  },
  async messages(
    id: string,
    query: { limit?: number; before?: string; after?: string } = {},
    signal?: AbortSignal,
  ): Promise<MessagePage> {
    const page = await api<Omit<MessagePage, "messages"> & { messages: SentMessage[] }>(at(id, "/messages"), {
      query,
      ...(signal && { signal }),
    });
    return { ...page, messages: page.messages.map(readable) };
  },
  fork: (id: string, body: { message_id?: string; id?: string; title?: string } = {}) =>
    api<Session>(at(id, "/fork"), { body }),
  retry: (id: string, messageId?: string) =>
    api<{ ok: true; message_id: string }>(at(id, "/retry"), {
      body: messageId === undefined ? {} : { message_id: messageId },
    }),
  /** Stop what is being answered in this session. */
  cancel: (id: string, key = newId()) =>
    breadcrumbs.create(
      { schema_name: "agent.cancel.v1", title: "Cancel", tags: ["agent:cancel", `session:${id}`], context: {} },
      key,
    ),
};

/** A random id that sorts after nothing in particular: for keys that must be unique. */
export function newId(): string {
  // Not in pages that came over plain HTTP from another machine, hence the second way.
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
