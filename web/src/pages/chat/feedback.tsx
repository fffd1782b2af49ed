/** Thumbs up and down below an answer, with a box for a note. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal, type Signal } from "@preact/signals";
import { MAX_NOTE_LENGTH, type Feedback, type Message, type Rating } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { attempt } from "../../components/toast";
import { lacking } from "../../lib/credential";
import { isTouchOnly, submitsText } from "../../lib/touch";
import type { SessionFeedback } from "./session-feedback";
import "./feedback.css";

interface Props {
  feedback: SessionFeedback;
  message: Message;
  /** Whether the box for the note is open. */
  noting: Signal<boolean>;
}

const LABELS: Record<Rating, string> = { up: "Good answer", down: "Bad answer" };

export function RatingButtons({ feedback, message, noting }: Props) {
  const own = feedback.own.value.get(message.id);
  const busy = useSignal(false);
  const refused = lacking("emitter") ?? lacking("subscriber");
  const press = async (rating: Rating) => {
    busy.value = true;
    await attempt("Saving the feedback failed", async () => {
      if (own?.rating === rating) {
        await feedback.withdraw(message.id);
        noting.value = false;
      } else {
        await feedback.rate(message.id, rating, own?.note);
        noting.value = true;
      }
    });
    busy.value = false;
  };
  return (
    <span class="ratings" role="group" aria-label="Feedback">
      {(["up", "down"] as const).map((rating) => (
        <button
          key={rating}
          type="button"
          class={`button bare tiny square ${own ? "" : "quiet"} rating-${rating}`}
          aria-label={LABELS[rating]}
          aria-pressed={own?.rating === rating}
          title={refused ?? (own?.rating === rating ? "Withdraw feedback" : LABELS[rating])}
          disabled={refused !== undefined || busy.value}
          onClick={() => void press(rating)}
        >
          <Icon name={rating === "up" ? "thumbUp" : "thumbDown"} />
        </button>
      ))}
      {own && !noting.value && (
        <button type="button" class="button bare tiny" disabled={refused !== undefined} onClick={() => (noting.value = true)}>
          {own.note ? "Edit note" : "Add note"}
        </button>
      )}
    </span>
  );
}

export function FeedbackNote({ feedback, message, noting }: Props) {
  const own = feedback.own.value.get(message.id);
  if (!own) return null;
  if (noting.value) return <NoteBox feedback={feedback} own={own} onClose={() => (noting.value = false)} />;
  return own.note ? <p class="feedback-note soft small">Your note: {own.note}</p> : null;
}

function NoteBox({ feedback, own, onClose }: { feedback: SessionFeedback; own: Feedback; onClose: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const busy = useSignal(false);
  const text = useSignal(own.note ?? "");

  useEffect(() => {
    const element = field.current;
    if (!element) return;
    element.scrollIntoView({ block: "nearest" });
    if (!isTouchOnly()) element.focus({ preventScroll: true }); // the screen keyboard would cover the answer
  }, []);

  const save = async () => {
    if (busy.value) return;
    busy.value = true;
    const saved = await attempt("Saving the note failed", async () => {
      await feedback.rate(own.answer_id, own.rating, text.value.trim());
      return true;
    });
    busy.value = false;
    if (saved) onClose();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onClose();
    }
    if (!submitsText(event)) return;
    event.preventDefault();
    void save();
  };

  return (
    <form
      class="feedback-box"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <textarea
        ref={field}
        class="field"
        aria-label="Note on your feedback"
        placeholder={own.rating === "up" ? "What was good? (optional)" : "What was wrong? (optional)"}
        rows={2}
        maxLength={MAX_NOTE_LENGTH}
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="actions">
        <span class="soft small grow">Models never see your feedback.</span>
        <button type="button" class="button tiny" onClick={onClose}>
          Close
        </button>
        <button type="submit" class="button main tiny" disabled={busy.value}>
          Save note
        </button>
      </div>
    </form>
  );
}
