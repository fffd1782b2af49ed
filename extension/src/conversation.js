// State of one session: its breadcrumbs as entries of a chat, and answers in progress. No network, no DOM.

import { plainText } from "./text.js";

export const MESSAGE = "user.message.v1";
export const PAGE = "page.content.v1";
export const CANCEL = "agent.cancel.v1";

const ANSWER = "agent.response.v1";
const ERROR = "agent.error.v1";
const TOOL_REQUEST = "tool.request.v1";
const TOOL_RESPONSE = "tool.response.v1";

/**
 * @typedef {object} Entry
 * @property {string} id
 * @property {number} version
 * @property {"user" | "answer" | "error" | "tool" | "result" | "page"} kind
 * @property {string} at Creation time.
 * @property {string} text
 * @property {string[]} answers Ids of the messages that it answers, or whose turn failed.
 * @property {string} [agent]
 * @property {string} [reasoning] Reasoning of the model, which is not part of the answer.
 * @property {boolean} [cancelled]
 * @property {{title: string, url: string, selection: boolean, truncated: boolean}} [page]
 * @property {{name: string, request: string, input?: unknown, output?: unknown, error?: string}} [tool]
 */
/**
 * An answer that is being written. `notice` is set while the model is called again after a failure, and `retryAt` is the
 * time of that call on the clock of `performance.now()`, because clocks of server and browser differ.
 * @typedef {object} Draft
 * @property {string} id
 * @property {string} message
 * @property {string} agent
 * @property {string[]} letters
 * @property {number} pieces
 * @property {import("../client/index.js").RetryNotice} [notice]
 * @property {number} [retryAt]
 */

export class Conversation {
  /** @type {Map<string, Entry>} */
  #entries = new Map();
  /** Ids of deleted breadcrumbs, so that a list requested earlier does not restore them. @type {Set<string>} */
  #gone = new Set();
  /** @type {Map<string, Draft>} */
  #drafts = new Map();
  /** Updates of unknown breadcrumbs, because a list requested earlier has the old version. @type {Map<string, any>} */
  #edits = new Map();
  /** Retried messages, with the time of the error. @type {Map<string, string>} */
  #retried = new Map();

  /** Apply an event of the stream. @param {any} event */
  take(event) {
    if (event.type === "agent.response.delta") {
      this.#delta(event);
    } else if (event.operation === "deleted") {
      this.drop(event.breadcrumb_id);
    } else {
      const known = this.#entries.get(event.breadcrumb_id);
      const crumb = {
        id: event.breadcrumb_id,
        version: event.version,
        schema_name: event.schema_name,
        title: event.title ?? "",
        tags: event.tags,
        context: event.context,
        created_at: known?.at ?? event.updated_at,
        updated_at: event.updated_at,
      };
      if (event.operation === "created" || known) this.add(crumb);
      else if (entryOf(crumb)) this.#edits.set(crumb.id, crumb);
    }
  }

