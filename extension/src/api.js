// The server's HTTP interface, as far as a chat needs it.

const TIMEOUT_MS = 20_000;
const SESSIONS_PER_PAGE = 30;
const MESSAGES_SCANNED = 500;

/**
 * A breadcrumb as a client sends it.
 * @typedef {{schema_name: string, title: string, tags: string[], context: Record<string, any>}} NewCrumb
 */
/**
 * A breadcrumb as the server lists it.
 * @typedef {{id: string, version: number, schema_name?: string, title: string, tags: string[],
 *   context?: Record<string, any>, created_at: string, updated_at: string}} Crumb
 */
/** @typedef {{id: string, version: number, created_at: string, updated_at: string}} Written */
/** @typedef {{id: string, name: string, activeAt: string, messages?: number}} SessionInfo */

/** Why a request came to nothing, in words for the user. */
export class Problem extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, retryAfterMs?: number}} [details]
   */
  constructor(message, { status = 0, retryAfterMs } = {}) {
    super(message);
    this.name = "Problem";
    /** 0: no server answered. */
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may well work a little later. */
  get passes() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export class Api {
  /** @param {import("./settings.js").Settings} settings */
  constructor({ server, token }) {
    this.server = server;
    this.token = token;
    /** Whether this server has GET /sessions; unknown until it was asked. @type {boolean | undefined} */
    this.hasSessions = undefined;
  }

  /**
   * Any request. A refusal is thrown as a Problem.
   * @param {string} method
   * @param {string} path
   * @param {{query?: Record<string, string>, body?: unknown, headers?: Record<string, string>,
   *   signal?: AbortSignal, endless?: boolean}} [options] `endless`: a stream, which may take as long as it likes.
   * @returns {Promise<Response>}
   */
  async request(method, path, { query = {}, body, headers = {}, signal, endless = false } = {}) {
    const url = new URL(this.server + path);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    const limits = [signal, endless ? undefined : AbortSignal.timeout(TIMEOUT_MS)].filter((s) => s !== undefined);
    let response;
    try {
      response = await fetch(url, {
        method,
        headers: {
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          // In a header, never in the address: addresses end up in logs.
          ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
        signal: AbortSignal.any(limits),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem(`No server answers at ${this.server}. Is it running (crumb up)?`);
    }
    if (!response.ok) throw await problemIn(response);
    return response;
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {Parameters<Api["request"]>[2]} [options]
   */
  async json(method, path, options) {
    const response = await this.request(method, path, options);
    try {
      return { document: await response.json(), headers: response.headers };
    } catch {
      throw new Problem(`What answers at ${this.server} is not a Breadcrumbs server`, { status: 406 });
    }
  }

  /**
   * Post a breadcrumb. The same key never writes twice, so this may be repeated until it has worked.
   * @param {NewCrumb} crumb
   * @param {string} key
   * @param {AbortSignal} [signal]
   * @returns {Promise<Written>}
   */
  async post(crumb, key, signal) {
    const { document } = await this.json("POST", "/breadcrumbs", {
      body: crumb,
      headers: { "Idempotency-Key": key },
      signal,
    });
    if (typeof document?.id !== "string") {
      throw new Problem(`What answers at ${this.server} is not a Breadcrumbs server`, { status: 406 });
    }
    return document;
  }

  /** @param {string} id */
  async remove(id) {
    await this.request("DELETE", `/breadcrumbs/${encodeURIComponent(id)}`);
  }

  /**
   * What is in a session, the newest first.
   * @param {string} session
   * @param {{limit: number, cursor?: string, signal?: AbortSignal}} options
   * @returns {Promise<{crumbs: Crumb[], cursor?: string}>}
   */
  async crumbsOf(session, { limit, cursor, signal }) {
    return this.list({ session_id: session, include_context: "true", limit: `${limit}` }, cursor, signal);
  }

  /**
   * @param {Record<string, string>} query
   * @param {string} [cursor]
   * @param {AbortSignal} [signal]
   * @returns {Promise<{crumbs: Crumb[], cursor?: string}>}
   */
  async list(query, cursor, signal) {
    const { document, headers } = await this.json("GET", "/breadcrumbs", {
      query: cursor === undefined ? query : { ...query, cursor },
      signal,
    });
    if (!Array.isArray(document)) {
      throw new Problem(`What answers at ${this.server} is not a Breadcrumbs server`, { status: 406 });
    }
    return { crumbs: document, cursor: nextCursor(headers.get("Link"), this.server) };
  }

  /**
   * The sessions, those with the newest activity first, page by page.
   * @returns {AsyncGenerator<{sessions: SessionInfo[], more: boolean}>}
   */
  async *sessions() {
    if (this.hasSessions !== false) {
      try {
        yield* this.#listedSessions();
        return;
      } catch (error) {
        if (!(error instanceof Problem) || error.status !== 404 || this.hasSessions) throw error;
        this.hasSessions = false;
      }
    }
    yield* this.#sessionsOfMessages();
  }

  /**
   * The title of a session that exists, where it has one.
   * @param {string} session
   * @param {AbortSignal} [signal]
   * @returns {Promise<string | undefined>}
   */
  async titleOf(session, signal) {
    if (this.hasSessions === false) return undefined;
    try {
      const { document } = await this.json("GET", `/sessions/${encodeURIComponent(session)}`, { signal });
      this.hasSessions = true;
      return typeof document.title === "string" ? document.title : undefined;
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) throw error;
      this.hasSessions ??= false;
      return undefined;
    }
  }

  async *#listedSessions() {
    /** @type {string | undefined} */
    let cursor;
    do {
      const { document } = await this.json("GET", "/sessions", {
        query: { limit: `${SESSIONS_PER_PAGE}`, ...(cursor === undefined ? {} : { cursor }) },
      });
      this.hasSessions = true;
      cursor = document.has_more ? document.next_cursor : undefined;
      yield {
        sessions: document.sessions.map((/** @type {any} */ session) => ({
          id: session.id,
          name: session.title || session.summary || session.id,
          activeAt: session.last_active_at,
          messages: session.counts?.messages,
        })),
        more: cursor !== undefined,
      };
    } while (cursor !== undefined);
  }

  /** For servers without that route: by their messages, of which the newest are listed first. */
  async *#sessionsOfMessages() {
    const seen = new Set();
    /** @type {string | undefined} */
    let cursor;
    do {
      const page = await this.list({ schema_name: "user.message.v1", limit: `${MESSAGES_SCANNED}` }, cursor);
      cursor = page.cursor;
      const sessions = [];
      for (const crumb of page.crumbs) {
        const id = crumb.tags.find((tag) => tag.startsWith("session:"))?.slice("session:".length);
        if (id === undefined || seen.has(id)) continue;
        seen.add(id);
        sessions.push({ id, name: crumb.title || id, activeAt: crumb.created_at });
      }
      yield { sessions, more: cursor !== undefined };
    } while (cursor !== undefined);
  }

  /**
   * Have a message answered again whose turn failed.
   * @param {string} session
   * @param {string} messageId
   */
  async retry(session, messageId) {
    await this.request("POST", `/sessions/${encodeURIComponent(session)}/retry`, {
      body: { message_id: messageId },
    });
  }
}

/** @param {Response} response */
async function problemIn(response) {
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  const details = {
    status: response.status,
    retryAfterMs: Number.isFinite(seconds) ? Math.max(0, seconds) * 1000 : undefined,
  };
  try {
    const { title, detail, errors } = await response.json();
    const places = Array.isArray(errors) ? errors.map((e) => `${e.where}: ${e.message}`) : [];
    const words = places.length && places[0].endsWith(detail) ? [detail] : [detail ?? title, ...places];
    if (typeof words[0] === "string") return new Problem(words.join("; "), details);
  } catch {
    // Not one of our server's answers; the status has to do.
  }
  return new Problem(`The server answered ${response.status} ${response.statusText}`.trim(), details);
}

/**
 * @param {string | null} link
 * @param {string} server
 */
function nextCursor(link, server) {
  const next = link?.match(/<([^>]*)>\s*;\s*rel="?next"?/);
  return next ? (new URL(next[1], server).searchParams.get("cursor") ?? undefined) : undefined;
}
