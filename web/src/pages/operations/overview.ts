/** State of the server, and rates computed from two consecutive samples. */

import { client } from "../../lib/server";

export interface Share {
  kind: string;
  holder?: { worker: string; since?: string; until: string };
  done_until?: string;
  waiting: number;
  more_waiting: boolean;
  lag_ms: number;
  dead_letters: number;
}

export interface Lane {
  lane: number;
  newest_event_at?: string;
  events: number;
  events_ever: number;
  kinds: Share[];
}

export interface Worker {
  kind: string;
  name: string;
  id: string;
  state: "running" | "draining" | "stopped" | "lost";
  alive: boolean;
  alive_until: string;
  heartbeat_at?: string;
  ended_at?: string;
  host?: string;
  pid?: number;
  version?: string;
  started_at?: string;
  turns?: number;
  agents?: string[];
  models?: string[];
  more_agents?: number;
  more_models?: number;
  lanes: number[];
}

/** One minute of the stored history. Numbers are absent if the minute before is not known. */
export interface Minute {
  at: string;
  events?: number;
  kinds: { kind: string; answered?: number; failed?: number; lag_ms: number; waiting: number; workers: number }[];
}

export interface Route {
  method: string;
  route: string;
  requests: number;
  refused: number;
  failed: number;
  p50_ms: number;
  p99_ms: number;
  counts: number[];
}

export interface Facts {
  at: string;
  recent_seconds: number;
  lease_seconds: number;
  process: { name: string; version: string; started_at: string; uptime_seconds: number };
  store: {
    breadcrumbs: number;
    sessions: number;
    schemas: { schema_name?: string; count: number; recent: number }[];
    more_schemas: boolean;
    servers: {
      version: string;
      uptime_seconds: number;
      memory_bytes: number;
      memory_limit_bytes?: number;
      clients: number;
      commands_per_second: number;
    }[];
  };
  kinds: string[];
  lanes: Lane[];
  workers: Worker[];
  http: { in_flight: number; bounds_ms: number[]; routes: Route[] };
}

export interface DeadLetter {
  id: string;
  kind: string;
  breadcrumb_id: string;
  version: number;
  session_id?: string;
  attempts: number;
  last_error: string;
  created_at: string;
}

/** Result of a check of the server. */
export interface Finding {
  id: string;
  status: "ok" | "warning" | "error" | "unknown" | "skipped";
  message: string;
  advice?: string;
  /** The server, kind of worker or model, if there are several. */
  subject?: string;
}

export interface Checks {
  status: "ok" | "warning" | "error" | "unknown";
  checked_at: string;
  version: string;
  findings: Finding[];
}

export const operations = {
  checks: (signal?: AbortSignal) => client.json<Checks>("/operations/checks?models=true", { ...(signal && { signal }) }),
  facts: (signal?: AbortSignal) => client.json<Facts>("/operations", { ...(signal && { signal }) }),
  history: async (signal?: AbortSignal) =>
    (await client.json<{ minutes: Minute[] }>("/operations/history", { ...(signal && { signal }) })).minutes,
  drain: (name: string) =>
    client.json<{ warnings: string[] }>(`/operations/workers/${encodeURIComponent(name)}/drain`, { method: "POST" }),
  letters: (signal?: AbortSignal) => client.json<DeadLetter[]>("/dlq", { ...(signal && { signal }) }),
  retry: (id: string) => client.json(`/dlq/${encodeURIComponent(id)}/retry`, { method: "POST" }),
  discard: (id: string) => client.json(`/dlq/${encodeURIComponent(id)}`, { method: "DELETE" }),
};

// --- Samples ----------------------------------------------------------------------------------------------

/** One sample. Unknown values are null and leave a gap in the plot. */
export interface Sample {
  /** Seconds since 1970. */
  time: number;
  answers: number | null;
  errors: number | null;
  events: number | null;
  requests: number | null;
  p50: number | null;
  p99: number | null;
  /** Lag of the worst lane, by kind of worker. */
  lag: Record<string, number>;
}

/** Requests of this page itself are not counted. */
const OWN_ROUTES: readonly string[] = ["/operations", "/operations/checks"];

