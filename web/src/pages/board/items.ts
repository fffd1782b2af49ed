/** Events of the board in order of time, and their layout in lanes and rows. */

import type { Breadcrumb, BreadcrumbEvent } from "@breadcrumbs/client";
import { gist, kindOf, sessionOf, type Kind } from "./kinds";
import { millis } from "./time";

/** One event: a breadcrumb was created, updated or deleted. */
export interface Item {
  key: string;
  id: string;
  version: number;
  operation: "created" | "updated" | "deleted";
  kind: Kind;
  schema: string;
  /** Session id, or empty if there is none. */
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
  if (!event.breadcrumb_id) return undefined; // an event about a session
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

/** Merge two lists, sorted by time and without duplicates. Of two equal items, keep the one with text. */
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
 * Choose the sessions that are shown in a lane. A lane keeps its position. A newly active session replaces the one
 * that has been quiet longest, so that new events are visible and the lanes do not jump.
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
  /** One cell per lane. */
  cells: (Item | undefined)[];
  /** Milliseconds since the previous row, if it was a long pause. */
  pause?: number;
  /** Milliseconds since the previous row, if both are in the same second. */
  since?: number;
}

export const ROW_HEIGHT = 60;
export const PAUSE_HEIGHT = 30;
const LONG_PAUSE = 60_000;
/** Events of different lanes within this time (in ms) can share a row. */
const SAME_TIME = 400;

/** Arrange the items in rows, ordered by time, with one column per lane. */
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
