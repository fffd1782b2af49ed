/** Forks a session. An attempt whose reply was lost is repeated with the same key, so that it leaves one fork. */

import { ApiError, newId, type ForkRequest, type Session } from "@breadcrumbs/client";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import { forkTitle } from "./fork-title";
import { nameOf } from "./session-list";

/** What to copy: the whole session, what is up to a message, or what is before it. */
export type ForkRange = Pick<ForkRequest, "message_id" | "before_id">;

interface Attempt {
  key: string;
  body: ForkRequest;
  at: number;
}

/** After this time, another attempt makes another fork. */
const REPEATED_WITHIN_MS = 120_000;

/** Attempts of which it is unknown whether the server got them. */
const unknown = new Map<string, Attempt>();

/** Fork a session, with a title that says so, and add the fork to the list. */
export async function makeFork(chat: Chat, id: string, range: ForkRange): Promise<Session> {
  const what = JSON.stringify([id, range]);
  const before = unknown.get(what);
  unknown.delete(what);
  const isRepeated = before !== undefined && Date.now() - before.at < REPEATED_WITHIN_MS;
  const { key, body } = isRepeated ? before : { key: newId(), body: bodyOf(chat, id, range) };
  try {
    const made = await client.sessions.fork(id, body, key);
    chat.list.put(made);
    return made;
  } catch (error) {
    if (!(error instanceof ApiError) || error.isRetryable) unknown.set(what, { key, body, at: Date.now() });
    throw error;
  }
}

function bodyOf(chat: Chat, id: string, range: ForkRange): ForkRequest {
  const origin = chat.list.get(id);
  if (origin === undefined) return range;
  return { ...range, title: forkTitle(nameOf(origin), chat.list.sorted.peek().map(nameOf)) };
}
