/** Graph of a turn and of the turns that its answers trigger, with the time between steps. */

import { useEffect, useState } from "preact/hooks";
import { messageOf, type Breadcrumb } from "@breadcrumbs/client";
import { duration, plural, shortened } from "../../lib/format";
import { KINDS } from "./kinds";
import { loadTurn, originOf, type Branch, type Step, type TurnView } from "./turn";

interface GraphProps {
  crumb: Breadcrumb;
  /** Id of the message, if it is not the trigger of the breadcrumb. Older versions of a context have another one. */
  origin?: string;
  /** Changes with every event that may belong to the turn. */
  tick: number;
  onOpen: (id: string, version?: number) => void;
}

export function TurnGraph({ crumb, origin, tick, onOpen }: GraphProps) {
  const id = origin ?? originOf(crumb);
  const [turn, setTurn] = useState<TurnView>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    setProblem("");
    loadTurn(crumb, id, abort.signal).then(setTurn, (error: unknown) => {
      if (!abort.signal.aborted) setProblem(messageOf(error));
    });
    return () => abort.abort();
  }, [crumb, id, tick]);
  if (problem) return <p class="notice bad">{problem}</p>;
  if (!turn || turn.originId !== id) return <p class="soft">Loading …</p>;
  return (
    <div class="turn">
      <p class="turn-sum">{summary(turn)}</p>
      <Picture turn={turn} here={crumb.id} onOpen={onOpen} />
      <Steps turn={turn} here={crumb.id} onOpen={onOpen} />
    </div>
  );
}

function total(turn: TurnView): number | undefined {
  const start = turn.origin?.ms;
  const ends = turn.branches.flatMap((branch) => branch.steps.flatMap((step) => step.ms ?? []));
  return start === undefined || ends.length === 0 ? undefined : Math.max(...ends) - start;
}

function summary(turn: TurnView): string {
  const took = total(turn);
  const steps = turn.branches.flatMap((branch) => branch.steps);
  if (steps.length === 0) return "No steps yet.";
  const tools = steps.filter((step) => step.kind === "request").length;
  const last = steps.reduce((a, b) => ((a.ms ?? 0) >= (b.ms ?? 0) ? a : b));
  const words = last.kind === "answer" ? "Answered" : last.kind === "error" ? "Failed" : "In progress";
  return [
    took === undefined ? words : `${words} ${last.kind === "answer" || last.kind === "error" ? "after" : "for"} ${duration(took)}`,
    ...(tools ? [plural(tools, "tool call")] : []),
    ...(turn.branches.length > 1 ? [plural(turn.branches.length, "agent")] : []),
  ].join(" · ");
}

// --- Graph ------------------------------------------------------------------------------------------------

const HEIGHT = 50;
const BETWEEN = 40;
const MARGIN = 6;
const APART = 16;

interface Node {
  step: Step | undefined;
  x: number;
  y: number;
  key: string;
  label: string;
  text: string;
  kind: string;
}

interface Edge {
  from: Node;
  to: Node;
  ms: number | undefined;
  share: number;
}

function drawn(turn: TurnView): { nodes: Node[]; edges: Edge[]; width: number; height: number; node: number } {
  const columns = Math.max(1, turn.branches.length);
  const node = columns === 1 ? 330 : columns === 2 ? 200 : 180;
  const width = columns * node + (columns - 1) * APART + 2 * MARGIN;
  const whole = total(turn) ?? 0;
  const nodes: Node[] = [];
  const edges: Edge[] = [];
  const put = (step: Step | undefined, x: number, row: number, more: Partial<Node> = {}): Node => {
    const made: Node = {
      step,
      x,
      y: MARGIN + row * (HEIGHT + BETWEEN),
      key: step?.key ?? `${x}.${row}`,
      label: step ? KINDS[step.kind].name : "",
      text: step?.text ?? "",
      kind: step?.kind ?? "waiting",
      ...more,
    };
    nodes.push(made);
    return made;
  };
  const connect = (from: Node, to: Node) => {
    const ms = from.step?.ms === undefined || to.step?.ms === undefined ? undefined : to.step.ms - from.step.ms;
    edges.push({ from, to, ms, share: ms === undefined || whole === 0 ? 0 : ms / whole });
  };
  const top = put(turn.origin, (width - node) / 2, 0, turn.origin ? {} : { label: "Message", text: "no longer stored", kind: "gone" });
  let rows = 1;
  const branches: Branch[] = turn.branches.length > 0 ? turn.branches : [{ name: "", trigger: "", steps: [], ended: false }];
  const placed = new Map<string, { node: Node; row: number }>();
  branches.forEach((branch, column) => {
    const x = MARGIN + column * (node + APART);
    // An agent that another one triggered continues below the answer of that agent.
    const parent = placed.get(branch.trigger) ?? { node: top, row: 0 };
    let last = parent.node;
    branch.steps.forEach((step, at) => {
      const next = put(step, x, parent.row + at + 1);
      connect(last, next);
      last = next;
      placed.set(step.id, { node: next, row: parent.row + at + 1 });
    });
    let used = parent.row + branch.steps.length + 1;
    if (!branch.ended) {
      const waiting = put(undefined, x, used, { label: "No answer yet", text: branch.name, kind: "waiting" });
      connect(last, waiting);
      used += 1;
    }
    rows = Math.max(rows, used);
  });
  return { nodes, edges, width, height: rows * (HEIGHT + BETWEEN) - BETWEEN + 2 * MARGIN, node };
}

