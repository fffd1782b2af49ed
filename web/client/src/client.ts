/** HTTP client of one server. Failed requests throw an `ApiError`. */

import { Breadcrumbs } from "./breadcrumbs.ts";
import { ApiError, describeFailure, readRefusal, type Failure } from "./errors.ts";
import { Ratings } from "./feedback.ts";
import { Sessions } from "./sessions.ts";

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface ClientOptions {
  /** Address of the server, without a slash at the end. If empty, the origin of the page. */
  server?: string;
  /** API key or token, or a function that returns the current one. Empty if there is none. */
  token?: string | (() => string);
  /** Defaults to the global `fetch`. */
  fetch?: (address: string, init: RequestInit) => Promise<Response>;
  /** Passed to each call of `fetch`. */
  fetchOptions?: Pick<RequestInit, "cache" | "credentials">;
  /** Timeout of a request. Needed because a connection can break without an error. */
  timeoutMs?: number;
  /** Returns the message of an error. */
  describeFailure?: (failure: Failure) => string;
  /** Called when the server refuses the token of a request that is not `quiet`. */
  onUnauthorized?: (error: ApiError, token: string) => void;
}

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  query?: Query;
  /** Sent as JSON. The default method is then POST. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Do not call `onUnauthorized`. */
  quiet?: boolean;
  /** Sent instead of the client's token. */
  token?: string;
  timeoutMs?: number;
}

const TIMEOUT_MS = 30_000;

export class Client {
  readonly server: string;
  readonly breadcrumbs: Breadcrumbs;
  readonly sessions: Sessions;
  readonly feedback: Ratings;
  readonly #options: ClientOptions;

  constructor(options: ClientOptions = {}) {
    this.server = options.server ?? "";
    this.#options = options;
    this.breadcrumbs = new Breadcrumbs(this);
    this.sessions = new Sessions(this);
    this.feedback = new Ratings(this);
  }

  get timeoutMs(): number {
    return this.#options.timeoutMs ?? TIMEOUT_MS;
  }

  /** Send a request and return the body of the reply. */
  async json<T>(path: string, options: RequestOptions = {}): Promise<T> {
    return (await this.request<T>(path, options)).data;
  }

  /** Send a request and return the body of the reply, and the response for its headers. */
  async request<T>(path: string, options: RequestOptions = {}): Promise<{ data: T; response: Response }> {
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(), options.timeoutMs ?? this.timeoutMs);
    const signal = options.signal ? AbortSignal.any([options.signal, deadline.signal]) : deadline.signal;
    try {
      const response = await this.#send(path, { ...options, signal });
      return { data: (await this.#read(response)) as T, response };
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw this.#asApiError(error, deadline.signal.aborted ? "timeout" : "unreachable");
    } finally {
      clearTimeout(timer);
    }
  }

  /** Send a request without a timeout and return the response. Its body is a stream. */
  async open(path: string, options: RequestOptions = {}): Promise<Response> {
    try {
      return await this.#send(path, options);
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw this.#asApiError(error, "unreachable");
    }
  }

  /** Return the error for a reply that does not come from a Breadcrumbs server. */
  malformed(response: Response): ApiError {
    return this.#error({
      kind: "malformed",
      server: this.server,
      status: response.status,
      statusText: response.statusText,
    });
  }

  async #send(path: string, options: RequestOptions): Promise<Response> {
    const token = options.token ?? this.#token();
    const headers = new Headers(options.headers);
    if (token) headers.set("authorization", `Bearer ${token}`);
    const init: RequestInit = {
      ...this.#options.fetchOptions,
      method: options.method ?? (options.body === undefined ? "GET" : "POST"),
      headers,
      signal: options.signal ?? null,
    };
    if (options.body !== undefined) {
      if (!headers.has("content-type")) headers.set("content-type", "application/json");
      init.body = JSON.stringify(options.body);
    }
    const send = this.#options.fetch ?? fetch;
    const response = await send(this.server + withQuery(path, options.query), init);
    if (response.ok) return response;
    const error = this.#error(await readRefusal(this.server, response));
    if (error.status === 401 && !options.quiet) this.#options.onUnauthorized?.(error, token);
    throw error;
  }

  async #read(response: Response): Promise<unknown> {
    if (!response.headers.get("content-type")?.includes("json")) throw this.malformed(response);
    try {
      return await response.json();
    } catch (error) {
      throw error instanceof SyntaxError ? this.malformed(response) : error;
    }
  }

  #token(): string {
    const { token = "" } = this.#options;
    return typeof token === "string" ? token : token();
  }

  #asApiError(error: unknown, kind: "timeout" | "unreachable"): ApiError {
    if (error instanceof ApiError) return error;
    return this.#error({ kind, server: this.server, status: 0, statusText: "" });
  }

  #error(failure: Failure): ApiError {
    return new ApiError((this.#options.describeFailure ?? describeFailure)(failure), failure);
  }
}

/** Add a query to a path. Undefined and empty parameters are omitted. */
export function withQuery(path: string, query: Query = {}): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const one of value) pairs.append(name, one);
    else pairs.append(name, String(value));
  }
  return pairs.size ? `${path}?${pairs}` : path;
}
