/** The chat page: sessions at the left, the conversation, and why an answer is as it is. */

import { useEffect, useState } from "preact/hooks";
import { WhyPanel } from "../../components/why";
import { useShortcuts } from "../../lib/keys";
import { Chat } from "./chat";
import { Composer } from "./composer";
import { ConversationView } from "./conversation-view";
import { SessionSidebar } from "./sidebar";
import "./chat.css";

export default function ChatPage() {
  const [chat] = useState(() => new Chat());
  useEffect(() => () => chat.close(), [chat]);
  useShortcuts(
    [
      { keys: "n", what: "New session", group: "Chat", run: () => chat.startNew() },
      { keys: "/", what: "Search the sessions", group: "Chat", run: () => focusOn("session-search", chat) },
      { keys: "m", what: "Write a message", group: "Chat", run: () => focusOn("composer") },
      { keys: "Alt+ArrowUp", what: "Session above", group: "Chat", run: () => chat.step(-1), inFields: true },
      { keys: "Alt+ArrowDown", what: "Session below", group: "Chat", run: () => chat.step(1), inFields: true },
      { keys: "w", what: "Why did it say that? (the last answer)", group: "Chat", run: () => askWhy(chat) },
      { keys: "Enter", what: "Send; Shift+Enter for a new line", group: "Chat" },
      {
        keys: "Escape",
        what: "Close what lies over the conversation",
        group: "Chat",
        inFields: true,
        when: () => chat.why.value !== null || chat.listShown.value,
        run: () => {
          chat.why.value = null;
          chat.listShown.value = false;
        },
      },
    ],
    [chat],
  );
  const conversation = chat.open.value;
  const why = chat.why.value;
  return (
    <div class={`chat ${chat.listShown.value ? "with-list" : ""} ${why ? "with-why" : ""}`}>
      <SessionSidebar chat={chat} />
      <section class="chat-main" aria-label="Conversation">
        <ConversationView chat={chat} conversation={conversation} key={conversation?.id ?? ""} />
        <Composer chat={chat} conversation={conversation} key={`composer-${conversation?.id ?? ""}`} />
      </section>
      {chat.listShown.value && (
        <button
          type="button"
          class="chat-veil"
          aria-label="Hide the sessions"
          tabIndex={-1}
          onClick={() => (chat.listShown.value = false)}
        />
      )}
      {why && (
        <aside class="chat-why" aria-label="Why did it say that?">
          <WhyPanel answer={why} onClose={() => (chat.why.value = null)} key={why.id} />
        </aside>
      )}
    </div>
  );
}

function focusOn(id: string, chat?: Chat): void {
  document.getElementById(id)?.focus();
  if (!chat || document.activeElement?.id === id) return;
  chat.listShown.value = true; // it cannot be focused while the list is hidden
  requestAnimationFrame(() => document.getElementById(id)?.focus());
}

function askWhy(chat: Chat): void {
  const answer = chat.open.value?.messages.value.findLast((message) => message.role === "assistant");
  if (answer) chat.why.value = answer;
}
