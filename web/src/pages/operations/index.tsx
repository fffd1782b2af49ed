/** The operations page: rates, latency, lag, workers, lanes and dead letters. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, messageOf } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { lacking, narrowed } from "../../lib/credential";
import { ago, bytes, duration, number, plural, roughly } from "../../lib/format";
import { useShortcuts } from "../../lib/keys";
import { href } from "../../lib/router";
import {
  isBehind,
  isExternal,
  lagOf,
  operations,
  sampleOf,
  warnings,
  type DeadLetter,
  type Facts,
  type Sample,
} from "./overview";
import { Findings, useChecks, Verdict } from "./checks";
import { Letters } from "./dead-letters";
import { History } from "./history";
import { Plot } from "./plot";
import { Table } from "./tables";
import { Workers } from "./workers";
import "./operations.css";

const INTERVAL_MS = 3_000;
const MAX_SAMPLES = 1_200;

// These survive leaving the page, so that the plots keep their history.
let samples: readonly Sample[] = [];
const lastOf = new Map<string, Facts>();

function addSample(facts: Facts): void {
  const process = `${facts.process.name} ${facts.process.started_at}`;
  const next = sampleOf(facts, lastOf.get(process));
  if (lastOf.size > 20) lastOf.clear(); // most of these processes have ended
  lastOf.set(process, facts);
  const last = samples.at(-1);
  if (last && next.time <= last.time) samples = []; // another store, or the clock was set back
  // After a time without samples, add an empty one, so that the plots show a gap.
  const gap = last && next.time - last.time > (4 * INTERVAL_MS) / 1000;
  const hole: Sample[] = gap
    ? [{ time: last.time + 0.001, answers: null, errors: null, events: null, requests: null, p50: null, p99: null, lag: {} }]
    : [];
  samples = [...samples, ...hole, next].slice(-MAX_SAMPLES);
}

export default function OperationsPage() {
  const refused = lacking("curator") ?? narrowed();
  if (refused === undefined) return <Overview />;
  return (
    <div class="empty">
      <Icon name="operations" />
      <h1>Operations</h1>
      <p role="alert">This page requires the role curator. {refused}</p>
    </div>
  );
}

function Overview() {
  const [facts, setFacts] = useState<Facts>();
  const [letters, setLetters] = useState<DeadLetter[]>();
  const [unread, setUnread] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const [paused, setPaused] = useState(false);
  const counted = useRef(-1);
  const checks = useChecks(paused);

  const readLetters = useCallback(async (signal?: AbortSignal) => {
    try {
      setLetters(await operations.letters(signal));
      setUnread("");
      return true;
    } catch (error) {
      if (!signal?.aborted) setUnread(messageOf(error));
      return false;
    }
  }, []);

  const read = useCallback(async (signal: AbortSignal) => {
    try {
      const now = await operations.facts(signal);
      addSample(now);
      setFacts(now);
      setProblem(undefined);
      const dead = deadLetters(now);
      if (dead !== counted.current && (await readLetters(signal))) counted.current = dead;
    } catch (error) {
      if (!signal.aborted) setProblem(error);
    }
  }, []);

  useEffect(() => {
    if (paused) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const round = async () => {
      clearTimeout(timer);
      if (!document.hidden) await read(abort.signal);
      if (!abort.signal.aborted) timer = setTimeout(round, INTERVAL_MS);
    };
    void round();
    const seen = () => void (!document.hidden && round());
    document.addEventListener("visibilitychange", seen);
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [paused]);

  const togglePause = useCallback(() => setPaused((before) => !before), []);
  useShortcuts([{ keys: "p", what: "Pause or resume", group: "Operations", run: togglePause }], []);

  return (
    <div class="ops-page" tabIndex={-1}>
      <div class="ops-inside">
        <header class="ops-head">
          <h1>Operations</h1>
          {facts && <Verdict state={checks} notices={warnings(facts).length} problem={problem} />}
          <span class="grow" />
          <button type="button" class={`button tiny ${paused ? "main" : ""}`} aria-pressed={paused} onClick={togglePause} title={paused ? "Resume (p)" : "Pause (p)"}>
            <Icon name={paused ? "play" : "pause"} />
            {paused ? "Resume" : "Pause"}
          </button>
        </header>
        {problem !== undefined && <Problem error={problem} hasFacts={facts !== undefined} />}
        {facts ? (
          <>
            <Findings state={checks} away={problem !== undefined} />
            {warnings(facts).map((text) => (
              <p key={text} class="notice warn" role="status">
                <Icon name="alert" /> {text}
              </p>
            ))}
            <Tiles facts={facts} />
            <Plots facts={facts} />
            <p class="ops-note soft small">Updated every {INTERVAL_MS / 1000} seconds while this page is open.</p>
            <Section title="Last hours" note="Stored once a minute for six hours, for the whole store.">
              <History />
            </Section>
            <Section title="Dead letters" note="Events that failed every retry. Retrying never duplicates an answer.">
              <Letters letters={letters} problem={unread} onChange={() => void readLetters()} />
            </Section>
            <Section title="Workers" note="Workers share the lanes. If one dies, others take over its lanes within seconds.">
              <Workers facts={facts} onChange={() => void read(new AbortController().signal)} />
            </Section>
            <Section title="Lanes" note="All events of a session are in one lane, which keeps them in order. One worker of each kind holds a lane at a time.">
              <Lanes facts={facts} />
            </Section>
            <div class="ops-two">
              <Section title="Breadcrumbs" note={`${plural(facts.store.breadcrumbs, "breadcrumb")}${facts.store.more_schemas ? ", some schemas not counted" : ""}`}>
                <Schemas facts={facts} />
              </Section>
              <Section title="Requests" note={`Time to the first byte, in ${facts.process.name} since its start`}>
                <Routes facts={facts} />
              </Section>
            </div>
          </>
        ) : (
          problem === undefined && <p class="soft">Loading …</p>
        )}
      </div>
    </div>
  );
}

function Section({ title, note, children }: { title: string; note: string; children: ComponentChildren }) {
  const id = `ops-${title.toLowerCase().replace(" ", "-")}`;
  return (
    <section class="ops-section" aria-labelledby={id}>
      <div class="ops-section-head">
        <h2 id={id}>{title}</h2>
        <p class="soft small">{note}</p>
      </div>
      {children}
    </section>
  );
}

function Problem({ error, hasFacts }: { error: unknown; hasFacts: boolean }) {
  const forbidden = error instanceof ApiError && error.status === 403;
  return (
    <p class="notice bad" role="alert">
      <Icon name="alert" />
      <span>
        {forbidden
          ? "This page requires the role curator."
          : `${messageOf(error)} ${hasFacts ? "The data below is outdated. " : ""}Retrying …`}
      </span>
    </p>
  );
}

function deadLetters(facts: Facts): number {
  return facts.lanes.reduce((sum, lane) => sum + lane.kinds.reduce((inner, one) => inner + one.dead_letters, 0), 0);
}

// --- Numbers ----------------------------------------------------------------------------------------------

const rate = (value: number) => (Number.isInteger(value) || value >= 9.95 ? number(Math.round(value)) : value.toFixed(1));

const lagShown = (ms: number) => (ms === 0 ? "0" : duration(ms));

function Tiles({ facts }: { facts: Facts }) {
  const now = samples.at(-1);
  const latency = samples.findLast((one) => one.p50 !== null);
  const worst = Math.max(0, ...facts.kinds.filter((kind) => !isExternal(kind)).map((kind) => lagOf(facts, kind)));
  const behind = worst > facts.lease_seconds * 1000;
  const memory = facts.store.servers.reduce((sum, server) => sum + server.memory_bytes, 0);
  const limit = facts.store.servers.reduce((sum, server) => sum + (server.memory_limit_bytes ?? 0), 0);
  const alive = facts.workers.filter((worker) => worker.alive).length;
  const server = facts.store.servers[0];
  return (
    <dl class="ops-tiles">
      <Tile name="Turns per minute" value={number(Math.round((now?.answers ?? 0) + (now?.errors ?? 0)))} note={now?.errors ? `${number(Math.round(now.errors))} failed` : "none failed"} />
      <Tile name="Events per second" value={now?.events === null || now === undefined ? "–" : rate(now.events)} note={`${number(facts.lanes.reduce((sum, lane) => sum + lane.events, 0))} stored`} />
      <Tile name="HTTP latency" value={latency ? duration(latency.p50 ?? 0) : "–"} note={latency ? `p99 ${duration(latency.p99 ?? 0)}` : "no requests yet"} />
      <Tile name="Worst lag" value={lagShown(worst)} note={behind ? "a worker is behind" : "workers keep up"} bad={behind} />
      <Tile name="Workers" value={number(alive)} note={plural(facts.kinds.length, "kind")} bad={alive === 0} />
      <Tile name="Sessions" value={number(facts.store.sessions)} note={plural(facts.store.breadcrumbs, "breadcrumb")} />
      <Tile name="Memory" value={facts.store.servers.length ? bytes(memory) : "–"} note={limit ? `of ${bytes(limit)}` : server ? server.version : "not reported"} />
      <Tile name="Uptime" value={roughly(facts.process.uptime_seconds)} note={`version ${facts.process.version}`} />
    </dl>
  );
}

function Tile({ name, value, note, bad = false }: { name: string; value: string; note: string; bad?: boolean }) {
  return (
    <div class={`ops-tile card ${bad ? "bad" : ""}`}>
      <dt>{name}</dt>
      <dd>
        <span class="ops-value">{value}</span>
        <span class="soft small">{note}</span>
      </dd>
    </div>
  );
}

const LAG_COLOURS = ["--accent", "--violet", "--warn", "--info", "--bad"];

function Plots({ facts }: { facts: Facts }) {
  const seen = samples;
  const times = useMemo(() => seen.map((one) => one.time), [seen]);
  const kinds = facts.kinds.filter((kind) => !isExternal(kind) || facts.workers.some((worker) => worker.kind === kind && worker.alive));
  return (
    <section class="ops-plots" aria-label="Over time">
      <Plot
        title="Turns per minute"
        times={times}
        shown={rate}
        atLeast={4}
        lines={[
          { name: "answered", colour: "--accent", values: seen.map((one) => one.answers), fill: true },
          { name: "failed", colour: "--bad", values: seen.map((one) => one.errors) },
        ]}
      />
      <Plot
        title="Per second"
        times={times}
        shown={rate}
        atLeast={4}
        lines={[
          { name: "events", colour: "--info", values: seen.map((one) => one.events), fill: true },
          { name: "requests", colour: "--violet", values: seen.map((one) => one.requests) },
        ]}
      />
      <Plot
        title="HTTP latency"
        times={times}
        shown={duration}
        atLeast={5}
        lines={[
          { name: "p50", colour: "--accent", values: seen.map((one) => one.p50) },
          { name: "p99", colour: "--warn", values: seen.map((one) => one.p99) },
        ]}
      />
      <Plot
        title="Worker lag"
        times={times}
        shown={lagShown}
        atLeast={3_000}
        lines={kinds.map((kind, place) => ({
          name: kind,
          colour: LAG_COLOURS[place % LAG_COLOURS.length] ?? "--accent",
          values: seen.map((one) => one.lag[kind] ?? null),
        }))}
      />
    </section>
  );
}

// --- Tables -----------------------------------------------------------------------------------------------

function Lanes({ facts }: { facts: Facts }) {
  const [most, setMost] = useState(32);
  const now = Date.parse(facts.at);
  return (
    <>
      <Table label="All lanes">
        <thead>
          <tr>
            <th scope="col" rowSpan={2} class="ops-right">Lane</th>
            <th scope="col" rowSpan={2} class="ops-right">Events</th>
            <th scope="col" rowSpan={2}>Newest</th>
            {facts.kinds.map((kind) => (
              <th key={kind} scope="colgroup" colSpan={3} class="ops-group">{kind}</th>
            ))}
          </tr>
          <tr>
            {facts.kinds.flatMap((kind) => [
              <th key={`${kind} who`} scope="col" class="ops-group">Holder</th>,
              <th key={`${kind} held`} scope="col">Held for</th>,
              <th key={`${kind} lag`} scope="col" class="ops-right">Lag</th>,
            ])}
          </tr>
        </thead>
        <tbody>
          {facts.lanes.slice(0, most).map((lane) => (
            <tr key={lane.lane}>
              <th scope="row" class="ops-right">{lane.lane}</th>
              <td class="ops-right">{number(lane.events)}</td>
              <td class="soft">
                {lane.newest_event_at ? <Time iso={lane.newest_event_at}>{ago(lane.newest_event_at, now)}</Time> : "–"}
              </td>
              {lane.kinds.flatMap((share) => [
                <td key={`${share.kind} who`} class="ops-group mono">
                  {share.holder ? <span title={share.holder.worker}>{share.holder.worker}</span> : <span class="badge warn">none</span>}
                </td>,
                <td key={`${share.kind} held`} class="soft">
                  {share.holder && (
                    <span title={`until ${new Date(share.holder.until).toLocaleTimeString()}`}>
                      {share.holder.since && `${duration(wholeSeconds(now - Date.parse(share.holder.since)))}, `}
                      {`${Math.max(0, Math.round((Date.parse(share.holder.until) - now) / 1000))} s left`}
                    </span>
                  )}
                </td>,
                <td key={`${share.kind} lag`} class="ops-right">
                  {share.waiting === 0 ? (
                    <span class="soft">–</span>
                  ) : (
                    <span class={isBehind(share, facts) ? "badge bad" : ""}>
                      {duration(share.lag_ms)}, {number(share.waiting)}
                      {share.more_waiting && "+"} waiting
                    </span>
                  )}
                  {share.dead_letters > 0 && " "}
                  {share.dead_letters > 0 && <span class="badge bad">{plural(share.dead_letters, "dead letter")}</span>}
                </td>,
              ])}
            </tr>
          ))}
        </tbody>
      </Table>
      {facts.lanes.length > most && (
        <button type="button" class="button tiny" onClick={() => setMost(most + 128)}>
          Show {plural(facts.lanes.length - most, "more lane")}
        </button>
      )}
    </>
  );
}

/** Round to whole seconds, because smaller units are noise in a long duration. */
function wholeSeconds(ms: number): number {
  return Math.max(0, Math.round(ms / 1000) * 1000);
}

