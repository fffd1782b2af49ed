/** Bars of daily values. Days without values are shown as gaps. */

import type { UsageRow } from "../../lib/usage";

interface Part {
  name: string;
  /** A custom property of the style sheet. */
  colour: string;
  value: (row: UsageRow) => number;
}

interface DayBarsProps {
  title: string;
  /** The first day, such as 2026-11-01. The last one is today. */
  from: string;
  rows: readonly UsageRow[];
  /** Values that are stacked. */
  parts: Part[];
  shown: (value: number) => string;
}

const DAY_MS = 86_400_000;
const MAX_LABELS = 8;
const dayText = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

export function DayBars({ title, from, rows, parts, shown }: DayBarsProps) {
  const byDay = new Map(rows.map((row) => [row.day, row]));
  const days: string[] = [];
  for (let time = Date.parse(from); time <= Date.now(); time += DAY_MS) days.push(new Date(time).toISOString().slice(0, 10));
  const sum = (row: UsageRow | undefined) => (row ? parts.reduce((total, part) => total + part.value(row), 0) : 0);
  const highest = Math.max(...days.map((day) => sum(byDay.get(day))), 0);
  const step = Math.ceil(days.length / MAX_LABELS);
  return (
    <figure class="usage-plot card">
      <figcaption>
        <h3>{title}</h3>
        <span class="usage-legend">
          {parts.map(({ name, colour }) => (
            <span key={name}>
              <span class="usage-swatch" style={{ background: `var(${colour})` }} /> {name}
            </span>
          ))}
          <span>highest day {shown(highest)}</span>
        </span>
      </figcaption>
      <div class="usage-bars" role="img" aria-label={`${title}: ${shown(days.reduce((total, day) => total + sum(byDay.get(day)), 0))} in ${days.length} days, highest day ${shown(highest)}.`}>
        {days.map((day) => {
          const row = byDay.get(day);
          return (
            <div key={day} class="usage-day" title={`${dayText.format(new Date(day))}: ${shown(sum(row))}`}>
              {row &&
                highest > 0 &&
                parts.map(({ name, colour, value }) => (
                  <span key={name} style={{ height: `${(100 * value(row)) / highest}%`, background: `var(${colour})` }} />
                ))}
            </div>
          );
        })}
      </div>
      <div class="usage-days" aria-hidden="true">
        {days.filter((_, place) => place % step === 0).map((day) => (
          <span key={day}>{dayText.format(new Date(day))}</span>
        ))}
      </div>
    </figure>
  );
}
