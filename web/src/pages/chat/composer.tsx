/** Where messages are written. What is not sent yet stays, for each session, also over a reload. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../../components/icons";
import { attempt } from "../../components/toast";
import type { Chat } from "./chat";
import type { Conversation } from "./conversation";

const TALLEST = 220;

export function Composer({ chat, conversation }: { chat: Chat; conversation: Conversation | null }) {
  const place = conversation?.id ?? "";
  const field = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(() => draft(place));
  const [stopping, setStopping] = useState(false);
  const paused = conversation !== null && chat.list.get(conversation.id)?.active === false;
  const busy = conversation !== null && conversation.progress.value.size > 0 && !paused;

  useEffect(() => {
    // A keyboard that slides over the conversation is not what somebody wants who came to read.
    if (matchMedia("(pointer: fine)").matches) field.current?.focus();
  }, []);
  useEffect(() => setStopping(false), [busy]);
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(TALLEST, element.scrollHeight)}px`;
  }, [text]);

  const change = (now: string) => {
    setText(now);
    keepDraft(place, now);
  };
  const send = () => {
    if (!text.trim()) return;
    change("");
    chat.say(text.trim());
  };
  const stop = async () => {
    if (!conversation) return;
    setStopping(true);
    await attempt("It was not stopped", () => conversation.stop());
    setStopping(false);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    // On a phone, Enter is for new lines: the button is right beside it.
    // Safari says 229, and no longer that it composes, for the Enter that ends an input method's word.
    const composing = event.isComposing || event.keyCode === 229;
    const sends = event.key === "Enter" && !event.shiftKey && !composing;
    if (sends && (event.ctrlKey || event.metaKey || matchMedia("(pointer: fine)").matches)) {
      event.preventDefault();
      send();
    }
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="composer-box">
        <textarea
          ref={field}
          id="composer"
          rows={1}
          aria-label="Message"
          placeholder={busy ? "Write on: it waits until the agent is done" : "Write a message"}
          value={text}
          onInput={(event) => change(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          enterkeyhint="enter"
        />
        {busy && (
          <button
            type="button"
            class="button square stop"
            aria-label="Stop the answer"
            title="Stop the answer"
            disabled={stopping}
            onClick={() => void stop()}
          >
            <Icon name="stop" />
          </button>
        )}
        <button type="submit" class="button main square" aria-label="Send" title="Send" disabled={!text.trim()}>
          <Icon name="send" />
        </button>
      </div>
    </form>
  );
}

const key = (place: string) => `crumb.draft.${place}`;

function draft(place: string): string {
  try {
    return localStorage.getItem(key(place)) ?? "";
  } catch {
    return "";
  }
}

function keepDraft(place: string, text: string): void {
  try {
    if (text) localStorage.setItem(key(place), text);
    else localStorage.removeItem(key(place));
  } catch {
    // Storage may be forbidden or full: then it lasts until the page is loaded again.
  }
}
