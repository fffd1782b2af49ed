/** What has happened, in the order in which it happened, and where each thing stands on the board. */

import type { Breadcrumb, BreadcrumbEvent } from "@breadcrumbs/client";
import { gist, kindOf, sessionOf, type Kind } from "./kinds";
import { millis } from "./time";

/** One write: a breadcrumb was made, changed or removed. */
export interface Item {
  key: string;
  id: string;
  version: number;
  operation: "created" | "updated" | "deleted";
  kind: Kind;
  schema: string;
  /** Empty: none. */
  session: string;
  tags: readonly string[];
  at: string;
  /** Milliseconds since 1970, with fractions. */
  ms: number;
  text: string;
}

const keyOf = (id: string, version: number, operation: string) =>
  operation === "deleted" ? `${id}:gone` : `${id}:${version}`;

export function fromEvent(event: BreadcrumbEvent): Item | undefined {
  if (!event.breadcrumb_id) return undefined; // of a session, not of a breadcrumb
  const kind = kindOf(event.schema_name, event.tags);
  const operation = event.operation;
  return {
    key: keyOf(event.breadcrumb_id, event.version, operation),
    id: event.breadcrumb_id,
    version: event.version,
    operation,
    kind,
    schema: event.schema_name ?? "",
    session: event.session_id ?? sessionOf(event.tags) ?? "",
    tags: event.tags,
    at: event.updated_at,
    ms: millis(event.updated_at),
    text: (operation !== "deleted" && (gist(kind, event.context) || event.title)) || "",
  };
}

export function fromList(crumb: Breadcrumb): Item {
  const kind = kindOf(crumb.schema_name, crumb.tags);
  const operation = crumb.version === 1 ? "created" : "updated";
  return {
    key: keyOf(crumb.id, crumb.version, operation),
    id: crumb.id,
    version: crumb.version,
    operation,
    kind,
    schema: crumb.schema_name ?? "",
    session: sessionOf(crumb.tags) ?? "",
    tags: crumb.tags,
    at: crumb.updated_at,
    ms: millis(crumb.updated_at),
    text: gist(kind, crumb.context) || crumb.title || "",
  };
}

/** Both together in the order of their times, each once; of two with the same key the one that says more. */
export function merged(known: readonly Item[], more: readonly Item[], most: number): Item[] {
  const byKey = new Map(known.map((item) => [item.key, item]));
  for (const item of more) {
    const before = byKey.get(item.key);
    if (!before || (!before.text && item.text)) byKey.set(item.key, item);
  }
  const all = [...byKey.values()].sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0));
  return all.length > most ? all.slice(all.length - most) : all;
}

/**
 * Which sessions have a lane. A lane keeps its place; a session that becomes active takes the place of one that
 * has been quiet for a while, so that what happens is seen and nothing jumps.
 */
export function chooseLanes(shown: readonly string[], items: readonly Item[], most: number): string[] {
  const last = new Map<string, number>();
  for (const item of items) if (item.session) last.set(item.session, item.ms);
  const lanes = shown.filter((session) => last.has(session));
  const byActivity = [...last].sort((a, b) => b[1] - a[1]);
  if (lanes.length > most) {
    const active = byActivity.map(([session]) => session).filter((session) => lanes.includes(session));
    const keep = new Set(active.slice(0, most));
    return lanes.filter((session) => keep.has(session));
  }
  for (const [session, at] of byActivity) {
    if (lanes.includes(session)) continue;
    if (lanes.length < most) {
      lanes.push(session);
      continue;
    }
    const quiet = lanes.reduce((a, b) => ((last.get(a) ?? 0) <= (last.get(b) ?? 0) ? a : b));
    if (at - (last.get(quiet) ?? 0) < QUIET_MS) break;
    lanes[lanes.indexOf(quiet)] = session;
  }
  return lanes;
}

const QUIET_MS = 4_000;

export interface Row {
  key: string;
  top: number;
  height: number;
  at: string;
  ms: number;
  /** By lane. */
  cells: (Item | undefined)[];
  /** Milliseconds since the row before it, where they are worth a line. */
  pause?: number;
  /** The same where both are in one second. */
  since?: number;
}

export const ROW_HEIGHT = 60;
export const PAUSE_HEIGHT = 30;
const LONG_PAUSE = 60_000;
/** What happens in two lanes within this time may stand side by side. */
const SAME_TIME = 400;

/** Every item in its lane, one below the other in time. */
export function rowsOf(items: readonly Item[], lanes: readonly string[]): Row[] {
  const place = new Map(lanes.map((session, index) => [session, index]));
  const rows: Row[] = [];
  let top = 0;
  let last: Row | undefined;
  let lastMs = 0;
  for (const item of items) {
    const column = place.get(item.session);
    if (column === undefined) continue;
    if (last && last.cells[column] === undefined && item.ms - last.ms <= SAME_TIME) {
      last.cells[column] = item;
      lastMs = Math.max(lastMs, item.ms);
      continue;
    }
    const before = last;
    const pause = last && item.ms - lastMs >= LONG_PAUSE ? item.ms - lastMs : undefined;
    const height = ROW_HEIGHT + (pause === undefined ? 0 : PAUSE_HEIGHT);
    const cells = new Array<Item | undefined>(lanes.length).fill(undefined);
    last = { key: item.key, top, height, at: item.at, ms: item.ms, cells };
    if (pause !== undefined) last.pause = pause;
    else if (before && Math.floor(before.ms / 1000) === Math.floor(item.ms / 1000)) last.since = item.ms - before.ms;
    last.cells[column] = item;
    rows.push(last);
    top += height;
    lastMs = item.ms;
  }
  return rows;
}
