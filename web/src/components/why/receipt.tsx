/** The complete prompt of an answer with its tokens, the model calls, and their verification. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, messageOf } from "@breadcrumbs/client";
import { speakerOf, wordsOf } from "../../lib/contexts";
import { number, plural } from "../../lib/format";
import { receipts, type PromptItem, type Receipt, type ReceiptCall, type Verification } from "../../lib/receipts";
import { Icon } from "../icons";
import { JsonView } from "../json";

interface Props {
  answer: string;
  /** Whether to list the items, because no explanation of a context above lists them. */
  withItems: boolean;
  onLoad: () => void;
}

/** Shows nothing for an answer without a receipt. */
export function ReceiptView({ answer, withItems, onLoad }: Props) {
  const [receipt, setReceipt] = useState<Receipt>();
  const [problem, setProblem] = useState<string>();

  useEffect(() => {
    const abort = new AbortController();
    setReceipt(undefined);
    setProblem(undefined);
    receipts
      .get(answer, false, abort.signal)
      .then((loaded) => {
        setReceipt(loaded);
        onLoad();
      })
      .catch((error: unknown) => {
        if (abort.signal.aborted || (error instanceof ApiError && error.status === 404)) return;
        setProblem(messageOf(error));
      });
    return () => abort.abort();
  }, [answer]);

  if (problem !== undefined) {
    return (
      <p class="notice bad" role="alert">
        <Icon name="alert" /> {problem}
      </p>
    );
  }
  if (receipt === undefined) return null;
  return (
    <section class="receipt" aria-labelledby="why-prompt">
      <h3 id="why-prompt">Complete prompt</h3>
      <Tokens receipt={receipt} />
      <Setup receipt={receipt} />
      {withItems && <Items items={receipt.prompt?.items ?? []} />}
      <Calls receipt={receipt} />
      {(receipt.missing ?? []).map((missing) => (
        <p key={missing.reason} class="notice warn">
          <Icon name="alert" /> {missing.reason}
        </p>
      ))}
      <Verify answer={answer} />
    </section>
  );
}

function Tokens({ receipt }: { receipt: Receipt }) {
  const tokens = receipt.tokens;
  if (tokens === undefined) return null;
  const rows: [string, number][] = [
    ["System prompt", tokens.system_prompt],
    [toolsLabel(receipt), tokens.tools],
    ["Items", tokens.items],
  ];
  return (
    <table class="receipt-tokens small">
      <tbody>
        {rows.map(([label, count]) => (
          <tr key={label}>
            <th scope="row">{label}</th>
            <td>{plural(count, "token")}</td>
          </tr>
        ))}
        <tr class="receipt-total">
          <th scope="row">Total</th>
          <td>{plural(tokens.total, "token")}</td>
        </tr>
        <tr>
          <th scope="row">Window of the model</th>
          <td>
            {tokens.window === undefined
              ? "unknown"
              : `${number(tokens.window)} tokens, ${share(tokens.total, tokens.window)} used`}
          </td>
        </tr>
      </tbody>
    </table>
  );
}

function toolsLabel(receipt: Receipt): string {
  const tools = receipt.prompt?.tools;
  return tools === undefined ? "Tools" : plural(tools.length, "tool");
}

function share(part: number, whole: number): string {
  const percent = (100 * part) / whole;
  return percent < 1 ? "under 1 %" : `${Math.round(percent)} %`;
}

function Setup({ receipt }: { receipt: Receipt }) {
  const prompt = receipt.prompt;
  if (prompt === undefined) return null;
  if (prompt.setup_hidden) {
    return <p class="small soft">Your token may not read the system prompt and the tools.</p>;
  }
  return (
    <>
      {prompt.system_prompt ? (
        <details class="receipt-system">
          <summary>System prompt</summary>
          <p class="why-text">{prompt.system_prompt}</p>
        </details>
      ) : null}
      {prompt.tools !== undefined && prompt.tools.length > 0 && (
        <details class="receipt-tools">
          <summary>
            Tools <span class="badge">{number(prompt.tools.length)}</span>
          </summary>
          {prompt.tools.map((tool) => (
            <div key={tool.function.name}>
              <p class="small">
                <span class="mono">{tool.function.name}</span>{" "}
                <span class="soft">{tool.function.description}</span>
              </p>
              <JsonView value={{ ...tool.function }} label={`Schema of ${tool.function.name}`} />
            </div>
          ))}
        </details>
      )}
    </>
  );
}

