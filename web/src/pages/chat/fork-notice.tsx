/** Names the session that the open session was forked from, with a link. */

import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Json, Session } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import type { Conversation } from "./conversation";
import { isObject } from "./message";
import { nameOf } from "./session-list";

export function ForkNotice({ chat, conversation }: { chat: Chat; conversation: Conversation }) {
  const origin = useSignal<string | null>(null);
  const read = useSignal<Session | null>(null);
  const isReady = conversation.state.value === "ready";
  useEffect(() => {
    const closed = new AbortController();
    const load = async () => {
      const found = await originOf(conversation.id, closed.signal);
      if (found === undefined || closed.signal.aborted) return;
      if (chat.list.get(found) === undefined) read.value = await client.sessions.read(found, closed.signal);
      origin.value = found;
    };
    // Without the permission to read them, or after they were deleted, there is no notice.
    if (isReady) load().catch(() => {});
    return () => closed.abort();
  }, [conversation.id, isReady]);
  if (origin.value === null) return null;
  const session = chat.list.get(origin.value) ?? read.value ?? undefined;
  return (
    <p class="fork-notice" role="note">
      <Icon name="fork" />
      <span>
        Fork of <a href={href("chat", [origin.value])}>{nameOf(session)}</a>
      </span>
    </p>
  );
}

/** Return the session that a session was forked from. Its record contains it. */
async function originOf(session: string, signal: AbortSignal): Promise<string | undefined> {
  const query = { session_id: session, schema_name: "session.v1", sort: "created_at", limit: 1 } as const;
  const { items } = await client.breadcrumbs.list({ ...query, include_context: true }, signal);
  const from: Json | undefined = items[0]?.context?.["forked_from"];
  const id = isObject(from) ? from["session_id"] : undefined;
  return typeof id === "string" ? id : undefined;
}