function Schemas({ facts }: { facts: Facts }) {
  const sorted = [...facts.store.schemas].sort((a, b) => b.count - a.count);
  const largest = sorted[0]?.count ?? 1;
  if (sorted.length === 0) return <p class="soft">None yet.</p>;
  return (
    <Table label="Breadcrumbs by schema">
      <thead>
        <tr>
          <th scope="col">Schema</th>
          <th scope="col" class="ops-right">Count</th>
          <th scope="col" class="ops-right">Last minute</th>
        </tr>
      </thead>
      <tbody>
        {sorted.map((schema) => (
          <tr key={schema.schema_name ?? ""}>
            <th scope="row" class="mono ops-bar-cell">
              <span class="ops-bar" style={{ width: `${Math.max(0.5, (100 * schema.count) / largest)}%` }} />
              {schema.schema_name === undefined ? (
                <span class="soft">none</span>
              ) : (
                <a href={href("board", [], { schema: schema.schema_name })}>{schema.schema_name}</a>
              )}
            </th>
            <td class="ops-right">{number(schema.count)}</td>
            <td class="ops-right soft">{schema.recent ? `+${number(schema.recent)}` : "–"}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Routes({ facts }: { facts: Facts }) {
  const [all, setAll] = useState(false);
  const sorted = [...facts.http.routes].sort((a, b) => b.requests - a.requests);
  return (
    <>
      <Table label="Requests by route">
        <thead>
          <tr>
            <th scope="col">Route</th>
            <th scope="col" class="ops-right">Requests</th>
            <th scope="col" class="ops-right">p50</th>
            <th scope="col" class="ops-right">p99</th>
            <th scope="col" class="ops-right">4xx</th>
            <th scope="col" class="ops-right">5xx</th>
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, all ? undefined : 10).map((route) => (
            <tr key={`${route.method} ${route.route}`}>
              <th scope="row" class="mono">
                <span class="soft">{route.method}</span> {route.route}
              </th>
              <td class="ops-right">{number(route.requests)}</td>
              <td class="ops-right">{duration(route.p50_ms)}</td>
              <td class="ops-right">{duration(route.p99_ms)}</td>
              <td class="ops-right soft">{route.refused || "–"}</td>
              <td class="ops-right">{route.failed ? <span class="badge bad">{number(route.failed)}</span> : <span class="soft">–</span>}</td>
            </tr>
          ))}
        </tbody>
      </Table>
      {sorted.length > 10 && (
        <button type="button" class="button tiny" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show ${plural(sorted.length - 10, "more route")}`}
        </button>
      )}
    </>
  );
}
