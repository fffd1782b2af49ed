/** Parts that the tables of this page share. */

import type { ComponentChildren } from "preact";
import type { Lane } from "./overview";

export function Table({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="ops-table card" role="region" aria-label={label} tabIndex={0}>
      <table>{children}</table>
    </div>
  );
}

/** All lanes as small squares. Those of one worker are filled. */
export function LaneStrip({ lanes, mine }: { lanes: readonly Lane[]; mine: ReadonlySet<number> }) {
  if (lanes.length > 64) return <>{ranges([...mine])}</>;
  return (
    <span class="ops-strip" role="img" aria-label={mine.size ? `lanes ${ranges([...mine])}` : "no lane"}>
      {lanes.map((lane) => (
        <span key={lane.lane} class={mine.has(lane.lane) ? "on" : ""} title={`Lane ${lane.lane}`} />
      ))}
    </span>
  );
}

/** Format numbers as ranges: `0–3, 7`. */
function ranges(numbers: readonly number[]): string {
  const parts: [number, number][] = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && one === last[1] + 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}
