/** The table of workers, with a button to drain each of them. */

import { useState } from "preact/hooks";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { ago, dayName, plural, roughly, timeWithSeconds } from "../../lib/format";
import { operations, type Facts, type Worker } from "./overview";
import { LaneStrip, Table } from "./tables";

const BADGES = { running: "good", draining: "warn", stopped: "", lost: "bad" } as const;

interface WorkersProps {
  facts: Facts;
  onChange: () => void;
}

export function Workers({ facts, onChange }: WorkersProps) {
  const [busy, setBusy] = useState("");
  const now = Date.parse(facts.at);
  if (facts.workers.length === 0) {
    return <p class="soft">No workers. Start one with crumb up, or with crumb build-contexts and crumb run-agents.</p>;
  }

  const drain = async (worker: Worker) => {
    const sure = await confirmed({ title: `Drain ${worker.name}?`, text: consequences(worker, facts), action: "Drain", danger: true });
    if (!sure) return;
    setBusy(worker.name);
    const done = await attempt("Draining failed", () => operations.drain(worker.name));
    if (done) toast(`${worker.name} is draining`);
    setBusy("");
    onChange();
  };

  return (
    <Table label="All workers">
      <thead>
        <tr>
          <th scope="col">Worker</th>
          <th scope="col">Kind</th>
          <th scope="col">State</th>
          <th scope="col" class="ops-right">Turns</th>
          <th scope="col" class="ops-right">Lanes</th>
          <th scope="col">Lane numbers</th>
          <th scope="col">Agents and models</th>
          <th scope="col" class="ops-right">Uptime</th>
          <th scope="col">Heartbeat</th>
          <th scope="col">
            <span class="unseen">Actions</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {facts.workers.map((worker) => (
          <tr key={`${worker.kind} ${worker.id}`} class={worker.alive ? "" : "ops-ended"}>
            <th scope="row">
              <span class="mono" title={worker.id}>{worker.name}</span>
              {worker.host !== undefined && (
                <span class="soft small ops-line">
                  {worker.host} · pid {worker.pid} · {worker.version}
                </span>
              )}
            </th>
            <td>{worker.kind}</td>
            <td>
              <span class={`badge ${BADGES[worker.state]}`}>{worker.state}</span>
              {worker.ended_at && (
                <span class="soft small ops-line">
                  <Time iso={worker.ended_at}>{`${dayName(worker.ended_at)}, ${timeWithSeconds(worker.ended_at)}`}</Time>
                </span>
              )}
            </td>
            <td class="ops-right">{worker.alive ? (worker.turns ?? "–") : "–"}</td>
            <td class="ops-right">{worker.lanes.length}</td>
            <td>
              <LaneStrip lanes={facts.lanes} mine={new Set(worker.lanes)} />
            </td>
            <td class="ops-names">
              <Names names={worker.agents} more={worker.more_agents} />
              <Names names={worker.models} more={worker.more_models} soft />
            </td>
            <td class="ops-right">
              {worker.alive && worker.started_at ? roughly(Math.max(0, Math.floor((now - Date.parse(worker.started_at)) / 1000))) : "–"}
            </td>
            <td class="soft">{worker.heartbeat_at ? <Time iso={worker.heartbeat_at}>{ago(worker.heartbeat_at, now)}</Time> : "–"}</td>
            <td class="ops-right">
              {worker.state === "running" && worker.version !== undefined && (
                <button
                  type="button"
                  class="button tiny"
                  disabled={busy === worker.name}
                  aria-label={`Drain ${worker.name}`}
                  title="Finish its turns and end"
                  onClick={() => void drain(worker)}
                >
                  <Icon name="stop" /> Drain
                </button>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Names({ names = [], more = 0, soft = false }: { names?: string[] | undefined; more?: number | undefined; soft?: boolean }) {
  if (names.length === 0) return null;
  const text = [...names, ...(more ? [`${more} more`] : [])].join(", ");
  return (
    <span class={`small ops-line ${soft ? "soft" : ""}`} title={text}>
      {text}
    </span>
  );
}

/** Say what a drain does to the workers of a name, and warn if no other worker of a kind is left. */
function consequences(worker: Worker, facts: Facts): string {
  const mine = facts.workers.filter((one) => one.name === worker.name && one.alive);
  const turns = mine.reduce((sum, one) => sum + (one.turns ?? 0), 0);
  const parts = [`It finishes ${turns === 0 ? "its turns" : plural(turns, "turn")}, releases its lanes and ends.`];
  if (mine.length > 1) parts.push(`This ends its workers of kind ${mine.map((one) => one.kind).join(" and ")}.`);
  for (const { kind } of mine) {
    const others = facts.workers.some((one) => one.kind === kind && one.name !== worker.name && one.state === "running");
    parts.push(
      others
        ? `Other workers of kind ${kind} take its lanes.`
        : `It is the last worker of kind ${kind}: events wait until you start another one.`,
    );
  }
  return parts.join(" ");
}
