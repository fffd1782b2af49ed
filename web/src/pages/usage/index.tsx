/** The usage page: tokens and cost per day, agent, model and user, and the budgets. */

import { useEffect, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { number } from "../../lib/format";
import { go, href, route } from "../../lib/router";
import { costText, money, usage, type Budget, type Usage, type UsageBy, type UsageRow } from "../../lib/usage";
import { DayBars } from "./day-bars";
import "./usage.css";

const DAY_MS = 86_400_000;
const PAGE = 100;
const RANGES = { "7": "Last 7 days", "30": "Last 30 days", "90": "Last 90 days", "365": "Last year" } as const;
const DEFAULT_RANGE = "30";
const GROUPS = { agent: "Agent", model: "Model", user: "User" } as const;

type Group = keyof typeof GROUPS;

interface Filters {
  days: keyof typeof RANGES;
  by: Group;
}

function filtersIn(query: Record<string, string>): Filters {
  const { days = DEFAULT_RANGE, by = "agent" } = query;
  return {
    days: days in RANGES ? (days as Filters["days"]) : DEFAULT_RANGE,
    by: by in GROUPS ? (by as Group) : "agent",
  };
}

export default function UsagePage() {
  const filters = filtersIn(route.value.query);
  return <Overview filters={filters} key={JSON.stringify(filters)} />;
}

function firstDay(days: string): string {
  return new Date(Date.now() - (Number(days) - 1) * DAY_MS).toISOString().slice(0, 10);
}

function Overview({ filters }: { filters: Filters }) {
  const [daily, setDaily] = useState<Usage>();
  const [grouped, setGrouped] = useState<Usage>();
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  const from = firstDay(filters.days);

  useEffect(() => {
    const abort = new AbortController();
    const read = (by: UsageBy, limit: number) => usage.read({ by, from, limit }, abort.signal);
    Promise.all([read("day", 400), read(filters.by, PAGE)]).then(
      ([perDay, perGroup]) => {
        setDaily(perDay);
        setGrouped(perGroup);
        setProblem("");
      },
      (error: unknown) => {
        if (!abort.signal.aborted) setProblem(messageOf(error));
      },
    );
    return () => abort.abort();
  }, [round]);

  const more = async (cursor: string) => {
    try {
      const next = await usage.read({ by: filters.by, from, limit: PAGE, cursor });
      setGrouped((before) => before && { ...next, rows: [...before.rows, ...next.rows] });
    } catch (error) {
      setProblem(messageOf(error));
    }
  };

  const change = (changes: Partial<Filters>) => {
    const { days, by } = { ...filters, ...changes };
    go(href("usage", [], { ...(days !== DEFAULT_RANGE && { days }), ...(by !== "agent" && { by }) }));
  };

  return (
    <div class="usage" tabIndex={-1}>
      <div class="usage-inside">
        <header class="usage-head">
          <h1>Usage</h1>
          <label>
            <span class="unseen">Time</span>
            <select class="field" value={filters.days} onChange={(event) => change({ days: event.currentTarget.value as Filters["days"] })}>
              {Object.entries(RANGES).map(([days, name]) => (
                <option key={days} value={days}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <span class="grow" />
          <button type="button" class="button tiny" onClick={() => setRound(round + 1)}>
            <Icon name="retry" /> Refresh
          </button>
        </header>
        {problem && (
          <p class="notice bad" role="alert">
            <Icon name="alert" /> <span class="grow">{problem}</span>
            <button type="button" class="button tiny" onClick={() => setRound(round + 1)}>
              Retry
            </button>
          </p>
        )}
        {daily ? <Totals daily={daily} from={from} /> : !problem && <p class="soft">Loading …</p>}
        {daily && <Budgets usage={daily} />}
        {grouped && (
          <section class="card usage-card" aria-label="Groups">
            <header class="usage-head">
              <h2>Per {GROUPS[filters.by].toLowerCase()}</h2>
              <span class="grow" />
              <span role="group" aria-label="Group by" class="usage-groups">
                {(Object.keys(GROUPS) as Group[]).map((by) => (
                  <button key={by} type="button" class="button tiny" aria-pressed={by === filters.by} onClick={() => change({ by })}>
                    {GROUPS[by]}
                  </button>
                ))}
              </span>
            </header>
            <Rows rows={grouped.rows} by={filters.by} />
            {grouped.next_cursor !== undefined && (
              <button type="button" class="button" onClick={() => void more(grouped.next_cursor ?? "")}>
                Show more
              </button>
            )}
          </section>
        )}
      </div>
    </div>
  );
}

function Totals({ daily, from }: { daily: Usage; from: string }) {
  const { total } = daily;
  return (
    <section class="usage-totals" aria-label="Totals">
      <p class="usage-sum">
        <b>{number(total.tokens)}</b> tokens in <b>{number(total.calls)}</b> model calls, {costText(total)}
        {total.cached_tokens > 0 && <>, {number(total.cached_tokens)} tokens from the cache of the provider</>}
      </p>
      {total.unreported_calls > 0 && (
        <p class="soft small">{number(total.unreported_calls)} calls reported no tokens, so they count as calls only.</p>
      )}
      <DayBars
        title="Tokens per day"
        from={from}
        rows={daily.rows}
        parts={[
          { name: "Input", colour: "--info", value: (row) => row.input_tokens },
          { name: "Output", colour: "--accent", value: (row) => row.output_tokens },
        ]}
        shown={number}
      />
      {total.cost > 0 && (
        <DayBars
          title="Cost per day"
          from={from}
          rows={daily.rows}
          parts={[{ name: "Cost", colour: "--good", value: (row) => row.cost }]}
          shown={money}
        />
      )}
    </section>
  );
}

function Rows({ rows, by }: { rows: readonly UsageRow[]; by: Group }) {
  if (rows.length === 0) return <p class="soft">No model was called in this time.</p>;
  const name = (row: UsageRow) => (by === "agent" ? row.agent_id : by === "model" ? row.model : row.user_id);
  return (
    <div class="usage-scroll" tabIndex={0} role="region" aria-label={`Usage per ${by}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">{GROUPS[by]}</th>
            <th scope="col">Calls</th>
            <th scope="col">Input</th>
            <th scope="col">Output</th>
            <th scope="col">Cost</th>
          </tr>
        </thead>
        <tbody>
          {[...rows]
            .sort((one, other) => other.tokens - one.tokens)
            .map((row) => (
              <tr key={name(row) ?? ""}>
                <th scope="row">{name(row) ?? <span class="soft">none</span>}</th>
                <td>{number(row.calls)}</td>
                <td>{number(row.input_tokens)}</td>
                <td>{number(row.output_tokens)}</td>
                <td>{row.unpriced_calls === row.calls ? "no price" : money(row.cost)}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}

const PERIODS: Record<Budget["period"], string> = { day: "per day", month: "per month", total: "in total" };

function Budgets({ usage: { budgets, budget_problems: problems = [] } }: { usage: Usage }) {
  if (budgets.length + problems.length === 0) {
    return (
      <p class="soft small">
        There are no budgets. A <span class="mono">usage.budget.v1</span> breadcrumb limits tokens or cost per session,
        user or owner.
      </p>
    );
  }
  return (
    <section class="card usage-card" aria-label="Budgets">
      <h2>Budgets</h2>
      {problems.map((one) => (
        <p key={one.id} class="notice warn">
          <Icon name="alert" /> Budget {one.id}: {one.problem}
        </p>
      ))}
      <ul class="usage-budgets">
        {budgets.map((budget, place) => (
          <li key={place}>
            <BudgetLine budget={budget} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function BudgetLine({ budget }: { budget: Budget }) {
  const subject = budget.user_id ?? budget.session_id ?? (budget.scope === "owner" ? "All sessions" : `Each ${budget.scope}`);
  const limits = [
    ...(budget.tokens === undefined ? [] : [{ limit: budget.tokens, used: budget.used_tokens, text: `${number(budget.tokens)} tokens` }]),
    ...(budget.cost === undefined ? [] : [{ limit: budget.cost, used: budget.used_cost, text: `cost ${money(budget.cost)}` }]),
  ];
  return (
    <>
      <span>
        <b>{subject}</b>: {limits.map((one) => one.text).join(" or ")} {PERIODS[budget.period]}{" "}
        {budget.used_up && <span class="badge bad">used up</span>}
      </span>
      {limits.map(
        ({ limit, used, text }) =>
          used !== undefined && (
            <meter key={text} min={0} max={Math.max(limit, 1e-9)} high={limit * 0.8} optimum={0} value={used} aria-label={`Used of ${text}`}>
              {used} of {limit}
            </meter>
          ),
      )}
    </>
  );
}
