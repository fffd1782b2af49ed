/** Sidebar with the session list. */

import { useEffect, useRef } from "preact/hooks";
import type { Session } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Menu } from "../../components/menu";
import { Time } from "../../components/time";
import { now } from "../../lib/clock";
import { confined, lacking } from "../../lib/credential";
import { ago, plural } from "../../lib/format";
import { href } from "../../lib/router";
import { sessionActions } from "./actions";
import type { Chat } from "./chat";
import { groupByDate } from "./date-groups";
import { SearchResults } from "./search-results";
import { nameOf } from "./session-list";

export function SessionSidebar({ chat }: { chat: Chat }) {
  const { list } = chat;
  const first = useRef<HTMLButtonElement>(null);
  const refused = lacking("emitter") ?? confined();
  useEffect(() => {
    if (chat.listShown.value) first.current?.focus();
  }, [chat.listShown.value]);
  return (
    <nav class="sidebar" aria-label="Sessions" id="sessions">
      <div class="sidebar-head">
        <button
          ref={first}
          type="button"
          class="button main grow"
          disabled={refused !== undefined}
          title={refused}
          onClick={() => chat.startNew()}
        >
          <Icon name="plus" /> New session
        </button>
        <button
          type="button"
          class="button bare square sidebar-close"
          aria-label="Hide sessions"
          onClick={() => (chat.listShown.value = false)}
        >
          <Icon name="close" />
        </button>
      </div>
      <div class="sidebar-search">
        <Icon name="search" />
        <input
          id="session-search"
          class="field"
          type="search"
          placeholder="Search"
          aria-label="Search sessions and messages"
          autoComplete="off"
          value={list.search.value}
          onInput={(event) => {
            void list.find(event.currentTarget.value);
            chat.found.find(event.currentTarget.value);
          }}
        />
      </div>
      <Sessions chat={chat} />
    </nav>
  );
}

function Sessions({ chat }: { chat: Chat }) {
  const { list } = chat;
  const shown = list.shown.value;
  if (list.state.value === "failed") {
    return (
      <div class="sidebar-note" role="alert">
        <p>{list.problem.value}</p>
        <button type="button" class="button tiny" onClick={() => void list.load()}>
          <Icon name="retry" /> Retry
        </button>
      </div>
    );
  }
  if (list.state.value === "loading") return <Waiting />;
  return (
    <div class="sidebar-list">
      {shown.length === 0 && (
        <p class="sidebar-note">{list.search.value ? "No matching sessions." : "No sessions yet."}</p>
      )}
      {groupByDate(shown, (session) => session.last_active_at, now.value).map((group) => (
        <section key={group.name} aria-label={group.name}>
          <h2 class="session-group">{group.name}</h2>
          <ul>
            {group.items.map((session) => (
              <Item key={session.id} chat={chat} session={session} />
            ))}
          </ul>
        </section>
      ))}
      <SearchResults chat={chat} />
      {list.hasMore.value && (
        <button
          type="button"
          class="button bare sidebar-more"
          disabled={list.loadingMore.value}
          onClick={() => void list.loadMore()}
        >
          {list.loadingMore.value ? "Loading …" : "Load more"}
        </button>
      )}
    </div>
  );
}

function Item({ chat, session }: { chat: Chat; session: Session }) {
  const current = chat.open.value?.id === session.id;
  const unread = chat.list.unread.value.has(session.id);
  const name = nameOf(session);
  return (
    <li class={`session ${current ? "current" : ""} ${unread ? "unread" : ""}`}>
      <a href={href("chat", [session.id])} aria-current={current ? "page" : undefined}>
        <span class="session-name">
          {unread && <span class="unseen">Unread: </span>}
          {name}
        </span>
        <span class="session-facts">
          <Time iso={session.last_active_at}>{ago(session.last_active_at, now.value)}</Time>
          {session.counts.messages > 0 && <span>{plural(session.counts.messages, "message")}</span>}
          {!session.active && <span class="badge warn">paused</span>}
        </span>
      </a>
      <Menu label={`Actions for ${name}`} actions={sessionActions(chat, session)} />
    </li>
  );
}

function Waiting() {
  return (
    <div class="sidebar-list" aria-busy="true">
      <span class="unseen" role="status">
        Loading sessions
      </span>
      {[70, 45, 60, 52].map((width) => (
        <div key={width} class="ghost" style={{ width: `${width}%` }} />
      ))}
    </div>
  );
}
