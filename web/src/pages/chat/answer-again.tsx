/**
 * Edits a message, or asks for another answer. Both fork the session before the message and send the message to the
 * fork, so that the original session keeps its message and its answer.
 */

import { useEffect, useRef } from "preact/hooks";
import { useSignal, type Signal } from "@preact/signals";
import type { Message } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { attempt, toast } from "../../components/toast";
import { confined, lacking } from "../../lib/credential";
import { outboxOf } from "../../lib/outbox";
import { go, href } from "../../lib/router";
import { submitsText } from "../../lib/touch";
import type { Chat } from "./chat";
import { makeFork } from "./make-fork";

/** Fork the open session before a message, open the fork, and send a text there. Return whether that worked. */
async function answerAgain(chat: Chat, message: Message, text: string): Promise<boolean> {
  const id = chat.open.peek()?.id;
  if (id === undefined) return false;
  const made = await attempt("Forking failed", () => makeFork(chat, id, { before_id: message.id }));
  if (!made) return false;
  outboxOf(made.id).say(text);
  go(href("chat", [made.id]));
  toast("This is a fork. The original session is unchanged.");
  return true;
}

const refusal = () => lacking("emitter") ?? confined();

export function EditButton({ editing }: { editing: Signal<boolean> }) {
  const label = "Edit message";
  return (
    <button
      type="button"
      class="button bare tiny square quiet"
      aria-label={label}
      title={refusal() ?? label}
      disabled={refusal() !== undefined}
      onClick={() => (editing.value = true)}
    >
      <Icon name="pencil" />
    </button>
  );
}

export function RegenerateButton({ chat, question }: { chat: Chat; question: Message }) {
  const label = "Answer again in a fork";
  const busy = useSignal(false);
  const run = async () => {
    busy.value = true;
    await answerAgain(chat, question, question.text);
    busy.value = false;
  };
  return (
    <button
      type="button"
      class="button bare tiny square quiet"
      aria-label={label}
      title={refusal() ?? label}
      disabled={busy.value || refusal() !== undefined}
      onClick={() => void run()}
    >
      <Icon name="retry" />
    </button>
  );
}

interface EditorProps {
  chat: Chat;
  message: Message;
  onClose: () => void;
}

export function MessageEditor({ chat, message, onClose }: EditorProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  const busy = useSignal(false);
  const text = useSignal(message.text);
  const isEmpty = text.value.trim() === "";

  useEffect(() => {
    field.current?.focus();
    field.current?.setSelectionRange(message.text.length, message.text.length);
  }, []);

  const send = async () => {
    if (isEmpty || busy.value) return;
    busy.value = true;
    if (await answerAgain(chat, message, text.value.trim())) onClose();
    busy.value = false;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onClose();
    }
    if (!submitsText(event)) return;
    event.preventDefault();
    void send();
  };

  return (
    <form
      class="message-editor"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <textarea
        ref={field}
        class="field"
        aria-label="Edit message"
        rows={Math.min(10, message.text.split("\n").length + 1)}
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <p class="soft small">The edited message is sent in a fork. This session is not changed.</p>
      <div class="actions">
        <button type="button" class="button tiny" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" class="button main tiny" disabled={isEmpty || busy.value}>
          Send in fork
        </button>
      </div>
    </form>
  );
}
