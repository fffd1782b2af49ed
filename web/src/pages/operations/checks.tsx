/** Findings of the checks of `crumb doctor`: problems with advice first, the rest folded. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, messageOf } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { plural, time } from "../../lib/format";
import { operations, type Checks, type Finding } from "./overview";

const INTERVAL_MS = 10_000;

const PROBLEMS = ["error", "warning", "unknown"] as const;
const STATUS: Record<Finding["status"], { label: string; badge: string }> = {
  error: { label: "error", badge: "bad" },
  warning: { label: "warning", badge: "warn" },
  unknown: { label: "not checked", badge: "warn" },
  skipped: { label: "skipped", badge: "" },
  ok: { label: "ok", badge: "good" },
};

export interface ChecksState {
  checks?: Checks;
  /** Error of the last load, or empty. */
  problem: string;
}

/** Make the checks regularly while the page is visible and not paused. */
export function useChecks(paused: boolean): ChecksState {
  const [state, setState] = useState<ChecksState>({ problem: "" });
  useEffect(() => {
    if (paused) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const round = async () => {
      clearTimeout(timer);
      try {
        if (!document.hidden) setState({ checks: await operations.checks(abort.signal), problem: "" });
      } catch (error) {
        if (!abort.signal.aborted) setState({ problem: messageOf(error) });
      }
      if (!abort.signal.aborted) timer = setTimeout(round, INTERVAL_MS);
    };
    void round();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [paused]);
  return state;
}

/** Return the findings that need attention, the worst first. */
export function problemsIn(checks: Checks | undefined): Finding[] {
  return PROBLEMS.flatMap((status) => checks?.findings.filter((one) => one.status === status) ?? []);
}

/** The verdict of the checks and of the notices about lanes, in the words of the badge. */
export function Verdict({ state, notices, problem }: { state: ChecksState; notices: number; problem: unknown }) {
  const replaced = problem instanceof ApiError && problem.problem?.type?.endsWith("#problem-store-replaced");
  if (problem !== undefined) return <span class="badge bad">{replaced ? "Store replaced" : "Unreachable"}</span>;
  if (!state.checks) return <span class="badge">{state.problem ? "Not checked" : "Checking …"}</span>;
  const count = (status: Finding["status"]) => problemsIn(state.checks).filter((one) => one.status === status).length;
  const errors = count("error");
  const warned = count("warning") + notices;
  const unknown = count("unknown");
  const parts = [
    ...(errors ? [plural(errors, "error")] : []),
    ...(warned ? [plural(warned, "warning")] : []),
    ...(unknown ? [`${unknown} not checked`] : []),
  ];
  return <span class={`badge ${errors ? "bad" : parts.length ? "warn" : "good"}`}>{parts.join(", ") || "Healthy"}</span>;
}

export function Findings({ state, away }: { state: ChecksState; away: boolean }) {
  const { checks, problem } = state;
  if (problem && !away) {
    return (
      <p class="notice warn" role="status">
        <Icon name="alert" /> The checks could not be made. {problem} Retrying every few seconds.
      </p>
    );
  }
  if (!checks) return null;
  const problems = problemsIn(checks);
  const rest = checks.findings.filter((one) => !problems.includes(one));
  return (
    <section class="ops-checks card" aria-label="Checks">
      {problems.length > 0 && (
        <div role="status">
          <ul class="ops-findings">
            {problems.map((one) => (
              <Row key={keyOf(one)} finding={one} />
            ))}
          </ul>
        </div>
      )}
      <details class="ops-passed">
        <summary>
          {problems.length === 0 && <Icon name="check" />}
          {problems.length === 0 ? `All ${plural(rest.length, "check")} passed` : `${plural(rest.length, "other check")} found no problem`}
          <span class="soft small">
            {" "}
            <Time iso={checks.checked_at}>{`at ${time(checks.checked_at)}`}</Time>, as <code>crumb doctor</code> makes them
          </span>
        </summary>
        <ul class="ops-findings">
          {rest.map((one) => (
            <Row key={keyOf(one)} finding={one} />
          ))}
        </ul>
      </details>
    </section>
  );
}

const keyOf = (finding: Finding) => `${finding.id} ${finding.subject ?? ""}`;

function Row({ finding }: { finding: Finding }) {
  const { label, badge } = STATUS[finding.status];
  return (
    <li class="ops-finding">
      <span class={`badge ${badge}`}>{label}</span>
      <div>
        <p>
          <strong>
            {finding.id}
            {finding.subject !== undefined && ` (${finding.subject})`}
          </strong>{" "}
          {finding.message}
        </p>
        {finding.advice !== undefined && <p class="ops-advice">→ {finding.advice}</p>}
      </div>
    </li>
  );
}
