/** The feedback page: rated answers with filters, and counts per config version, agent and model. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { messageOf, type Feedback, type FeedbackCounts, type FeedbackQuery, type RatingCount } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { lacking, narrowed } from "../../lib/credential";
import { ago, number } from "../../lib/format";
import { go, href, route } from "../../lib/router";
import { client } from "../../lib/server";
import "./feedback.css";

const PAGE = 30;
const DAY_MS = 86_400_000;
const DIGEST_LENGTH = 12;
const RANGES = { "1": "Last day", "7": "Last 7 days", "30": "Last 30 days", "365": "Last year" } as const;
const DEFAULT_RANGE = "30";

/** Filters of the page. They are part of the address, so that a view can be linked. */
interface Filters {
  rating: "" | "up" | "down";
  days: keyof typeof RANGES;
  agent: string;
  model: string;
  config: string;
}

function filtersIn(query: Record<string, string>): Filters {
  const rating = query["rating"];
  const days = query["days"] ?? DEFAULT_RANGE;
  return {
    rating: rating === "up" || rating === "all" ? (rating === "up" ? "up" : "") : "down",
    days: days in RANGES ? (days as keyof typeof RANGES) : DEFAULT_RANGE,
    agent: query["agent"] ?? "",
    model: query["model"] ?? "",
    config: query["config"] ?? "",
  };
}

function addressOf(filters: Filters): string {
  const query: Record<string, string> = {};
  if (filters.rating !== "down") query["rating"] = filters.rating || "all";
  if (filters.days !== DEFAULT_RANGE) query["days"] = filters.days;
  for (const name of ["agent", "model", "config"] as const) if (filters[name]) query[name] = filters[name];
  return href("feedback", [], query);
}

function queryOf(filters: Filters): FeedbackQuery {
  return {
    since: new Date(Date.now() - Number(filters.days) * DAY_MS).toISOString(),
    agent: filters.agent || undefined,
    model: filters.model || undefined,
    config: filters.config || undefined,
  };
}

export default function FeedbackPage() {
  const refused = lacking("subscriber");
  if (refused !== undefined) {
    return (
      <div class="empty">
        <Icon name="thumbUp" />
        <h1>Feedback</h1>
        <p role="alert">{refused}</p>
      </div>
    );
  }
  const filters = filtersIn(route.value.query);
  return <Overview filters={filters} key={JSON.stringify(filters)} />;
}

function Overview({ filters }: { filters: Filters }) {
  const [items, setItems] = useState<readonly Feedback[]>();
  const [cursor, setCursor] = useState<string>();
  const [counts, setCounts] = useState<FeedbackCounts>();
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  const [query] = useState(() => queryOf(filters));
  const restricted = narrowed();

  const read = async (after: string | undefined, signal?: AbortSignal) => {
    try {
      const wanted = { ...query, rating: filters.rating || undefined, limit: PAGE, cursor: after };
      const page = await client.feedback.list(wanted, signal);
      setItems((before) => [...(after === undefined ? [] : (before ?? [])), ...page.feedback]);
      setCursor(page.next_cursor);
      setProblem("");
    } catch (error) {
      if (!signal?.aborted) setProblem(messageOf(error));
    }
  };

  useEffect(() => {
    const abort = new AbortController();
    void read(undefined, abort.signal);
    client.feedback.counts(query, abort.signal).then(setCounts, () => setCounts(undefined));
    return () => abort.abort();
  }, [round]);

  const change = (changes: Partial<Filters>) => go(addressOf({ ...filters, ...changes }));
  return (
    <div class="fb-page" tabIndex={-1}>
      <div class="fb-inside">
        <header class="fb-head">
          <h1>Feedback</h1>
          {counts && (
            <span class="fb-total">
              <Score count={counts.total} />
            </span>
          )}
          <span class="grow" />
          <button type="button" class="button tiny" onClick={() => setRound(round + 1)}>
            <Icon name="retry" /> Refresh
          </button>
        </header>
        {restricted && <p class="soft small">{restricted} Only its feedback is shown.</p>}
        <FilterBar filters={filters} onChange={change} />
        {problem && (
          <p class="notice bad" role="alert">
            <Icon name="alert" /> <span class="grow">{problem}</span>
            <button type="button" class="button tiny" onClick={() => setRound(round + 1)}>
              Retry
            </button>
          </p>
        )}
        {counts && <Counts counts={counts} onChoose={change} />}
        <h2>{filters.rating === "down" ? "Disliked answers" : filters.rating === "up" ? "Liked answers" : "Rated answers"}</h2>
        {items === undefined ? (
          !problem && <p class="soft">Loading …</p>
        ) : items.length === 0 && cursor === undefined ? (
          <p class="soft">No answers were rated with these filters.</p>
        ) : (
          <ul class="fb-list">
            {items.map((one) => (
              <Entry key={one.id} feedback={one} onChoose={change} />
            ))}
          </ul>
        )}
        {cursor !== undefined && (
          <button type="button" class="button" onClick={() => void read(cursor)}>
            Show more
          </button>
        )}
      </div>
    </div>
  );
}