  /**
   * Add a breadcrumb. Ignored if the same or a newer version is known.
   * @param {import("./server.js").Crumb} crumb
   * @returns {boolean} Whether the chat shows it.
   */
  add(crumb) {
    const edit = this.#edits.get(crumb.id);
    this.#edits.delete(crumb.id);
    const newest = edit && edit.version > crumb.version ? { ...edit, created_at: crumb.created_at } : crumb;
    const entry = entryOf(newest);
    if (!entry || this.#gone.has(entry.id)) return false;
    const known = this.#entries.get(entry.id);
    if (known && known.version >= entry.version) return true;
    this.#entries.set(entry.id, entry);
    this.#drafts.delete(entry.id);
    if (entry.kind === "error") {
      for (const [id, draft] of this.#drafts) {
        if (entry.answers.includes(draft.message)) this.#drafts.delete(id);
      }
    }
    return true;
  }

  /** @param {string} id */
  drop(id) {
    this.#edits.delete(id);
    this.#gone.add(id);
    this.#entries.delete(id);
  }

  /** Clear everything, because events were missed and everything is listed again. */
  forget() {
    this.#entries.clear();
    this.#gone.clear();
    this.#edits.clear();
    this.#drafts.clear();
  }

  /** Return all entries in order of time. @returns {Entry[]} */
  entries() {
    const all = [...this.#entries.values()].sort((a, b) => (a.at === b.at ? (a.id < b.id ? -1 : 1) : a.at < b.at ? -1 : 1));
    /** @type {Map<string, Entry>} */
    const requests = new Map(all.filter((entry) => entry.kind === "tool").map((entry) => [entry.id, entry]));
    /** @type {Map<string, Entry>} */
    const results = new Map();
    for (const entry of all) if (entry.kind === "result") results.set(entry.tool?.request ?? "", entry);
    return all
      .filter((entry) => entry.kind !== "result" || !requests.has(entry.tool?.request ?? ""))
      .map((entry) => {
        const result = entry.kind === "tool" ? results.get(entry.id) : undefined;
        if (!result?.tool || !entry.tool) return entry;
        // One entry per tool call, with input and output.
        return { ...entry, version: entry.version + result.version, tool: { ...result.tool, ...entry.tool } };
      });
  }

  /** @returns {Draft[]} */
  drafts() {
    return [...this.#drafts.values()];
  }

  /**
   * Return the messages that wait for an answer, oldest first: those after the last answered one, and retried ones.
   * @returns {Entry[]}
   */
  unanswered() {
    /** @type {Map<string, string>} */
    const answered = new Map();
    const all = this.entries();
    for (const entry of all) for (const message of entry.answers) answered.set(message, entry.at);
    const isAnswered = (/** @type {Entry} */ message) => {
      const when = answered.get(message.id);
      return when !== undefined && when > (this.#retried.get(message.id) ?? "");
    };
    const messages = all.filter((entry) => entry.kind === "user");
    const last = messages.findLastIndex(isAnswered);
    return messages.filter((message, place) => place > last || (this.#retried.has(message.id) && !isAnswered(message)));
  }

  /** Whether the turn of an error can be retried: it has no newer outcome. @param {Entry} error */
  canRetry(error) {
    if (error.kind !== "error" || !error.answers.length) return false;
    return ![...this.#entries.values()].some(
      (entry) => entry.at > error.at && entry.answers.some((message) => error.answers.includes(message)),
    );
  }

  /** Note that a failed turn is being retried. @param {Entry} error */
  retrying(error) {
    for (const message of error.answers) this.#retried.set(message, error.at);
  }

  /** Note that the retry could not be started. @param {Entry} error */
  notRetrying(error) {
    for (const message of error.answers) this.#retried.delete(message);
  }

  /** @param {Entry} message */
  isRetried(message) {
    return this.#retried.has(message.id);
  }

  /** @param {any} delta */
  #delta({ breadcrumb_id: id, trigger_id: message, agent_id: agent, offset, text, notice }) {
    if (this.#entries.has(id) || this.#gone.has(id)) return;
    let draft = this.#drafts.get(id);
    if (!draft || offset === 0) {
      draft = { id, message, agent, letters: [], pieces: draft?.pieces ?? 0 };
      this.#drafts.set(id, draft);
    }
    draft.notice = notice;
    draft.retryAt = notice && performance.now() + notice.retry_in * 1000;
    draft.pieces += 1;
    // Offsets count code points, not UTF-16 units. After a lost delta the text stays as it is until the answer arrives.
    if (offset > draft.letters.length) return;
    draft.letters.length = offset;
    draft.letters.push(...text);
  }
}

/**
 * @param {import("./server.js").Crumb} crumb
 * @returns {Entry | undefined}
 */
export function entryOf(crumb) {
  const context = crumb.context ?? {};
  const common = {
    id: crumb.id,
    version: crumb.version,
    at: crumb.created_at,
    text: plainText(context) || crumb.title,
    answers: [context.trigger_id, ...(Array.isArray(context.answers) ? context.answers : [])].filter(
      (id) => typeof id === "string",
    ),
  };
  switch (crumb.schema_name) {
    case MESSAGE:
      return { ...common, kind: "user", answers: [] };
    case ERROR:
      return {
        ...common,
        kind: "error",
        text: typeof context.error === "string" ? context.error : common.text,
        cancelled: context.cancelled === true,
      };
    case TOOL_REQUEST:
    case TOOL_RESPONSE:
      return { ...common, kind: crumb.schema_name === TOOL_REQUEST ? "tool" : "result", answers: [], tool: toolOf(crumb) };
    case PAGE:
      return {
        ...common,
        kind: "page",
        answers: [],
        text: typeof context.text === "string" ? context.text : "",
        page: {
          title: crumb.title || String(context.title ?? ""),
          url: typeof context.url === "string" ? context.url : "",
          selection: context.selection === true,
          truncated: context.truncated === true,
        },
      };
    default: {
      // Agents can use their own schema for answers.
      const creator = context.creator;
      const byAgent = typeof creator === "object" && creator?.type === "agent" && common.answers.length > 0;
      if (crumb.schema_name !== ANSWER && !byAgent) return undefined;
      const agent = typeof creator === "object" ? creator?.agent_id : creator;
      const reasoning = context.model_reasoning;
      return {
        ...common,
        kind: "answer",
        agent: typeof agent === "string" ? agent : undefined,
        reasoning: typeof reasoning === "string" ? reasoning : undefined,
      };
    }
  }
}

/** @param {import("./server.js").Crumb} crumb */
function toolOf({ id, context = {} }) {
  return {
    name: String(context.tool ?? "tool"),
    request: typeof context.request_id === "string" ? context.request_id : id,
    ...("input" in context ? { input: context.input } : {}),
    ...("output" in context ? { output: context.output } : {}),
    ...(typeof context.error === "string" ? { error: context.error } : {}),
  };
}
