/** Tests the edited config on past turns while it is being edited. */

import { useEffect, useState } from "preact/hooks";
import { messageOf, type Json } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import {
  contexts,
  difference,
  speakerOf,
  type ChangedTurn,
  type Crossing,
  type Line,
  type TestResult,
} from "../../lib/contexts";
import { number, plural, shortened } from "../../lib/format";
import "./past-turns.css";

/** Time without a change of the text before the test starts. */
const DELAY_MS = 700;
const PAGE_TURNS = 200;
/** Turns that are tested without a request of the user. */
const MAX_TURNS = 10_000;
const MAX_LISTED = 100;

interface Progress {
  turns: number;
  changed: number;
  skipped: number;
  /** Turns that could not be tested, by reason. */
  reasons: Record<string, number>;
  total: number;
  tokens: { old: number; new: number };
  prompt: { old: number; new: number };
  repeated: { old: number; new: number };
  crossed: number;
  crossings: Crossing[];
  listed: ChangedTurn[];
  /** Cursor of the next page. Undefined at the end. */
  next: string | undefined;
}

const NOTHING: Progress = {
  turns: 0,
  changed: 0,
  skipped: 0,
  reasons: {},
  total: 0,
  tokens: { old: 0, new: 0 },
  prompt: { old: 0, new: 0 },
  repeated: { old: 0, new: 0 },
  crossed: 0,
  crossings: [],
  listed: [],
  next: undefined,
};

interface PastTurnsProps {
  /** The edited config. Undefined if it is not valid. */
  draft: Json | undefined;
  consumer: string | undefined;
  /** Whether the text differs from the saved one. An unchanged config changes no turn. */
  edited: boolean;
}

