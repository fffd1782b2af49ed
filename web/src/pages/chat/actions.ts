/** Actions on a session: rename, fork, pause, export, delete. */

import type { Session } from "@breadcrumbs/client";
import { ask, confirmed } from "../../components/dialog";
import type { Action } from "../../components/menu";
import { attempt, toast } from "../../components/toast";
import { confined, lacking } from "../../lib/credential";
import { plural } from "../../lib/format";
import { go, href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import { exportActions } from "./export";
import { makeFork } from "./make-fork";
import { nameOf } from "./session-list";

export function sessionActions(chat: Chat, session: Session): Action[] {
  const disabled = lacking("emitter");
  return [
    { name: "Rename", icon: "pencil", disabled, run: () => void rename(chat, session) },
    { name: "Fork", icon: "fork", disabled: disabled ?? confined(), run: () => void fork(chat, session.id) },
    {
      name: session.active ? "Pause answers" : "Resume answers",
      icon: session.active ? "pause" : "play",
      disabled,
      run: () => void setActive(chat, session.id, !session.active),
    },
    {
      name: "Open blackboard",
      icon: "board",
      run: () => go(href("board", [], { session: session.id })),
    },
    ...exportActions(session),
    { name: "Delete", icon: "trash", danger: true, disabled, run: () => void remove(chat, session) },
  ];
}

export async function rename(chat: Chat, session: Session): Promise<void> {
  const title = await ask({
    title: "Rename session",
    label: "Title",
    value: session.title ?? session.summary ?? "",
    action: "Rename",
  });
  if (!title) return;
  const changed = await attempt("Renaming failed", () => client.sessions.change(session.id, { title }));
  if (changed) chat.list.put(changed);
}

/** Create a session with the messages of another one, all or up to `messageId`, and open it. */
export async function fork(chat: Chat, id: string, messageId?: string): Promise<void> {
  const range = messageId === undefined ? {} : { message_id: messageId };
  const made = await attempt("Forking failed", () => makeFork(chat, id, range));
  if (!made) return;
  go(href("chat", [made.id]));
  toast("Session forked. The original session is unchanged.");
}

export async function setActive(chat: Chat, id: string, active: boolean): Promise<void> {
  const changed = await attempt(active ? "Resuming failed" : "Pausing failed", () =>
    client.sessions.change(id, { active }),
  );
  if (changed) chat.list.put(changed);
}

export async function remove(chat: Chat, session: Session): Promise<void> {
  const sure = await confirmed({
    title: "Delete session?",
    text: `“${nameOf(session)}” and its ${plural(session.counts.breadcrumbs, "breadcrumb")} will be deleted. This cannot be undone.`,
    action: "Delete",
    danger: true,
  });
  if (!sure) return;
  const done = await attempt("Deleting failed", () => client.sessions.remove(session.id));
  if (!done) return;
  chat.list.forget(session.id);
  if (chat.open.value?.id === session.id) go(href("chat"), true);
}
