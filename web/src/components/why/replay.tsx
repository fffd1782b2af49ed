/** Replays an answer with another model or config, and shows both answers side by side. */

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError, messageOf, type Json } from "@breadcrumbs/client";
import { lacking, narrowed } from "../../lib/credential";
import { duration, number, plural } from "../../lib/format";
import { replays, type Offer, type Replay, type ShownAnswer, type ToolCall } from "../../lib/replays";
import { Icon } from "../icons";
import "./replay.css";

interface Props {
  answer: string;
  /** Consumer of the context. Undefined if the agent fetches its own breadcrumbs, which no config changes. */
  consumer: string | undefined;
}

interface Problem {
  text: string;
  details: string[];
}

const MOST_TIMES = 5;

export function ReplayView({ answer, consumer }: Props) {
  const [offer, setOffer] = useState<Offer>();
  const [model, setModel] = useState("");
  const [times, setTimes] = useState(1);
  const [config, setConfig] = useState<string | null>(null);
  const [result, setResult] = useState<Replay>();
  const [problem, setProblem] = useState<Problem>();
  const running = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  const labels = useId();
  const reason =
    lacking("curator") ?? narrowed() ?? (offer?.may_choose === false ? "Replaying requires the role curator." : undefined);

  useEffect(() => {
    void replays.models().then(setOffer, () => undefined); // without a list, the model of the answer is used
    return () => running.current?.abort();
  }, []);

  const run = async () => {
    const abort = new AbortController();
    const changed = parseConfig(config);
    if (changed instanceof Error) {
      setProblem({ text: `The config is not JSON: ${changed.message}`, details: [] });
      return;
    }
    running.current = abort;
    setBusy(true);
    setProblem(undefined);
    setResult(undefined);
    try {
      const wanted = { ...(model && { model }), ...(changed !== undefined && { config: changed }), times };
      setResult(await replays.run(answer, wanted, abort.signal));
    } catch (error) {
      if (!abort.signal.aborted) setProblem(problemOf(error));
    } finally {
      running.current = null;
      setBusy(false);
    }
  };

  return (
    <section class="replay" aria-labelledby="why-replay">
      <h3 id="why-replay">Replay</h3>
      <p class="small soft">
        Calls a model again with the prompt of this answer. Tool calls get the stored responses. Nothing is written.
      </p>
      <div class="replay-form">
        <div>
          <label class="label" for={`${labels}-model`}>
            Model
          </label>
          <select
            id={`${labels}-model`}
            class="field"
            value={model}
            disabled={reason !== undefined}
            onChange={(event) => setModel(event.currentTarget.value)}
          >
            <option value="">Model of the answer</option>
            {(offer?.models ?? []).map((one) => (
              <option key={one.name} value={one.name} disabled={one.problem !== undefined} title={one.problem}>
                {one.model === one.name ? one.name : `${one.name} (${one.model})`}
                {one.problem !== undefined && " – not usable"}
              </option>
            ))}
          </select>
        </div>
        <div>
          <label class="label" for={`${labels}-times`}>
            Times
          </label>
          <select
            id={`${labels}-times`}
            class="field"
            value={times}
            disabled={reason !== undefined}
            onChange={(event) => setTimes(Number(event.currentTarget.value))}
          >
            {Array.from({ length: MOST_TIMES }, (_, index) => (
              <option key={index} value={index + 1}>
                {index + 1}
              </option>
            ))}
          </select>
        </div>
      </div>
      {consumer !== undefined && reason === undefined && (
        <ConfigField consumer={consumer} text={config} onChange={setConfig} />
      )}
      <div class="replay-actions">
        <button
          type="button"
          class="button"
          disabled={busy || reason !== undefined}
          aria-describedby={reason === undefined ? undefined : `${labels}-reason`}
          onClick={() => void run()}
        >
          Replay
        </button>
        {busy && (
          <>
            <span class="soft small" role="status">
              <span class="spinner" aria-hidden="true" /> Waiting for the model …
            </span>
            <button type="button" class="button bare" onClick={() => running.current?.abort()}>
              Stop
            </button>
          </>
        )}
        {reason !== undefined && (
          <span id={`${labels}-reason`} class="small soft">
            {reason}
          </span>
        )}
      </div>
      {problem !== undefined && (
        <div class="notice bad" role="alert">
          <Icon name="alert" />
          <div class="grow">
            <p>{problem.text}</p>
            {problem.details.map((line) => (
              <p key={line} class="small">
                {line}
              </p>
            ))}
          </div>
        </div>
      )}
      {result !== undefined && <Result result={result} />}
    </section>
  );
}

