// The server operations that the chat needs.

import { ApiError, Client } from "../client/index.js";

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
/** @typedef {{id: string, name: string, activeAt: string, messages?: number}} SessionInfo */

export class Server {
  /** @param {import("./settings.js").Settings} settings */
  constructor({ server, token }) {
    this.client = new Client({
      server,
      token,
      timeoutMs: TIMEOUT_MS,
      fetchOptions: { cache: "no-store", credentials: "omit" },
      describeFailure,
    });
    /** Whether this server has GET /sessions. Undefined until it is known. @type {boolean | undefined} */
    this.hasSessions = undefined;
  }

  /**
   * Return the breadcrumbs of a session, newest first.
   * @param {string} session
   * @param {{limit: number, cursor?: string, signal?: AbortSignal}} options
   */
  async crumbsOf(session, { limit, cursor, signal }) {
    return this.#list({ session_id: session, include_context: true, limit, cursor }, signal);
  }

  /**
   * Yield pages of sessions, last active first.
   * @returns {AsyncGenerator<{sessions: SessionInfo[], more: boolean}>}
   */
  async *sessions() {
    if (this.hasSessions !== false) {
      try {
        yield* this.#listedSessions();
        return;
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404 || this.hasSessions) throw error;
        this.hasSessions = false;
      }
    }
    yield* this.#sessionsOfMessages();
  }

  /**
   * Return the title of a session, if the session exists and has one.
   * @param {string} session
   * @param {AbortSignal} [signal]
   * @returns {Promise<string | undefined>}
   */
  async titleOf(session, signal) {
    if (this.hasSessions === false) return undefined;
    try {
      const { title } = await this.client.sessions.read(session, signal);
      this.hasSessions = true;
      return typeof title === "string" ? title : undefined;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.hasSessions ??= false;
      return undefined;
    }
  }

  async *#listedSessions() {
    /** @type {string | undefined} */
    let cursor;
    do {
      const page = await this.client.sessions.list({ limit: SESSIONS_PER_PAGE, cursor });
      this.hasSessions = true;
      cursor = page.has_more ? page.next_cursor : undefined;
      yield {
        sessions: page.sessions.map((session) => ({
          id: session.id,
          name: session.title || session.summary || session.id,
          activeAt: session.last_active_at,
          messages: session.counts?.messages,
        })),
        more: cursor !== undefined,
      };
    } while (cursor !== undefined);
  }

  /** Yield the sessions of the newest messages. For servers without GET /sessions. */
  async *#sessionsOfMessages() {
    const seen = new Set();
    /** @type {string | undefined} */
    let cursor;
    do {
      const page = await this.#list({ schema_name: "user.message.v1", limit: MESSAGES_SCANNED, cursor });
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
   * @param {import("../client/index.js").BreadcrumbQuery} query
   * @param {AbortSignal} [signal]
   * @returns {Promise<{crumbs: Crumb[], cursor?: string}>}
   */
  async #list(query, signal) {
    const { items, next } = await this.client.breadcrumbs.list(query, signal);
    return { crumbs: items.map((crumb) => ({ ...crumb, title: crumb.title ?? "" })), cursor: next };
  }
}

/** Return the message of a failed request for the user. @param {import("../client/index.js").Failure} failure */
function describeFailure({ kind, server, status, statusText, problem }) {
  if (kind === "malformed") return `${server} is not a Breadcrumbs server`;
  if (kind !== "refused") return `Cannot connect to ${server}. Start the server with: crumb up`;
  const reasons = problem ? reasonsIn(problem) : [];
  return reasons.length ? reasons.join("; ") : `The server replied with status ${status} ${statusText}`.trim();
}

/** @param {import("../client/index.js").Problem} problem */
function reasonsIn({ title, detail, errors }) {
  const reason = detail ?? title;
  if (typeof reason !== "string") return [];
  const places = Array.isArray(errors) ? errors.map(({ where, message }) => `${where}: ${message}`) : [];
  return places[0]?.endsWith(reason) ? [reason] : [reason, ...places];
}
