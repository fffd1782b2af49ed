/** A plot over time, in the colours of the page. The last values are shown next to the title. */

import uPlot from "uplot";
import { useEffect, useRef } from "preact/hooks";
import { theme } from "../../lib/theme";
import "uplot/dist/uPlot.min.css";

export interface Line {
  name: string;
  /** A custom property of the style sheet. */
  colour: string;
  values: (number | null)[];
  fill?: boolean;
}

interface PlotProps {
  title: string;
  times: number[];
  lines: Line[];
  /** Formats a value. */
  shown: (value: number) => string;
  /** Minimum of the upper end of the axis, so that noise does not fill the plot. */
  atLeast: number;
}

const HEIGHT = 168;

export function Plot({ title, times, lines, shown, atLeast }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const data = useRef<uPlot.AlignedData>([[]]);
  data.current = [times, ...lines.map((line) => line.values)];
  const look = theme.value;
  const names = lines.map((line) => line.name).join("\n");

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element, lines, shown, atLeast), data.current, element);
    };
    make();
    const watch = new ResizeObserver(() => {
      if (element.clientWidth > 0) plot.current?.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    watch.observe(element);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [look, names]);

  useEffect(() => plot.current?.setData(data.current), [times]);

  const last = lines.map((line) => ({ ...line, value: line.values.findLast((value) => value !== null) }));
  return (
    <figure class="ops-plot card">
      <figcaption>
        <h3>{title}</h3>
        <span class="ops-legend">
          {last.map(({ name, colour, value }) => (
            <span key={name} class="ops-series">
              <span class="ops-swatch" style={{ background: `var(${colour})` }} />
              {name} <b>{value === undefined || value === null ? "–" : shown(value)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div
        ref={place}
        class="ops-canvas"
        role="img"
        aria-label={`${title} over time. Now: ${last
          .map(({ name, value }) => `${name} ${value === undefined || value === null ? "unknown" : shown(value)}`)
          .join(", ")}.`}
      />
    </figure>
  );
}

function options(element: HTMLElement, lines: Line[], shown: (value: number) => string, atLeast: number): uPlot.Options {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), font: `11px ${style.fontFamily}`, ticks: { show: false } };
  return {
    width: Math.max(120, element.clientWidth),
    height: HEIGHT,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { size: 7 },
      // All plots show the cursor at the same time.
      sync: { key: "operations" },
      drag: { x: false, y: false },
    },
    plugins: [tooltip(lines, shown)],
    scales: {
      // At least two minutes. Computed here, because uPlot would show a whole day for a single sample.
      x: {
        range: (plot) => {
          const times = plot.data[0];
          const last = times[times.length - 1] ?? Date.now() / 1000;
          return [Math.min(times[0] ?? last, last - 120), last];
        },
      },
      y: { range: (_plot, _low, high) => [0, Math.max(atLeast, (high ?? 0) * 1.15)] },
    },
    axes: [
      { ...axis, size: 26, space: 70, grid: { show: false }, values: (_plot, splits) => splits.map(clockTime) },
      {
        ...axis,
        size: 58,
        space: 36,
        grid: { stroke: colour("--line"), width: 1 },
        values: (_plot, splits) => splits.map((value) => (value === 0 ? "0" : shown(value))),
      },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.name,
        stroke: colour(line.colour),
        width: 1.75,
        points: { show: false },
        ...(line.fill && { fill: translucent(colour(line.colour)) }),
      })),
    ],
  };
}

function translucent(hex: string): string {
  return /^#[0-9a-f]{6}$/i.test(hex) ? `${hex}22` : "transparent";
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const clockTime = (seconds: number) => clock.format(seconds * 1000);

/** Tooltip with the values at the pointer. */
function tooltip(lines: Line[], shown: (value: number) => string): uPlot.Plugin {
  const box = document.createElement("div");
  box.className = "ops-tip";
  box.hidden = true;
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const at = plot.cursor.idx;
        const time = at === null || at === undefined ? undefined : plot.data[0][at];
        box.hidden = time === undefined || (plot.cursor.left ?? -1) < 0;
        if (box.hidden || time === undefined || at === null || at === undefined) return;
        box.textContent = [
          clockTime(time),
          ...lines.map((line, place) => {
            const value = plot.data[place + 1]?.[at];
            return `${line.name} ${value === null || value === undefined ? "–" : shown(value)}`;
          }),
        ].join("\n");
        const left = plot.cursor.left ?? 0;
        const flipped = left > plot.over.clientWidth / 2;
        box.style.left = flipped ? "auto" : `${left + 10}px`;
        box.style.right = flipped ? `${plot.over.clientWidth - left + 10}px` : "auto";
      },
    },
  };
}