export function sampleOf(facts: Facts, before: Facts | undefined): Sample {
  const recent = (schema: string) => {
    const perMinute = 60 / facts.recent_seconds;
    return (facts.store.schemas.find((one) => one.schema_name === schema)?.recent ?? 0) * perMinute;
  };
  const seconds = before ? (Date.parse(facts.at) - Date.parse(before.at)) / 1000 : 0;
  const sameProcess =
    before?.process.name === facts.process.name && before.process.started_at === facts.process.started_at;
  const events = before && seconds > 0 ? (ever(facts) - ever(before)) / seconds : null;
  const counts = before && sameProcess ? difference(requests(facts), requests(before)) : null;
  const answered = counts?.reduce((sum, count) => sum + count, 0) ?? 0;
  return {
    time: Date.parse(facts.at) / 1000,
    answers: recent("agent.response.v1"),
    errors: recent("agent.error.v1"),
    events: events === null || events < 0 ? null : events,
    requests: counts && seconds > 0 ? answered / seconds : null,
    p50: counts && answered > 0 ? quantile(0.5, counts, facts.http.bounds_ms) : null,
    p99: counts && answered > 0 ? quantile(0.99, counts, facts.http.bounds_ms) : null,
    lag: Object.fromEntries(facts.kinds.map((kind) => [kind, lagOf(facts, kind)])),
  };
}

function ever(facts: Facts): number {
  return facts.lanes.reduce((sum, lane) => sum + lane.events_ever, 0);
}

export function lagOf(facts: Facts, kind: string): number {
  return Math.max(0, ...facts.lanes.flatMap((lane) => lane.kinds.filter((one) => one.kind === kind).map((one) => one.lag_ms)));
}

/** Return the latency histogram over all routes. */
function requests(facts: Facts): number[] {
  const sum = new Array<number>(facts.http.bounds_ms.length + 1).fill(0);
  for (const route of facts.http.routes) {
    if (OWN_ROUTES.includes(route.route)) continue;
    route.counts.forEach((count, place) => (sum[place] = (sum[place] ?? 0) + count));
  }
  return sum;
}

function difference(now: number[], before: number[]): number[] {
  return now.map((count, place) => Math.max(0, count - (before[place] ?? 0)));
}

/** Estimate a quantile from a histogram, interpolated within its bucket. */
export function quantile(part: number, counts: readonly number[], bounds: readonly number[]): number {
  const wanted = part * counts.reduce((sum, count) => sum + count, 0);
  let before = 0;
  let lower = 0;
  for (const [place, upper] of bounds.entries()) {
    const count = counts[place] ?? 0;
    if (count > 0 && before + count >= wanted) return lower + ((upper - lower) * (wanted - before)) / count;
    before += count;
    lower = upper;
  }
  return lower;
}

// --- Warnings ---------------------------------------------------------------------------------------------

/** Whether a kind belongs to agents that a program runs itself. It may have no worker at all. */
export const isExternal = (kind: string) => kind.includes("/");

export function warnings(facts: Facts): string[] {
  const found: string[] = [];
  for (const kind of facts.kinds) {
    const alive = facts.workers.some((worker) => worker.kind === kind && worker.alive);
    if (!alive) continue; // a finding of the checks, unless the worker belongs to a user's program
    const free = facts.lanes.filter((lane) => lane.kinds.some((one) => one.kind === kind && !one.holder));
    if (free.length > 0) found.push(`No worker of kind “${kind}” holds lane ${free.map((lane) => lane.lane).join(", ")}.`);
    const behind = facts.lanes.filter((lane) => lane.kinds.some((one) => one.kind === kind && isBehind(one, facts)));
    if (behind.length > 0) found.push(`Workers of kind “${kind}” are behind in lane ${behind.map((lane) => lane.lane).join(", ")}.`);
  }
  return found;
}

/**
 * Whether the lag is longer than a lease. A shorter lag is normal, because events without a turn are acknowledged
 * only when the lease is renewed.
 */
export function isBehind(share: Share, facts: Facts): boolean {
  return share.lag_ms > facts.lease_seconds * 1000;
}