function FilterBar({ filters, onChange }: { filters: Filters; onChange: (changes: Partial<Filters>) => void }) {
  return (
    <div class="fb-filters" role="search" aria-label="Filters">
      <label>
        <span class="unseen">Rating</span>
        <select
          class="field"
          value={filters.rating}
          onChange={(event) => onChange({ rating: event.currentTarget.value as Filters["rating"] })}
        >
          <option value="down">Disliked</option>
          <option value="up">Liked</option>
          <option value="">All ratings</option>
        </select>
      </label>
      <label>
        <span class="unseen">Time</span>
        <select
          class="field"
          value={filters.days}
          onChange={(event) => onChange({ days: event.currentTarget.value as Filters["days"] })}
        >
          {Object.entries(RANGES).map(([days, name]) => (
            <option key={days} value={days}>
              {name}
            </option>
          ))}
        </select>
      </label>
      {(["agent", "model", "config"] as const)
        .filter((name) => filters[name])
        .map((name) => (
          <button key={name} type="button" class="tag on" title="Remove filter" onClick={() => onChange({ [name]: "" })}>
            <span class="space">{name}:</span>
            {name === "config" ? filters[name].slice(0, DIGEST_LENGTH) : filters[name]}
            <span aria-hidden="true">&nbsp;×</span>
            <span class="unseen">Remove filter</span>
          </button>
        ))}
    </div>
  );
}

interface CountsProps {
  counts: FeedbackCounts;
  onChoose: (changes: Partial<Filters>) => void;
}

function Counts({ counts, onChoose }: CountsProps) {
  if (counts.total.up + counts.total.down === 0) return null;
  return (
    <section class="fb-counts" aria-label="Counts">
      <CountTable title="Config version">
        {counts.configs.map((row) => (
          <CountRow
            key={row.config ?? ""}
            count={row}
            name={row.config?.slice(0, DIGEST_LENGTH)}
            onChoose={() => onChoose({ config: row.config ?? "" })}
          />
        ))}
      </CountTable>
      <CountTable title="Agent">
        {counts.agents.map((row) => (
          <CountRow
            key={row.agent_id ?? ""}
            count={row}
            name={row.agent_id}
            onChoose={() => onChoose({ agent: row.agent_id ?? "" })}
          />
        ))}
      </CountTable>
      <CountTable title="Model">
        {counts.models.map((row) => (
          <CountRow
            key={row.model ?? ""}
            count={row}
            name={row.model}
            onChoose={() => onChoose({ model: row.model ?? "" })}
          />
        ))}
      </CountTable>
      {!counts.complete && <p class="soft small">There are more ratings. The oldest were not counted.</p>}
    </section>
  );
}

function CountTable({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="fb-table card">
      <table>
        <thead>
          <tr>
            <th scope="col">{title}</th>
            <th scope="col" class="fb-number">
              Up
            </th>
            <th scope="col" class="fb-number">
              Down
            </th>
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

function CountRow({ count, name, onChoose }: { count: RatingCount; name: string | undefined; onChoose: () => void }) {
  return (
    <tr>
      <th scope="row">
        {name === undefined ? (
          <span class="soft">Unknown</span>
        ) : (
          <button type="button" class="fb-name" title="Filter by this" onClick={onChoose}>
            {name}
          </button>
        )}
      </th>
      <td class="fb-number">{number(count.up)}</td>
      <td class={`fb-number ${count.down ? "fb-bad" : ""}`}>{number(count.down)}</td>
    </tr>
  );
}

function Score({ count }: { count: RatingCount }) {
  return (
    <>
      <span class="badge good">{number(count.up)} up</span> <span class="badge bad">{number(count.down)} down</span>
    </>
  );
}

function Entry({ feedback, onChoose }: { feedback: Feedback; onChoose: (changes: Partial<Filters>) => void }) {
  const { session_id: session, answer_id: answer, config } = feedback;
  return (
    <li class={`fb-entry card ${feedback.rating}`}>
      <div class="fb-entry-head">
        <span class={`badge ${feedback.rating === "up" ? "good" : "bad"}`}>{feedback.rating === "up" ? "Liked" : "Disliked"}</span>
        <span class="soft small">
          {feedback.rater === "user" && `by ${feedback.user} · `}
          <Time iso={feedback.updated_at}>{ago(feedback.updated_at)}</Time>
        </span>
      </div>
      {feedback.note && <p class="fb-note">{feedback.note}</p>}
      {feedback.question && (
        <p class="fb-text">
          <b>Question</b> {feedback.question}
        </p>
      )}
      <p class="fb-text">
        <b>Answer</b> {feedback.answer ?? <span class="soft">no longer available</span>}
      </p>
      <div class="fb-links">
        {session !== undefined && (
          <>
            <a class="button tiny" href={href("chat", [session], { message: answer })}>
              <Icon name="chat" /> Open in session
            </a>
            <a class="button tiny" href={href("chat", [session], { message: answer, why: "1" })}>
              <Icon name="why" /> Why this answer?
            </a>
            <a class="button tiny" href={href("chat", [session], { message: answer, why: "replay" })}>
              <Icon name="retry" /> Replay
            </a>
          </>
        )}
        {config !== undefined && (
          <a class="button tiny" href={href("config", ["history"], { digest: config })} title={`Config ${config}`}>
            <Icon name="config" /> Config {config.slice(0, DIGEST_LENGTH)}
          </a>
        )}
        <span class="fb-facts soft small">
          {feedback.agent_id && (
            <button type="button" class="fb-name" title="Filter by this agent" onClick={() => onChoose({ agent: feedback.agent_id ?? "" })}>
              {feedback.agent_id}
            </button>
          )}
          {feedback.model && (
            <button type="button" class="fb-name" title="Filter by this model" onClick={() => onChoose({ model: feedback.model ?? "" })}>
              {feedback.model}
            </button>
          )}
        </span>
      </div>
    </li>
  );
}
