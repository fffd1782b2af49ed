/** Plots of the stored history: turns and lag of the last hours. They do not depend on how long this page is open. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { duration } from "../../lib/format";
import { isExternal, operations, type Minute } from "./overview";
import { Plot } from "./plot";

const REFRESH_MS = 60_000;
const LAG_COLOURS = ["--accent", "--violet", "--warn", "--info", "--bad"];
const RUNNERS = "agents";

export function History() {
  const [minutes, setMinutes] = useState<readonly Minute[]>();
  const [problem, setProblem] = useState("");

  useEffect(() => {
    const abort = new AbortController();
    const read = async () => {
      try {
        setMinutes(withGaps(await operations.history(abort.signal)));
        setProblem("");
      } catch (error) {
        if (!abort.signal.aborted) setProblem(messageOf(error));
      }
    };
    void read();
    const timer = setInterval(() => void (!document.hidden && read()), REFRESH_MS);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, []);

  const times = useMemo(() => (minutes ?? []).map((one) => Date.parse(one.at) / 1000), [minutes]);
  if (minutes === undefined) return <p class="soft">{problem ? `The history could not be loaded. ${problem}` : "Loading …"}</p>;
  if (minutes.length < 2) return <p class="soft">No history yet. The first minutes are being recorded.</p>;
  const ofRunners = (value: (one: Minute["kinds"][number]) => number | undefined) => minutes.map((minute) => sumOf(minute, value));
  const kinds = [...new Set(minutes.flatMap((minute) => minute.kinds.map((one) => one.kind)))].filter((kind) => !isExternal(kind));
  return (
    <div class="ops-plots ops-history">
      <Plot
        title="Turns, last 6 hours"
        times={times}
        shown={(value) => String(Math.round(value))}
        atLeast={4}
        lines={[
          { name: "answered", colour: "--accent", values: ofRunners((one) => one.answered), fill: true },
          { name: "failed", colour: "--bad", values: ofRunners((one) => one.failed) },
        ]}
      />
      <Plot
        title="Lag, last 6 hours"
        times={times}
        shown={(value) => (value === 0 ? "0" : duration(value))}
        atLeast={3_000}
        lines={kinds.map((kind, place) => ({
          name: kind,
          colour: LAG_COLOURS[place % LAG_COLOURS.length] ?? "--accent",
          values: minutes.map((minute) => minute.kinds.find((one) => one.kind === kind)?.lag_ms ?? null),
        }))}
      />
    </div>
  );
}

/** Add an empty minute after each gap, so that the plots show it as a gap. */
function withGaps(minutes: readonly Minute[]): Minute[] {
  return minutes.flatMap((minute, place) => {
    const next = minutes[place + 1];
    const gap = next && Date.parse(next.at) - Date.parse(minute.at) > 90_000;
    return gap ? [minute, { at: new Date(Date.parse(minute.at) + 60_000).toISOString(), kinds: [] }] : [minute];
  });
}

/** Add up a number of all agent runners. Null if no minute before is known. */
function sumOf(minute: Minute, value: (one: Minute["kinds"][number]) => number | undefined): number | null {
  const known = minute.kinds
    .filter((one) => one.kind.split("/")[0] === RUNNERS)
    .map(value)
    .filter((one) => one !== undefined);
  return known.length ? known.reduce((sum, one) => sum + one, 0) : null;
}
