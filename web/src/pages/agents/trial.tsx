/** A trial run of a definition: one message, the answer, tool calls and cost. Nothing is stored. */

import { useRef, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Markdown } from "../../components/markdown";
import { lacking, narrowed } from "../../lib/credential";
import { definitions, type Trial as TrialResult, type TriedToolCall } from "../../lib/definitions";
import { duration, number } from "../../lib/format";

/** `text` is a valid definition, or empty. */
export function Trial({ text }: { text: string }) {
  const [message, setMessage] = useState("Hello! What can you do?");
  const [result, setResult] = useState<TrialResult | null>(null);
  const [problem, setProblem] = useState("");
  const running = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  const refused = narrowed() ?? lacking("curator");

  const start = async () => {
    if (busy || !text || !message.trim() || refused !== undefined) return;
    const abort = (running.current = new AbortController());
    setBusy(true);
    setProblem("");
    try {
      setResult(await definitions.try(text, message, abort.signal));
    } catch (error) {
      setResult(null);
      if (!abort.signal.aborted) setProblem(messageOf(error));
    }
    setBusy(false);
  };

  return (
    <div class="agents-trial card">
      <h3>Trial run</h3>
      <p class="small soft">
        Calls the model with this definition and your message. There is no session, and nothing is stored. Only built-in
        tools run.
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void start();
        }}
      >
        <label>
          <span class="unseen">Message for the trial</span>
          <textarea
            class="field"
            rows={3}
            value={message}
            maxLength={100_000}
            onInput={(event) => setMessage(event.currentTarget.value)}
          />
        </label>
        <div class="workbench-actions">
          {busy ? (
            <button type="button" class="button" onClick={() => running.current?.abort()}>
              <Icon name="stop" /> Stop
            </button>
          ) : (
            <button
              type="submit"
              class="button main"
              disabled={!text || !message.trim() || refused !== undefined}
              title={refused ?? (text ? undefined : "Correct the errors of the definition first")}
            >
              <Icon name="play" /> Try
            </button>
          )}
        </div>
      </form>
      <div aria-live="polite" aria-busy={busy}>
        {problem && (
          <p class="notice bad">
            <Icon name="alert" /> {problem}
          </p>
        )}
        {result && <Result result={result} />}
      </div>
    </div>
  );
}

function Result({ result }: { result: TrialResult }) {
  const tokens = (result.input_tokens ?? 0) + (result.output_tokens ?? 0);
  return (
    <div class="agents-result">
      {result.tool_calls.map((call, place) => (
        <ToolCall key={place} call={call} />
      ))}
      {result.error !== undefined && (
        <p class="notice bad">
          <Icon name="alert" /> {result.error}
        </p>
      )}
      {result.answer !== undefined && <Markdown text={result.answer} />}
      <p class="small soft">
        <span class="mono">{result.model}</span>, {number(result.calls)} {result.calls === 1 ? "call" : "calls"},{" "}
        {duration(result.duration_ms)}, {number(tokens)} tokens
        {result.cost !== undefined && <>, cost {result.cost.toPrecision(3)}</>}
      </p>
    </div>
  );
}

function ToolCall({ call }: { call: TriedToolCall }) {
  const outcome = call.error ?? (call.ran ? JSON.stringify(call.output) : "not run in a trial");
  return (
    <p class="agents-tool">
      <Icon name="tool" />
      <span class="mono">
        {call.name}({call.arguments})
      </span>
      <span class={call.error === undefined ? "soft" : "agents-bad"}>→ {outcome}</span>
    </p>
  );
}