/** Lets the user edit a config for the replay. It starts with the config that is in force. */
function ConfigField({
  consumer,
  text,
  onChange,
}: {
  consumer: string;
  text: string | null;
  onChange: (text: string | null) => void;
}) {
  const id = useId();
  const toggle = async (use: boolean) => {
    if (!use) {
      onChange(null);
      return;
    }
    onChange("");
    try {
      onChange(await replays.configText(consumer));
    } catch {
      // The field starts empty. The user can paste a config.
    }
  };
  return (
    <div class="replay-config">
      <label class="replay-check">
        <input
          type="checkbox"
          checked={text !== null}
          onChange={(event) => void toggle(event.currentTarget.checked)}
        />{" "}
        Use another config
      </label>
      {text !== null && (
        <>
          <label class="unseen" for={id}>
            Config
          </label>
          <textarea
            id={id}
            class="field mono"
            rows={10}
            spellcheck={false}
            value={text}
            onInput={(event) => onChange(event.currentTarget.value)}
          />
        </>
      )}
    </div>
  );
}

function Result({ result }: { result: Replay }) {
  const { original, replays: done } = result;
  const answered = done.filter((one) => one.text !== undefined);
  const same = answered.filter((one) => one.same).length;
  return (
    <div class="replay-result" role="status">
      {result.notes.map((note) => (
        <p key={note} class="notice warn">
          <Icon name="alert" /> {note}
        </p>
      ))}
      {answered.length > 0 && <p class="small">{inWords(answered, same)}</p>}
      <div class="replay-both">
        <Shown label="Original" answer={original} />
        {distinct(done).map(([one, count], place) => (
          <Shown
            key={place}
            label={done.length === 1 ? "Replay" : `Replay, ${number(count)} of ${number(done.length)}`}
            answer={one}
          />
        ))}
      </div>
    </div>
  );
}

function inWords(answered: readonly ShownAnswer[], same: number): string {
  const request = answered.every((one) => one.same_request) ? "Same request" : "Different request";
  if (answered.length === 1) return `${request}, ${same ? "same answer" : "different answer"}.`;
  return `${request}, same answer ${number(same)} of ${number(answered.length)} times.`;
}

/** Return the replays with different texts, and how often each occurred. */
function distinct(done: readonly ShownAnswer[]): [ShownAnswer, number][] {
  const found = new Map<string, [ShownAnswer, number]>();
  for (const one of done) {
    const key = JSON.stringify([one.text, one.error]);
    const [first, count] = found.get(key) ?? [one, 0];
    found.set(key, [first, count + 1]);
  }
  return [...found.values()];
}

function Shown({ label, answer }: { label: string; answer: ShownAnswer }) {
  return (
    <article class="card replay-answer">
      <h4>{label}</h4>
      <p class="small soft">
        <span class="mono">{answer.model}</span>
        <br />
        {figures(answer)}
      </p>
      {(answer.tool_calls ?? []).map((call) => (
        <Tool key={call.step} call={call} />
      ))}
      {answer.error === undefined ? (
        <p class="why-text">{answer.text}</p>
      ) : (
        <p class="notice bad">
          <Icon name="alert" /> {answer.error}
        </p>
      )}
    </article>
  );
}

function Tool({ call }: { call: ToolCall }) {
  return (
    <p class="small">
      Tool <span class="mono">{call.name}</span> <span class="mono soft">{call.arguments.slice(0, 200)}</span>
      {call.result === "missing" && (
        <>
          {" "}
          <span class="badge warn" title="The original turn has no response for this call. The model got an error.">
            no stored response
          </span>
        </>
      )}
    </p>
  );
}

function figures(answer: ShownAnswer): string {
  const { input_tokens: input, output_tokens: output, cached_tokens: cached } = answer;
  const tokens =
    input === undefined
      ? "tokens not reported"
      : `${number(input)}${cached ? ` (${number(cached)} cached)` : ""} + ${plural(output ?? 0, "token")}`;
  const calls = answer.calls > 1 ? `, ${plural(answer.calls, "call")}` : "";
  const time = answer.duration_ms < 1 ? "under 1 ms" : duration(answer.duration_ms);
  const cost = answer.cost === undefined ? "" : `, cost ${answer.cost.toPrecision(2)}`;
  return `${tokens}${cost}, ${time}${calls}`;
}

function parseConfig(text: string | null): Json | undefined | Error {
  if (text === null) return undefined;
  try {
    return JSON.parse(text) as Json;
  } catch (error) {
    return error instanceof Error ? error : new Error("invalid");
  }
}

function problemOf(error: unknown): Problem {
  const missing = error instanceof ApiError ? error.problem?.["missing"] : undefined;
  const reasons = Array.isArray(missing)
    ? missing.map((one) => (one && typeof one === "object" && !Array.isArray(one) ? String(one["reason"]) : ""))
    : [];
  const invalid = (error instanceof ApiError ? (error.problem?.errors ?? []) : []).map(
    ({ where, message }) => `${where}: ${message}`,
  );
  const text = messageOf(error);
  return { text, details: [...invalid, ...reasons].filter((reason) => reason && reason !== text) };
}
