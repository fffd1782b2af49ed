/** The chat page: session list, conversation, and the panel that explains an answer. */

import { useEffect, useState } from "preact/hooks";
import { WhyPanel } from "../../components/why";
import { useShortcuts } from "../../lib/keys";
import { Chat } from "./chat";
import { Composer } from "./composer";
import { ConversationView } from "./conversation-view";
import { SessionSidebar } from "./sidebar";
import "./chat.css";
import "./features.css";

export default function ChatPage() {
  const [chat] = useState(() => new Chat());
  useEffect(() => () => chat.close(), [chat]);
  useShortcuts(
    [
      { keys: "n", what: "New session", group: "Chat", run: () => chat.startNew() },
      { keys: "/", what: "Search sessions and messages", group: "Chat", run: () => focusOn("session-search", chat) },
      { keys: "m", what: "Write a message", group: "Chat", run: () => focusOn("composer") },
      { keys: "k", what: "Previous session", group: "Chat", run: () => chat.step(-1, true) },
      { keys: "j", what: "Next session", group: "Chat", run: () => chat.step(1, true) },
      { keys: "Alt+ArrowUp", what: "Previous session", ...outsideText, run: () => chat.step(-1) },
      { keys: "Alt+ArrowDown", what: "Next session", ...outsideText, run: () => chat.step(1) },
      { keys: "w", what: "Explain last answer", group: "Chat", run: () => askWhy(chat) },
      { keys: "Enter", what: "Send (Shift+Enter: new line)", group: "Chat" },
      {
        keys: "Escape",
        what: "Close side panel",
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
          aria-label="Hide sessions"
          tabIndex={-1}
          onClick={() => (chat.listShown.value = false)}
        />
      )}
      {why && (
        <aside class="chat-why" aria-label="Why this answer?">
          <WhyPanel answer={why} onClose={() => (chat.why.value = null)} key={why.id} />
        </aside>
      )}
    </div>
  );
}

/** Also works in an empty field. In a text, the key moves the cursor on some systems. */
const outsideText = { group: "Chat", inFields: true, when: () => !isWriting() };

function isWriting(): boolean {
  const field = document.activeElement;
  const isField = field instanceof HTMLTextAreaElement || field instanceof HTMLInputElement;
  return isField && field.value !== "";
}

function focusOn(id: string, chat?: Chat): void {
  document.getElementById(id)?.focus();
  if (!chat || document.activeElement?.id === id) return;
  chat.listShown.value = true; // the field cannot get the focus while the list is hidden
  requestAnimationFrame(() => document.getElementById(id)?.focus());
}

function askWhy(chat: Chat): void {
  const answer = chat.open.value?.messages.value.findLast((message) => message.role === "assistant");
  if (answer) chat.why.value = answer;
}
