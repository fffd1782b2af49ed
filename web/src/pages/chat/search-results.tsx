/** Results of the search over messages, below the sessions whose titles match. */

import type { MessageMatch } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { now } from "../../lib/clock";
import { ago } from "../../lib/format";
import { href } from "../../lib/router";
import type { Chat } from "./chat";
import { nameOf } from "./session-list";

export function SearchResults({ chat }: { chat: Chat }) {
  const { found, list } = chat;
  const state = found.state.value;
  if (state === "idle") return null;
  const matches = found.matches.value;
  const withMessages = new Set(matches.map((match) => match.session_id));
  const titled = [...found.sessions.value.values()].filter(
    (session) => !withMessages.has(session.id) && list.get(session.id) === undefined,
  );
  return (
    <section class="found" aria-label="Messages found">
      {titled.map((session) => (
        <a key={session.id} class="match" href={href("chat", [session.id])}>
          <span class="session-name">{nameOf(session)}</span>
        </a>
      ))}
      <h2 class="session-group">Messages</h2>
      {matches.length > 0 && (
        <ul>
          {matches.map((match) => (
            <Match key={match.message_id} chat={chat} match={match} />
          ))}
        </ul>
      )}
      <p class="sidebar-note" role="status">
        {state === "searching" && "Searching messages …"}
        {state === "done" && matches.length === 0 && !found.hasMore.value && "No matching messages."}
        {state === "done" && matches.length === 0 && found.hasMore.value && "No matching messages so far."}
      </p>
      {state === "failed" && (
        <div class="sidebar-note" role="alert">
          <p>{found.problem.value}</p>
          <button type="button" class="button tiny" onClick={() => void found.more()}>
            <Icon name="retry" /> Retry
          </button>
        </div>
      )}
      {state === "done" && found.hasMore.value && (
        <button type="button" class="button bare sidebar-more" onClick={() => void found.more()}>
          Search older messages
        </button>
      )}
    </section>
  );
}

function Match({ chat, match }: { chat: Chat; match: MessageMatch }) {
  const session = chat.found.sessions.value.get(match.session_id);
  return (
    <li>
      <a class="match" href={href("chat", [match.session_id], { message: match.message_id })}>
        <span class="session-name">{nameOf(session)}</span>
        <span class="excerpt">
          <Marked text={match.excerpt} words={chat.found.text.value} />
        </span>
        <span class="session-facts">
          <span>{{ user: "You", assistant: "Answer", error: "Error" }[match.role]}</span>
          <Time iso={match.created_at}>{ago(match.created_at, now.value)}</Time>
        </span>
      </a>
    </li>
  );
}

/** Shows a text with the words of the search marked. */
function Marked({ text, words }: { text: string; words: string }) {
  const patterns = words.split(/\s+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (patterns.length === 0) return <>{text}</>;
  const parts = text.split(new RegExp(`(${patterns.join("|")})`, "giu"));
  return <>{parts.map((part, index) => (index % 2 === 1 ? <mark>{part}</mark> : part))}</>;
}
