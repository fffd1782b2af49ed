/** Preview of the context with the edited config, compared with the saved config. */

import { useEffect, useState } from "preact/hooks";
import { messageOf, type Json, type Session } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { LeftOuts, Sources } from "../../components/why";
import { hasUnfetched, NotFetched } from "../../components/why/not-fetched";
import { Budget } from "../../components/why/budget";
import { TryAsUser } from "./try-as-user";
import { client } from "../../lib/server";
import {
  contexts,
  difference,
  rankInWords,
  sharesOf,
  speakerOf,
  type Change,
  type Explanation,
  type Line,
} from "../../lib/contexts";
import { ago, number, plural, shortened, time } from "../../lib/format";
import { href } from "../../lib/router";

interface PreviewProps {
  /** The edited config. Undefined if it is not valid. */
  draft: Json | undefined;
  /** Whether `draft` is the active config instead of a text with errors. */
  active: boolean;
  /** The saved config. Undefined if there is none, or if it is not valid. */
  saved: Json | undefined;
  consumer: string | undefined;
  consumers: readonly string[];
  onConsumer: (consumer: string) => void;
  session: string | undefined;
  onSession: (session: string) => void;
}

interface Shown {
  after: Explanation;
  before?: Explanation;
}

export function Preview(props: PreviewProps) {
  const { draft, active, saved, consumer, consumers, onConsumer, session, onSession } = props;
  const [known, setKnown] = useState<Session[] | null>(null);
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [again, setAgain] = useState(0);
  const chosen = session ?? known?.[0]?.id;

  useEffect(() => {
    const abort = new AbortController();
    client.sessions
      .list({ limit: 50 }, abort.signal)
      .then((page) => setKnown(page.sessions))
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setProblem(messageOf(error));
      });
    return () => abort.abort();
  }, [again]);

  const wanted = JSON.stringify([draft, saved]);
  useEffect(() => {
    if (chosen === undefined || draft === undefined || consumer === undefined) {
      setBusy(false);
      return;
    }
    const abort = new AbortController();
    setBusy(true);
    loadPreviews(chosen, draft, saved, consumer, abort.signal)
      .then((found) => {
        setShown(found);
        setProblem("");
        setBusy(false);
      })
      .catch((error: unknown) => {
        if (abort.signal.aborted) return;
        setShown(null);
        setProblem(messageOf(error));
        setBusy(false);
      });
    return () => abort.abort();
  }, [chosen, wanted, consumer, again]);

  return (
    <>
      <div class="preview-head">
        <h2>Preview</h2>
        {busy && <span class="spinner" role="status" aria-label="Loading …" />}
        <span class="grow" />
        <button
          type="button"
          class="button bare square"
          aria-label="Refresh"
          title="Refresh"
          onClick={() => setAgain(again + 1)}
        >
          <Icon name="retry" />
        </button>
      </div>
      <div class="preview-choices">
        <label class="preview-choice">
          <span class="label">Session</span>
          <select
            class="field"
            value={chosen ?? ""}
            disabled={!known?.length && session === undefined}
            onChange={(event) => onSession(event.currentTarget.value)}
          >
            {session !== undefined && !known?.some((one) => one.id === session) && (
              <option value={session}>{session}</option>
            )}
            {known?.map((one) => (
              <option key={one.id} value={one.id}>
                {shortened(one.title ?? one.summary ?? one.id, 48)} · {ago(one.last_active_at)}
              </option>
            ))}
            {known?.length === 0 && session === undefined && <option value="">None yet</option>}
          </select>
        </label>
        {consumers.length > 1 && (
          <label class="preview-choice">
            <span class="label">Consumer</span>
            <select class="field" value={consumer} onChange={(event) => onConsumer(event.currentTarget.value)}>
              {consumers.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
        <TryAsUser />
      </div>
      {active && (
        <p class="notice warn">
          <Icon name="alert" /> This is the preview of the active config, because the text is not valid.
        </p>
      )}
      {draft === undefined && (
        <p class="notice warn">
          <Icon name="alert" /> The config is not valid.
          {shown ? " This is the preview of the last valid text." : ""}
        </p>
      )}
      {known?.length === 0 && session === undefined && (
        <p class="notice">
          <Icon name="chat" />
          <span>
            No sessions yet. <a href={href("chat")}>Send a message in the chat</a> first.
          </span>
        </p>
      )}
      {problem && (
        <p class="notice warn" role="alert">
          <Icon name="alert" /> {problem}
        </p>
      )}
      {shown && <Compared {...shown} stale={draft === undefined} />}
    </>
  );
}

/** Load both previews for the same message, so that all differences come from the edit. */
async function loadPreviews(
  session: string,
  draft: Json,
  saved: Json | undefined,
  consumer: string,
  signal: AbortSignal,
): Promise<Shown> {
  const request = { session_id: session, consumer_id: consumer };
  let before: Explanation | undefined;
  if (saved !== undefined) {
    try {
      before = await contexts.preview({ ...request, config: saved }, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      // The saved config has no trigger in this session, or not this consumer. There is nothing to compare.
    }
  }
  const trigger = before && { trigger_id: before.trigger_id };
  const after = await contexts.preview({ ...request, config: draft, ...trigger }, signal);
  return before ? { after, before } : { after };
}

const MARKS: Record<Change, { mark: string; words: string }> = {
  in: { mark: "+", words: "Added" },
  out: { mark: "−", words: "Removed" },
  changed: { mark: "~", words: "Changed" },
  moved: { mark: "↕", words: "Moved" },
  same: { mark: "", words: "" },
};

function Compared({ after, before, stale }: Shown & { stale: boolean }) {
  const lines: Line[] = before ? difference(before, after) : after.items.map((item) => ({ change: "same", item }));
  const count = (change: Change) => lines.filter((line) => line.change === change).length;
  const touched = count("changed") + count("moved");
  const trigger = after.items.find((item) => item.is_trigger);
  const dropped = new Set(lines.filter((line) => line.change === "out").map((line) => line.item.id));
  const out = after.left_out.filter((one) => !dropped.has(one.id));
  return (
    <div class={`preview ${stale ? "stale" : ""}`}>
      {trigger && (
        <p class="small soft preview-for">
          For the message
          {trigger.created_at !== undefined && <> of {time(trigger.created_at)}</>}:{" "}
          <q>{shortened(trigger.excerpt ?? trigger.title ?? "", 80)}</q>
        </p>
      )}
      <p class="preview-sum" role="status">
        {!before ? (
          <span class="badge">{plural(lines.length, "item")}</span>
        ) : count("same") === lines.length ? (
          <span class="badge">No changes</span>
        ) : (
          <>
            {count("in") > 0 && <span class="badge good">+{number(count("in"))} added</span>}
            {count("out") > 0 && <span class="badge bad">−{number(count("out"))} removed</span>}
            {touched > 0 && <span class="badge info">~{number(touched)} changed</span>}
            <span class="badge">{number(count("same"))} unchanged</span>
          </>
        )}
      </p>
      <Budget
        tokens={after.tokens}
        budget={after.budget}
        shares={sharesOf(after.items)}
        countedBy={after.counted_by}
        {...(before && { before: { tokens: before.tokens, budget: before.budget } })}
      />
      {after.notes.map((note) => (
        <p key={note} class="notice warn">
          <Icon name="alert" /> {note}
        </p>
      ))}
      <ol class="preview-lines" aria-label="Context preview">
        {lines.map((line, place) => (
          <PreviewLine key={`${line.item.id ?? place} ${line.change}`} line={line} />
        ))}
      </ol>
      {(out.length > 0 || hasUnfetched(after)) && (
        <details class="preview-out">
          <summary>
            Left out{" "}
            <span class="badge">
              {number(out.length + after.left_out_besides)}
              {after.sources.some((source) => source.more) && "+"}
            </span>
          </summary>
          <LeftOuts out={out} besides={after.left_out_besides} />
          <NotFetched explained={after} />
        </details>
      )}
      <Sources explained={after} />
    </div>
  );
}

function PreviewLine({ line }: { line: Line }) {
  const { change, item, before } = line;
  const { mark, words } = MARKS[change];
  return (
    <li class={`preview-line ${change} part-${item.place}`} data-change={change}>
      <span class="preview-mark" aria-hidden="true">
        {mark}
      </span>
      <div class="preview-what">
        <p class="preview-text">
          {words && <strong class="preview-word">{words}: </strong>}
          <span class="preview-who">{speakerOf(item)}</span> {item.excerpt || item.title || ""}
        </p>
        <p class="preview-why soft">
          {change === "out" ? (
            <>
              <strong>{line.reason === "not found" ? "no longer found" : line.reason}</strong> ·{" "}
              <span class="mono">{item.source}</span> · {plural(item.tokens, "token")}
            </>
          ) : (
            <>
              {item.is_trigger && (
                <>
                  <strong>being answered</strong> ·{" "}
                </>
              )}
              <span class="mono">{item.source}</span>
              {before && before.source !== item.source && <> (was {before.source})</>} ·{" "}
              {item.number === undefined ? "always included" : rankInWords(item.rank)} ·{" "}
              {before && before.tokens !== item.tokens && <>{number(before.tokens)} → </>}
              {plural(item.tokens, "token")}
              {item.cut && <> · cut to {number(item.cut.kept)} of {number(item.cut.of)} characters</>}
              {item.place !== "conversation" && <> · {item.place === "shared" ? "shared" : "other session"}</>}
            </>
          )}
        </p>
      </div>
    </li>
  );
}
