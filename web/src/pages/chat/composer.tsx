/** Input for messages. Drafts are stored per session and survive a reload. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../../components/icons";
import { attempt } from "../../components/toast";
import { confined, lacking } from "../../lib/credential";
import { isTouchOnly, submitsText } from "../../lib/touch";
import { AnsweredBy } from "./agent-picker";
import type { Chat } from "./chat";
import type { Conversation } from "./conversation";
import { draft, keepDraft } from "./drafts";

const MAX_HEIGHT_PX = 220;

export function Composer({ chat, conversation }: { chat: Chat; conversation: Conversation | null }) {
  const place = conversation?.id ?? "";
  const field = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(() => draft(place));
  const [stopping, setStopping] = useState(false);
  const session = conversation === null ? undefined : chat.list.get(conversation.id);
  const paused = session?.active === false;
  const refused = lacking("emitter") ?? (conversation === null ? confined() : undefined);
  const busy = conversation !== null && conversation.progress.value.size > 0 && !paused;

  useEffect(() => {
    // No focus on touch-only devices: the on-screen keyboard would cover the conversation.
    if (!isTouchOnly() && !chat.isBrowsing) field.current?.focus();
    chat.isBrowsing = false;
  }, []);
  useEffect(() => setStopping(false), [busy]);
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(MAX_HEIGHT_PX, element.scrollHeight)}px`;
  }, [text]);

  const change = (now: string) => {
    setText(now);
    keepDraft(place, now);
  };
  const send = () => {
    if (!text.trim() || refused !== undefined) return;
    change("");
    chat.say(text.trim());
  };
  const stop = async () => {
    if (!conversation) return;
    setStopping(true);
    await attempt("Stopping failed", () => conversation.stop());
    setStopping(false);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (submitsText(event)) {
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
          placeholder={refused ?? (busy ? "Write another message" : "Write a message")}
          disabled={refused !== undefined}
          value={text}
          onInput={(event) => change(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          enterkeyhint={isTouchOnly() ? "enter" : "send"}
        />
        {busy && (
          <button
            type="button"
            class="button square stop"
            aria-label="Stop answer"
            title="Stop answer"
            disabled={stopping || refused !== undefined}
            onClick={() => void stop()}
          >
            <Icon name="stop" />
          </button>
        )}
        <button type="submit" class="button main square" aria-label="Send" title={refused ?? "Send"} disabled={!text.trim() || refused !== undefined}>
          <Icon name="send" />
        </button>
      </div>
      <AnsweredBy session={session} />
    </form>
  );
}
