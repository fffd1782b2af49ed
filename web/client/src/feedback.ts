/** Feedback: ratings of answers. Each user has one per answer. */

import type { Client, Query } from "./client.ts";

export type Rating = "up" | "down";

/** The rating of an answer by one person, and facts about the answer. */
export interface Feedback {
  id: string;
  version: number;
  rating: Rating;
  note?: string;
  answer_id: string;
  answer_version: number;
  session_id?: string;
  /** The user, or the agent of a token without a user. */
  user: string;
  rater: "user" | "agent";
  agent_id?: string;
  model?: string;
  /** Digest of the context config. */
  config?: string;
  context_id?: string;
  context_version?: number;
  created_at: string;
  updated_at: string;
  /** Beginning of the message. Only in lists. */
  question?: string;
  /** Beginning of the answer. Only in lists. */
  answer?: string;
}

export interface FeedbackPage {
  feedback: Feedback[];
  has_more: boolean;
  next_cursor?: string;
}

export interface FeedbackQuery extends Query {
  rating?: Rating | undefined;
  session_id?: string;
  since?: string;
  until?: string;
  agent?: string | undefined;
  model?: string | undefined;
  /** Digest of a context config, or its beginning. */
  config?: string | undefined;
  own?: boolean;
  limit?: number;
  cursor?: string | undefined;
}

export interface RatingCount {
  up: number;
  down: number;
}

/** Numbers of ratings. A row without a name counts answers whose config, agent or model is not known. */
export interface FeedbackCounts {
  since: string;
  total: RatingCount;
  configs: (RatingCount & { config?: string })[];
  agents: (RatingCount & { agent_id?: string })[];
  models: (RatingCount & { model?: string })[];
  /** False if the oldest ratings were not counted. */
  complete: boolean;
}

export const MAX_NOTE_LENGTH = 2_000;

/** Maximum number of pages that `ownIn` reads. */
const MAX_OWN_PAGES = 10;

export class Ratings {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Rate an answer. A second rating replaces the first. */
  rate(answer: string, rating: Rating, note?: string): Promise<Feedback> {
    return this.#client.json(pathOf(answer), { method: "PUT", body: note ? { rating, note } : { rating } });
  }

  /** Withdraw the own rating of an answer. */
  withdraw(answer: string): Promise<{ ok: true }> {
    return this.#client.json(pathOf(answer), { method: "DELETE" });
  }

  list(query: FeedbackQuery = {}, signal?: AbortSignal): Promise<FeedbackPage> {
    return this.#client.json("/feedback", { query, signal });
  }

  counts(query: FeedbackQuery = {}, signal?: AbortSignal): Promise<FeedbackCounts> {
    return this.#client.json("/feedback/counts", { query, signal });
  }

  /** Return the own ratings in a session, by the id of the answer. */
  async ownIn(session: string, signal?: AbortSignal): Promise<Map<string, Feedback>> {
    const found = new Map<string, Feedback>();
    let cursor: string | undefined;
    for (let pages = 0; pages < MAX_OWN_PAGES; pages += 1) {
      const page = await this.list({ session_id: session, own: true, limit: 200, cursor }, signal);
      for (const one of page.feedback) found.set(one.answer_id, one);
      cursor = page.next_cursor;
      if (cursor === undefined) break;
    }
    return found;
  }
}

function pathOf(answer: string): string {
  return `/breadcrumbs/${encodeURIComponent(answer)}/feedback`;
}
