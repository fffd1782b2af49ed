/** A tool call, collapsed. Input and output are shown as JSON. */

import type { Json } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { JsonView } from "../../components/json";
import { duration, shortened } from "../../lib/format";
import type { ToolUse } from "./message";

export function ToolCall({ use, running }: { use: ToolUse; running: boolean }) {
  const input = use.request?.context["input"];
  const response = use.response?.context;
  const failed = response?.["status"] === "error" || response?.["status"] === "unknown";
  const took = response?.["execution_time_ms"];
  // After a crash it can be unknown whether a tool has had its effect.
  const unknown = response?.["status"] === "unknown";
  const waiting = use.request?.context["external"] === true ? "waiting" : "running";
  const status = response ? (unknown ? "unknown outcome" : failed ? "failed" : "done") : running ? waiting : "no result";
  return (
    <details class="tool-call">
      <summary>
        <Icon name="chevron" />
        <Icon name="tool" />
        <span class="mono tool-name">{use.name}</span>
        <span class="tool-brief mono">{brief(input)}</span>
        <span class={`badge ${response ? (failed ? "bad" : "good") : running ? "info" : ""}`}>{status}</span>
        {typeof took === "number" && took > 0 && <span class="soft small">{duration(took)}</span>}
      </summary>
      <div class="tool-body">
        {input !== undefined && (
          <>
            <h3 class="label">Input</h3>
            <JsonView value={input} label={`Input of ${use.name}`} />
          </>
        )}
        {response && (
          <>
            <h3 class="label">{failed ? "Error" : "Output"}</h3>
            <JsonView
              value={(failed ? response["error"] : response["output"]) ?? null}
              label={`Result of ${use.name}`}
            />
          </>
        )}
      </div>
    </details>
  );
}

function brief(input: Json | undefined): string {
  if (input === undefined || input === null) return "";
  if (typeof input !== "object" || Array.isArray(input)) return shortened(JSON.stringify(input), 60);
  const pairs = Object.entries(input).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  return shortened(pairs.join(", "), 60);
}
