/** Dead letters: events that failed every retry. */

import { useState } from "preact/hooks";
import { ApiError } from "@breadcrumbs/client";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { dayName, plural, time } from "../../lib/format";
import { href } from "../../lib/router";
import { operations, type DeadLetter } from "./overview";

interface LettersProps {
  letters: DeadLetter[] | undefined;
  /** Error of the last load, or empty. */
  problem: string;
  onChange: () => void;
}

const PAGE = 20;

export function Letters({ letters, problem, onChange }: LettersProps) {
  const [busy, setBusy] = useState<ReadonlySet<string>>(new Set());
  const [most, setMost] = useState(PAGE);

  const act = async (chosen: readonly DeadLetter[], action: (id: string) => Promise<unknown>, failure: string, done: string) => {
    setBusy((before) => new Set([...before, ...chosen.map((one) => one.id)]));
    let count = 0;
    for (const letter of chosen) {
      const went = await attempt(failure, async () => {
        try {
          await action(letter.id);
          return true;
        } catch (error) {
          // Another user has handled it. It leaves the list either way.
          if (error instanceof ApiError && error.status === 404) return false;
          throw error;
        }
      });
      if (went === undefined) break; // the rest would fail too
      if (went) count += 1;
    }
    if (count > 0) toast(`${plural(count, "dead letter")} ${done}`);
    setBusy(new Set());
    onChange();
  };

  const retry = (chosen: readonly DeadLetter[]) => act(chosen, operations.retry, "Retry failed", "queued for retry");
  const discard = async (chosen: readonly DeadLetter[]) => {
    const sure = await confirmed({
      title: chosen.length === 1 ? "Delete this dead letter?" : `Delete ${plural(chosen.length, "dead letter")}?`,
      text: "The message is kept, but it will not be retried.",
      action: "Delete",
      danger: true,
    });
    if (sure) await act(chosen, operations.discard, "Deleting failed", "deleted");
  };

  if (problem) {
    return (
      <p class="notice bad" role="alert">
        <Icon name="alert" /> Dead letters could not be loaded. {problem} Retrying every few seconds.
      </p>
    );
  }
  if (!letters) return <p class="soft">Loading …</p>;
  if (letters.length === 0) {
    return (
      <p class="ops-fine">
        <Icon name="check" /> No dead letters.
      </p>
    );
  }
  return (
    <>
      {letters.length > 1 && (
        <div class="ops-letter-actions">
          <button type="button" class="button tiny" disabled={busy.size > 0} onClick={() => retry(letters)}>
            <Icon name="retry" /> Retry all {letters.length}
          </button>
          <button type="button" class="button tiny danger" disabled={busy.size > 0} onClick={() => discard(letters)}>
            <Icon name="trash" /> Delete all
          </button>
        </div>
      )}
      <ul class="ops-letters">
        {letters.slice(0, most).map((letter) => (
          <li key={letter.id} class="ops-letter">
            <div class="grow">
              <p class="ops-letter-error">{letter.last_error}</p>
              <p class="soft small">
                <span class="badge">{letter.kind}</span> {plural(letter.attempts, "attempt")} ·{" "}
                <Time iso={letter.created_at}>{`${dayName(letter.created_at)}, ${time(letter.created_at)}`}</Time>
                {" · "}
                <a href={href("board", [letter.breadcrumb_id], { version: String(letter.version) })}>breadcrumb</a>
                {letter.session_id !== undefined && (
                  <>
                    {" · session "}
                    <a href={href("chat", [letter.session_id])}>{letter.session_id}</a>
                  </>
                )}
              </p>
            </div>
            <div class="ops-letter-actions">
              <button type="button" class="button tiny" disabled={busy.has(letter.id)} onClick={() => retry([letter])}>
                <Icon name="retry" /> Retry
              </button>
              <button
                type="button"
                class="button tiny square danger"
                aria-label="Delete dead letter"
                title="Delete"
                disabled={busy.has(letter.id)}
                onClick={() => discard([letter])}
              >
                <Icon name="trash" />
              </button>
            </div>
          </li>
        ))}
      </ul>
      {letters.length > most && (
        <button type="button" class="button tiny" onClick={() => setMost(most + 100)}>
          Show {plural(letters.length - most, "more", "more")}
        </button>
      )}
    </>
  );
}