function Items({ items }: { items: readonly PromptItem[] }) {
  if (items.length === 0) return null;
  return (
    <details class="receipt-items">
      <summary>
        Items <span class="badge">{number(items.length)}</span>
      </summary>
      <ol class="why-items">
        {items.map((item, place) => (
          <li key={item.id ?? place} class={`why-item card part-${item.place}`}>
            <div class="why-line">
              <strong class="why-who">{speakerOf(item)}</strong>
              <span class="grow" />
              <span class="why-tokens small soft">{plural(item.tokens, "token")}</span>
            </div>
            <ItemContent item={item} />
          </li>
        ))}
      </ol>
    </details>
  );
}

function ItemContent({ item }: { item: PromptItem }) {
  if (item.hidden) return <p class="why-text soft">Your token may not read this item.</p>;
  if (item.gone || item.content === undefined) {
    return <p class="why-text soft">This item was deleted or has expired.</p>;
  }
  const { words, rest } = wordsOf(item.content);
  return (
    <>
      {words && <p class="why-text">{words}</p>}
      {Object.keys(rest).length > 0 && <JsonView value={rest} label="Other fields" />}
    </>
  );
}

function Calls({ receipt }: { receipt: Receipt }) {
  if (receipt.kind === "adk") {
    return <p class="small soft">An ADK server answered. It makes its own requests to models.</p>;
  }
  return (
    <details class="receipt-calls">
      <summary>
        {receipt.kind === "function" ? "Function call" : "Model calls"}{" "}
        <span class="badge">{number(receipt.calls.length)}</span>
      </summary>
      <ol>
        {receipt.calls.map((call) => (
          <li key={call.request} class="small">
            {receipt.model !== undefined && <span class="mono">{call.model ?? receipt.model}</span>}
            <span>{facts(call).join(" · ")}</span>
            <span class="mono soft" title="SHA-256 of the request">
              {call.request.slice(0, 16)}
            </span>
          </li>
        ))}
      </ol>
    </details>
  );
}

function facts(call: ReceiptCall): string[] {
  const shown: string[] = [];
  if (call.input_tokens !== undefined) {
    const cached = call.cached_tokens === undefined ? "" : ` (${number(call.cached_tokens)} cached)`;
    shown.push(`${number(call.input_tokens)} tokens in${cached}`);
  }
  if (call.output_tokens !== undefined) {
    const reasoning =
      call.reasoning_tokens === undefined ? "" : ` (${number(call.reasoning_tokens)} for reasoning)`;
    shown.push(`${number(call.output_tokens)} tokens out${reasoning}`);
  }
  if (call.first_token_ms !== undefined) shown.push(`first token after ${number(call.first_token_ms)} ms`);
  if (call.duration_ms !== undefined) shown.push(`${number(call.duration_ms)} ms`);
  if (call.attempts > 1) shown.push(`${number(call.attempts)} attempts`);
  if (call.finish_reason !== undefined) shown.push(call.finish_reason);
  return shown;
}

const OUTCOMES: Record<Verification["outcome"], string> = {
  equal: "Equal: the model was sent exactly this prompt.",
  different: "Different: the stored prompt is not the one that the model was sent.",
  "not rebuildable": "The prompt cannot be rebuilt.",
};

function Verify({ answer }: { answer: string }) {
  const [state, setState] = useState<"ready" | "busy" | { result: Verification } | { problem: string }>("ready");
  useEffect(() => setState("ready"), [answer]);
  const verify = () => {
    setState("busy");
    receipts
      .get(answer, true)
      .then(({ verification }) => setState(verification ? { result: verification } : "ready"))
      .catch((error: unknown) => setState({ problem: messageOf(error) }));
  };
  const result = typeof state === "object" && "result" in state ? state.result : undefined;
  return (
    <div class="receipt-verify">
      <button type="button" class="button tiny" disabled={state === "busy"} onClick={verify}>
        Verify
      </button>
      <div class="small" role="status">
        {state === "ready" && <span class="soft">Builds the prompt again and compares it byte by byte.</span>}
        {result === undefined
          ? typeof state === "object" && "problem" in state && state.problem
          : OUTCOMES[result.outcome]}
        {result?.edited && <p>The text was edited since. The proof is about the first version.</p>}
        {result?.difference && (
          <p>
            {result.difference.where}: {result.difference.cause}
          </p>
        )}
        {(result?.missing ?? []).map((missing) => (
          <p key={missing.reason}>{missing.reason}</p>
        ))}
      </div>
    </div>
  );
}
