/** Sessions and their messages. */

import type { CreatedBreadcrumb } from "./breadcrumbs.ts";
import type { Client } from "./client.ts";
import { newId } from "./ids.ts";
import type { JsonObject } from "./json.ts";

export interface Session {
  id: string;
  title?: string;
  user_id?: string;
  /** The model that a curator chose for the session. */
  model?: string;
  /** The agent that a curator chose for the session. */
  agent?: string;
  version: number;
  created_at: string;
  last_active_at: string;
  returning: boolean;
  active: boolean;
  counts: { messages: number; answers: number; errors: number; breadcrumbs: number };
  state?: JsonObject;
  summary?: string;
}

export interface SessionPage {
  sessions: Session[];
  has_more: boolean;
  next_cursor?: string;
}

/** A message that a search found. */
export interface MessageMatch {
  session_id: string;
  message_id: string;
  role: "user" | "assistant" | "error";
  created_at: string;
  /** Part of the text, as one line. */
  excerpt: string;
}

export interface SearchPage extends SessionPage {
  matches: MessageMatch[];
}

export interface Message {
  id: string;
  role: "user" | "assistant" | "error" | "tool";
  /** Empty if the token may not read it. */
  text: string;
  schema_name: string;
  created_at: string;
  updated_at: string;
  version: number;
  tags: string[];
  trigger_id?: string;
  agent_id?: string;
  tool?: JsonObject;
  /** Empty if the token may not read it. */
  context: JsonObject;
}

export interface MessagePage {
  messages: Message[];
  has_more: boolean;
  before?: string;
  after?: string;
}

/** A message as the server sends it. Text and context are missing if the token may not read them. */
type SentMessage = Omit<Message, "text" | "context"> & Partial<Pick<Message, "text" | "context">>;

export interface ForkRequest {
  message_id?: string;
  before_id?: string;
  id?: string;
  title?: string;
}

/** Deleting a session deletes its breadcrumbs one by one, so it gets a longer timeout. */
const DELETE_TIMEOUT_FACTOR = 10;

export class Sessions {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  list(
    query: { limit?: number; cursor?: string | undefined; user_id?: string } = {},
    signal?: AbortSignal,
  ): Promise<SessionPage> {
    return this.#client.json("/sessions", { query, signal });
  }

  create(session: { id?: string; title?: string; user_id?: string; state?: JsonObject } = {}, key = newId()): Promise<Session> {
    return this.#client.json("/sessions", { body: session, headers: { "idempotency-key": key } });
  }

  read(id: string, signal?: AbortSignal): Promise<Session> {
    return this.#client.json(pathOf(id), { signal });
  }

  /** Change a session. A model of null returns to the models of the agents. An agent of null lets all agents answer. */
  change(
    id: string,
    changes: { title?: string; state?: JsonObject; active?: boolean; model?: string | null; agent?: string | null },
  ): Promise<Session> {
    return this.#client.json(pathOf(id), { method: "PATCH", body: changes });
  }

  remove(id: string): Promise<{ ok: true; deleted: number }> {
    const timeoutMs = DELETE_TIMEOUT_FACTOR * this.#client.timeoutMs;
    return this.#client.json(pathOf(id), { method: "DELETE", timeoutMs });
  }

  /** Post a message. The first message of a session creates it. */
  async say(id: string, message: string, key: string, context?: JsonObject): Promise<Message> {
    const reply = await this.#client.json<{ message: SentMessage }>(pathOf(id, "/messages"), {
      body: context ? { message, context } : { message },
      headers: { "idempotency-key": key },
    });
    return withDefaults(reply.message);
  }

  async messages(
    id: string,
    query: { limit?: number; before?: string; after?: string } = {},
    signal?: AbortSignal,
  ): Promise<MessagePage> {
    const page = await this.#client.json<Omit<MessagePage, "messages"> & { messages: SentMessage[] }>(
      pathOf(id, "/messages"),
      { query, signal },
    );
    return { ...page, messages: page.messages.map(withDefaults) };
  }

  /** Search titles and messages. The server searches a part per request: continue with the cursor until the end. */
  search(
    text: string,
    query: { limit?: number; cursor?: string | undefined; user_id?: string } = {},
    signal?: AbortSignal,
  ): Promise<SearchPage> {
    return this.#client.json("/sessions", { query: { ...query, q: text }, signal });
  }

  /**
   * Copy a session, up to and including `message_id`, or only what is before `before_id`. A second call with the same
   * key returns the same fork.
   */
  fork(id: string, body: ForkRequest = {}, key = newId()): Promise<Session> {
    return this.#client.json(pathOf(id, "/fork"), { body, headers: { "idempotency-key": key } });
  }

  /** Run the failed turn of a message again, by default the newest. */
  retry(id: string, messageId?: string): Promise<{ ok: true; message_id: string }> {
    return this.#client.json(pathOf(id, "/retry"), {
      body: messageId === undefined ? {} : { message_id: messageId },
    });
  }

  /** Stop the answers in progress in a session. */
  cancel(id: string, key = newId()): Promise<CreatedBreadcrumb> {
    return this.#client.breadcrumbs.create(
      { schema_name: "agent.cancel.v1", title: "Cancel", tags: ["agent:cancel", `session:${id}`], context: {} },
      key,
    );
  }
}

function pathOf(id: string, more = ""): string {
  return `/sessions/${encodeURIComponent(id)}${more}`;
}

function withDefaults(message: SentMessage): Message {
  return { text: "", context: {}, ...message };
}