function Picture({ turn, here, onOpen }: { turn: TurnView; here: string; onOpen: GraphProps["onOpen"] }) {
  const { nodes, edges, width, height, node } = drawn(turn);
  const start = turn.origin?.ms;
  const letters = Math.floor((node - 46) / 6.4);
  return (
    <div class="turn-picture">
      <svg
        viewBox={`0 0 ${width} ${height}`}
        width={width}
        height={height}
        role="img"
        aria-label={`Graph of the turn. ${summary(turn)} The steps are listed below.`}
      >
        <defs>
          <marker id="turn-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0.5L7.5 4L0 7.5z" class="turn-tip" />
          </marker>
        </defs>
        {edges.map(({ from, to, ms, share }) => {
          const x1 = from.x + node / 2;
          const x2 = to.x + node / 2;
          const y1 = from.y + HEIGHT;
          const bend = (to.y - y1) / 2;
          const said = ms === undefined ? "" : `+${duration(Math.max(0, ms))}`;
          return (
            <g key={`${from.key} ${to.key}`} class={`turn-edge ${to.kind} ${share > 0.5 && edges.length > 1 ? "slow" : ""}`}>
              <path d={`M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${to.y - bend} ${x2} ${to.y - 2}`} marker-end="url(#turn-arrow)" />
              {said && (
                <text x={x2 + 9} y={to.y - BETWEEN / 2 + 4}>
                  {said}
                </text>
              )}
            </g>
          );
        })}
        {nodes.map(({ step, x, y, key, label, text, kind }) => (
          <g
            key={key}
            class={`turn-node ${kind} ${step?.id === here ? "here" : ""}`}
            transform={`translate(${x} ${y})`}
            onClick={step && (() => onOpen(step.id, step.kind === "context" ? step.version : undefined))}
          >
            <rect width={node} height={HEIGHT} rx="9" class="turn-box" />
            <rect x="6" y="10" width="3.5" height={HEIGHT - 20} rx="1.75" class="turn-side" />
            <text x="18" y="20" class="turn-label">
              {label}
            </text>
            {step?.ms !== undefined && start !== undefined && step.ms > start && (
              <text x={node - 12} y="20" class="turn-at" text-anchor="end">
                {duration(step.ms - start)}
              </text>
            )}
            <text x="18" y="38" class="turn-text">
              {shortened(text, letters)}
            </text>
          </g>
        ))}
      </svg>
    </div>
  );
}

// --- Table of steps ---------------------------------------------------------------------------------------

function Steps({ turn, here, onOpen }: { turn: TurnView; here: string; onOpen: GraphProps["onOpen"] }) {
  const start = turn.origin?.ms;
  const whole = total(turn);
  const rows: { step: Step; before: number | undefined; agent: string }[] = [];
  const times = new Map(turn.branches.flatMap((branch) => branch.steps.map((step) => [step.id, step.ms] as const)));
  for (const branch of turn.branches) {
    let before = times.get(branch.trigger) ?? start;
    for (const step of branch.steps) {
      rows.push({ step, before, agent: branch.name });
      before = step.ms ?? before;
    }
  }
  return (
    <table class="turn-steps">
      <caption class="unseen">Steps of the turn with their times</caption>
      <thead>
        <tr>
          <th scope="col">Step</th>
          <th scope="col">After</th>
          <th scope="col">Duration</th>
          <th scope="col" class="turn-bars">
            <span class="unseen">Time</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {turn.origin && <StepRow step={turn.origin} after="0" took="" here={here} onOpen={onOpen} bar={undefined} />}
        {rows.map(({ step, before, agent }) => {
          const at = step.ms === undefined || start === undefined ? undefined : step.ms - start;
          const took = step.ms === undefined || before === undefined ? undefined : step.ms - before;
          return (
            <StepRow
              key={`${agent} ${step.key}`}
              step={step}
              {...(turn.branches.length > 1 && { agent })}
              after={at === undefined ? "" : duration(Math.max(0, at))}
              took={took === undefined ? "" : duration(Math.max(0, took))}
              here={here}
              onOpen={onOpen}
              bar={at === undefined || took === undefined || !whole ? undefined : [(at - took) / whole, took / whole]}
            />
          );
        })}
      </tbody>
    </table>
  );
}

function StepRow({ step, agent, after, took, here, bar, onOpen }: {
  step: Step;
  agent?: string;
  after: string;
  took: string;
  here: string;
  bar: [number, number] | undefined;
  onOpen: GraphProps["onOpen"];
}) {
  return (
    <tr class={step.id === here ? "here" : ""}>
      <td>
        <button
          type="button"
          class="turn-link"
          aria-current={step.id === here ? "true" : undefined}
          onClick={() => onOpen(step.id, step.kind === "context" ? step.version : undefined)}
        >
          {KINDS[step.kind].name}
          {agent && <span class="soft"> · {agent}</span>}
          {step.text && <span class="unseen">: {step.text}</span>}
        </button>
      </td>
      <td class="turn-number">{after}</td>
      <td class="turn-number">{took}</td>
      <td class="turn-bars">
        {bar && (
          <svg viewBox="0 0 100 8" width="100%" height="8" preserveAspectRatio="none" aria-hidden="true">
            <rect x={Math.max(0, Math.min(99, bar[0] * 100))} width={Math.max(1.5, bar[1] * 100)} height="8" class={`turn-bar ${step.kind}`} />
          </svg>
        )}
      </td>
    </tr>
  );
}
