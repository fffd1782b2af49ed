/** What can be done with a whole session. */

import type { Session } from "@breadcrumbs/client";
import { ask, confirmed } from "../../components/dialog";
import type { Action } from "../../components/menu";
import { attempt, toast } from "../../components/toast";
import { plural } from "../../lib/format";
import { go, href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import { nameOf } from "./session-list";

export function sessionActions(chat: Chat, session: Session): Action[] {
  return [
    { name: "Rename", icon: "pencil", run: () => void rename(chat, session) },
    { name: "Fork", icon: "fork", run: () => void fork(chat, session.id) },
    {
      name: session.active ? "Pause answers" : "Resume answers",
      icon: session.active ? "pause" : "play",
      run: () => void setActive(chat, session.id, !session.active),
    },
    {
      name: "See it on the blackboard",
      icon: "board",
      run: () => go(href("board", [], { session: session.id })),
    },
    { name: "Delete", icon: "trash", danger: true, run: () => void remove(chat, session) },
  ];
}

export async function rename(chat: Chat, session: Session): Promise<void> {
  const title = await ask({
    title: "Rename the session",
    label: "Title",
    value: session.title ?? session.summary ?? "",
    action: "Rename",
  });
  if (!title) return;
  const changed = await attempt("It was not renamed", () => client.sessions.change(session.id, { title }));
  if (changed) chat.list.put(changed);
}

/** A new session with everything up to a message, or with everything. */
export async function fork(chat: Chat, id: string, messageId?: string): Promise<void> {
  const made = await attempt("It was not forked", () =>
    client.sessions.fork(id, messageId === undefined ? {} : { message_id: messageId }),
  );
  if (!made) return;
  chat.list.put(made);
  go(href("chat", [made.id]));
  toast("This is the fork. The session that it was made from stays as it is.");
}

export async function setActive(chat: Chat, id: string, active: boolean): Promise<void> {
  const changed = await attempt(active ? "It was not resumed" : "It was not paused", () =>
    client.sessions.change(id, { active }),
  );
  if (changed) chat.list.put(changed);
}

export async function remove(chat: Chat, session: Session): Promise<void> {
  const sure = await confirmed({
    title: "Delete the session?",
    text: `“${nameOf(session)}” goes with everything in it: ${plural(session.counts.breadcrumbs, "breadcrumb")}. There is no way back.`,
    action: "Delete",
    danger: true,
  });
  if (!sure) return;
  const done = await attempt("It was not deleted", () => client.sessions.remove(session.id));
  if (!done) return;
  chat.list.forget(session.id);
  if (chat.open.value?.id === session.id) go(href("chat"), true);
}