export function PastTurns({ draft, consumer, edited }: PastTurnsProps) {
  const [progress, setProgress] = useState<Progress | null>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [limit, setLimit] = useState(MAX_TURNS);
  const wanted = draft !== undefined && consumer !== undefined && edited ? JSON.stringify(draft) : undefined;

  useEffect(() => setLimit(MAX_TURNS), [wanted, consumer]);

  useEffect(() => {
    if (wanted === undefined || consumer === undefined || draft === undefined) {
      setBusy(false);
      if (!edited) setProgress(null);
      return;
    }
    const abort = new AbortController();
    const run = async () => {
      setBusy(true);
      setProblem("");
      let sum = NOTHING;
      do {
        const cursor = sum.next === undefined ? {} : { cursor: sum.next };
        const body = { config: draft, consumer_id: consumer, limit: PAGE_TURNS, ...cursor };
        sum = added(sum, await contexts.test(body, abort.signal));
        if (abort.signal.aborted) return;
        setProgress(sum);
      } while (sum.next !== undefined && sum.turns + sum.skipped < limit);
      setBusy(false);
    };
    const timer = setTimeout(() => {
      run().catch((error: unknown) => {
        if (abort.signal.aborted) return;
        setProblem(messageOf(error));
        setBusy(false);
      });
    }, DELAY_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [wanted, consumer, limit]);

  if (!edited || (!progress && !busy && !problem)) return null;
  return (
    <section class={`past-turns ${draft === undefined ? "stale" : ""}`} aria-label="Past turns">
      {problem && (
        <p class="notice warn" role="alert">
          <Icon name="alert" /> The test on past turns failed: {problem}
        </p>
      )}
      {progress && (
        <>
          <p class="past-turns-sum" role="status">
            {busy && <span class="spinner" aria-hidden="true" />}
            {progress.turns === 0 && !busy ? (
              <span>No past turns to test.</span>
            ) : (
              <span>
                Would have changed <strong>{number(progress.changed)}</strong> of {number(progress.turns)} turns
                {busy && progress.total > progress.turns && <> so far</>}
              </span>
            )}
          </p>
          <Facts progress={progress} />
          {progress.next !== undefined && !busy && (
            <button type="button" class="button small" onClick={() => setLimit(Infinity)}>
              Test all turns
            </button>
          )}
          {progress.crossed > 0 && <Crossings progress={progress} />}
          {progress.listed.length > 0 && draft !== undefined && consumer !== undefined && (
            <details class="past-turns-list">
              <summary>
                Changed turns <span class="badge">{number(progress.changed)}</span>
              </summary>
              <ol>
                {progress.listed.map((turn) => (
                  <TurnLine
                    key={`${turn.context_id} ${turn.context_version}`}
                    turn={turn}
                    config={draft}
                    consumer={consumer}
                  />
                ))}
              </ol>
              {progress.changed > progress.listed.length && (
                <p class="small soft">The first {number(progress.listed.length)} are listed.</p>
              )}
            </details>
          )}
        </>
      )}
    </section>
  );
}

function added(sum: Progress, page: TestResult): Progress {
  const pair = (one: { old: number; new: number }, other: { old: number; new: number }) => ({
    old: one.old + other.old,
    new: one.new + other.new,
  });
  return {
    turns: sum.turns + page.turns,
    changed: sum.changed + page.changed,
    skipped: sum.skipped + Object.values(page.skipped).reduce((one, other) => one + other, 0),
    reasons: summed(sum.reasons, page.skipped),
    total: page.total,
    tokens: pair(sum.tokens, page.tokens),
    prompt: pair(sum.prompt, page.prompt_bytes),
    repeated: pair(sum.repeated, page.repeated_bytes),
    crossed: sum.crossed + page.boundary_crossings,
    crossings: [...sum.crossings, ...page.crossings].slice(0, MAX_LISTED),
    listed: [...sum.listed, ...page.changed_turns].slice(0, MAX_LISTED),
    next: page.next_cursor,
  };
}

function summed(one: Record<string, number>, other: Record<string, number>): Record<string, number> {
  const sum = { ...one };
  for (const [reason, count] of Object.entries(other)) sum[reason] = (sum[reason] ?? 0) + count;
  return sum;
}

function Facts({ progress }: { progress: Progress }) {
  const { tokens, prompt, repeated, reasons } = progress;
  const share = (side: "old" | "new") => Math.round((100 * repeated[side]) / Math.max(1, prompt[side]));
  const change = tokens.old > 0 ? Math.round((100 * (tokens.new - tokens.old)) / tokens.old) : 0;
  return (
    <p class="small soft past-turns-facts">
      {tokens.old > 0 && (
        <span>
          {number(tokens.old)} → {number(tokens.new)} tokens ({change > 0 ? "+" : ""}
          {change} %)
        </span>
      )}
      {prompt.old > 0 && (
        <span title="Bytes of each prompt that repeat the beginning of the previous prompt">
          repeats the previous prompt {share("old")} % → {share("new")} %
        </span>
      )}
      {Object.entries(reasons).map(([reason, count]) => (
        <span key={reason}>
          {plural(count, "turn")} not tested: {reason}
        </span>
      ))}
    </p>
  );
}

function Crossings({ progress }: { progress: Progress }) {
  return (
    <details class="notice warn past-turns-crossings">
      <summary>
        <Icon name="alert" /> {plural(progress.crossed, "item")} would newly cross a session or user boundary
      </summary>
      <ul>
        {progress.crossings.slice(0, 10).map((one, place) => (
          <li key={place} class="small">
            <span class="mono">{one.source}</span>: {one.boundary} {shortened(one.origin, 40)} → session{" "}
            {shortened(one.session_id ?? "none", 40)}
          </li>
        ))}
      </ul>
    </details>
  );
}

interface TurnLineProps {
  turn: ChangedTurn;
  config: Json;
  consumer: string;
}

function TurnLine({ turn, config, consumer }: TurnLineProps) {
  const [open, setOpen] = useState(false);
  const [lines, setLines] = useState<Line[] | null>(null);
  const [problem, setProblem] = useState("");

  useEffect(() => {
    if (!open || turn.session_id === null) return;
    const abort = new AbortController();
    const request = { session_id: turn.session_id, trigger_id: turn.trigger_id, consumer_id: consumer, config };
    Promise.all([
      contexts.explain(turn.context_id, turn.context_version, abort.signal, false),
      contexts.preview(request, abort.signal),
    ])
      .then(([before, after]) => setLines(difference(before, after)))
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setProblem(messageOf(error));
      });
    return () => abort.abort();
  }, [open]);

  const [old, now] = turn.tokens;
  return (
    <li>
      <button type="button" class="button bare past-turn" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class="past-turn-session">{shortened(turn.session_id ?? "", 40)}</span>
        <span class="past-turn-facts">
          {turn.added.length > 0 && <span class="badge good">+{number(turn.added.length)}</span>}
          {turn.removed.length > 0 && <span class="badge bad">−{number(turn.removed.length)}</span>}
          <span class="soft">
            {number(old ?? 0)} → {number(now ?? 0)} tokens
          </span>
        </span>
      </button>
      {problem && <p class="notice warn">{problem}</p>}
      {open && !lines && !problem && <span class="spinner" role="status" aria-label="Loading …" />}
      {open && lines && <SideBySide lines={lines} />}
    </li>
  );
}

function SideBySide({ lines }: { lines: Line[] }) {
  const words = (line: Line) => `${speakerOf(line.item)} ${line.item.excerpt || line.item.title || ""}`;
  return (
    <table class="past-diff">
      <thead>
        <tr>
          <th scope="col">As it was</th>
          <th scope="col">With this config</th>
        </tr>
      </thead>
      <tbody>
        {lines.map((line, place) => (
          <tr key={place} data-change={line.change}>
            <td class={line.change === "out" ? "removed" : ""}>{line.change !== "in" && words(line)}</td>
            <td class={line.change === "in" ? "added" : ""}>{line.change !== "out" && words(line)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
