/** Why an answer is as it is: the context that its model got, what was left out, and why. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, messageOf, type Message } from "@breadcrumbs/client";
import {
  contexts,
  rankInWords,
  REASONS,
  sharesOf,
  sourceInWords,
  speakerOf,
  wordsOf,
  type Explanation,
  type Item,
  type LeftOut,
  type Part,
  type Reason,
} from "../../lib/contexts";
import { number, plural, timeWithSeconds } from "../../lib/format";
import { href } from "../../lib/router";
import { Icon } from "../icons";
import { JsonView } from "../json";
import { Tag } from "../tag";
import { Time } from "../time";
import { Budget } from "./budget";
import "./why.css";

export interface WhyProps {
  answer: Message;
  onClose: () => void;
}

interface Asked {
  explanation?: Explanation;
  problem?: string;
}

export function WhyPanel({ answer, onClose }: WhyProps) {
  const title = useRef<HTMLHeadingElement>(null);
  const [asked, setAsked] = useState<Asked>({});
  const [attempt, setAttempt] = useState(0);
  const id = textIn(answer, "context_id");
  const version = answer.context["context_version"];

  useEffect(() => {
    const before = document.activeElement;
    title.current?.focus({ preventScroll: true });
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);

  useEffect(() => {
    if (id === undefined) return;
    const abort = new AbortController();
    setAsked({});
    contexts
      .explain(id, typeof version === "number" ? version : undefined, abort.signal)
      .then((explanation) => setAsked({ explanation }))
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setAsked({ problem: inWords(error) });
      });
    return () => abort.abort();
  }, [id, version, attempt]);

  return (
    <div class="why">
      <header class="why-head">
        <h2 ref={title} tabIndex={-1}>
          Why did it say that?
        </h2>
        <button type="button" class="button bare square" aria-label="Close" title="Close (Escape)" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      {id === undefined ? (
        <p class="notice">
          <Icon name="why" /> This answer names no context: it was not made from one of the context builder's.
          Agents that bring sources of their own collect what they need themselves.
        </p>
      ) : asked.problem !== undefined ? (
        <div class="notice bad" role="alert">
          <Icon name="alert" />
          <div class="grow">
            <p>{asked.problem}</p>
            <button type="button" class="button tiny" onClick={() => setAttempt(attempt + 1)}>
              Try again
            </button>
          </div>
        </div>
      ) : asked.explanation === undefined ? (
        <p class="why-waiting soft" role="status">
          <span class="spinner" aria-hidden="true" /> Looking …
        </p>
      ) : (
        <Explained explained={asked.explanation} />
      )}
    </div>
  );
}

function textIn(answer: Message, name: string): string | undefined {
  const value = answer.context[name];
  return typeof value === "string" ? value : undefined;
}

function inWords(error: unknown): string {
  if (error instanceof ApiError && error.status === 404) {
    return (
      "The context of this answer is gone. Contexts are kept for a while after the last turn of their session: " +
      "an hour, unless output.ttl_seconds in the config says otherwise."
    );
  }
  return messageOf(error);
}

function Explained({ explained }: { explained: Explanation }) {
  const { items, left_out: out } = explained;
  const session = explained.session_id;
  return (
    <>
      <p class="why-about small soft">
        {explained.context_id !== undefined && (
          <>
            <a href={href("board", [explained.context_id])}>Context</a> version {explained.version} for{" "}
          </>
        )}
        <a href={href("config", [], { consumer: explained.consumer_id, ...(session && { session }) })}>
          {explained.consumer_id}
        </a>
        {explained.made_at !== undefined && (
          <>
            , made at <Time iso={explained.made_at}>{timeWithSeconds(explained.made_at)}</Time>
          </>
        )}
      </p>
      <Budget
        tokens={explained.tokens}
        budget={explained.budget}
        shares={sharesOf(items)}
        countedBy={explained.counted_by}
      />
      {explained.notes.map((note) => (
        <p key={note} class="notice warn">
          <Icon name="alert" /> {note}
        </p>
      ))}
      <section aria-labelledby="why-in">
        <h3 id="why-in">
          What it was shown <span class="badge">{number(items.length)}</span>
        </h3>
        <p class="small soft">In the order of the prompt.</p>
        <ol class="why-items">
          {items.map((item, place) => (
            <ShownItem key={item.id ?? place} item={item} explained={explained} />
          ))}
        </ol>
        {explained.parts_as_shown === false && (
          <p class="small soft">Not all of it can be shown: some is gone since, or not for you.</p>
        )}
      </section>
      <section aria-labelledby="why-out">
        <h3 id="why-out">
          What was left out <span class="badge">{number(out.length + explained.left_out_besides)}</span>
        </h3>
        {out.length === 0 && <p class="small soft">Nothing: all that the sources found is in.</p>}
        <LeftOuts out={out} besides={explained.left_out_besides} />
      </section>
      <Sources explained={explained} />
    </>
  );
}

/** One breadcrumb of a context, and why it is in. */
function ShownItem({ item, explained }: { item: Item; explained: Explanation }) {
  const shown = partOf(explained.parts, item.id);
  const source = item.number === undefined ? undefined : explained.sources[item.number];
  const who = item.hidden ? "Not for you" : speakerOf(item, shown?.creator);
  return (
    <li class={`why-item card part-${item.place} ${item.is_trigger ? "trigger" : ""}`}>
      <div class="why-line">
        <strong class="why-who">{who}</strong>
        {item.is_trigger && <span class="badge info">being answered</span>}
        {item.place === "shared" && <span class="badge">shared</span>}
        {item.place === "elsewhere" && <span class="badge warn">from elsewhere</span>}
        <span class="grow" />
        <span class="why-tokens small soft">{plural(item.tokens, "token")}</span>
      </div>
      <Content item={item} content={shown?.content} />
      <dl class="why-because small">
        <div>
          <dt>Source</dt>
          <dd title={source && sourceInWords(source)}>
            {source ? (
              <>
                <span class="mono">{item.source}</span>, {rankInWords(item.rank)} of {number(source.found)} found
              </>
            ) : (
              "what is to be answered is always in"
            )}
          </dd>
        </div>
        {item.schema_name !== undefined && (
          <div>
            <dt>Schema</dt>
            <dd class="mono">{item.schema_name}</dd>
          </div>
        )}
        {item.matched !== undefined && item.matched.length > 0 && (
          <div>
            <dt>Tags</dt>
            <dd class="why-tags">
              {item.matched.map((tag) => (
                <Tag key={tag} tag={tag} />
              ))}
            </dd>
          </div>
        )}
        {item.session_id !== undefined && (
          <div>
            <dt>Session</dt>
            <dd class="mono">{item.session_id}</dd>
          </div>
        )}
        {item.id !== undefined && item.created_at !== undefined && (
          <div>
            <dt>Written</dt>
            <dd>
              <a href={href("board", [item.id])}>
                <Time iso={item.created_at}>{timeWithSeconds(item.created_at)}</Time>
              </a>
              {item.version !== undefined && item.version > 1 && <>, version {item.version}</>}
            </dd>
          </div>
        )}
      </dl>
    </li>
  );
}

const LONG = 280;

/** What the model could read of it; long texts are folded. */
function Content({ item, content }: { item: Item; content: Part["items"][number]["content"] | undefined }) {
  const [open, setOpen] = useState(false);
  if (item.hidden) return <p class="why-text soft">Your token may not see what this is.</p>;
  if (item.gone) return <p class="why-text soft">It was deleted or has expired since.</p>;
  const { words, rest } = content ? wordsOf(content) : { words: item.excerpt ?? item.title ?? "", rest: {} };
  const more = Object.keys(rest).length > 0;
  const folded = !open && words.length > LONG;
  return (
    <>
      {words && <p class="why-text">{folded ? `${words.slice(0, LONG).trimEnd()} …` : words}</p>}
      {more && (open || !words) && <JsonView value={rest} label="What else was in it" />}
      {(words.length > LONG || (more && words)) && (
        <button type="button" class="button bare tiny why-more" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? "Show less" : "Show all"}
        </button>
      )}
    </>
  );
}

function partOf(parts: readonly Part[] | undefined, id: string | undefined): Part["items"][number] | undefined {
  if (id === undefined) return undefined;
  for (const part of parts ?? []) {
    const found = part.items.find((item) => item.id === id);
    if (found) return found;
  }
  return undefined;
}

const MOST_LEFT_OUT = 12;

/** What was left out, by reason. */
export function LeftOuts({ out, besides }: { out: readonly LeftOut[]; besides: number }) {
  const reasons = [...new Set(out.map((one) => one.reason))];
  return (
    <>
      {reasons.map((reason) => (
        <LeftOutFor key={reason} reason={reason} out={out.filter((one) => one.reason === reason)} />
      ))}
      {besides > 0 && <p class="small soft">… and {number(besides)} more that are not listed.</p>}
    </>
  );
}

function LeftOutFor({ reason, out }: { reason: Reason; out: readonly LeftOut[] }) {
  const [all, setAll] = useState(false);
  const shown = all ? out : out.slice(0, MOST_LEFT_OUT);
  return (
    <div class="why-out">
      <p class="why-reason">
        <span class={`badge ${reason === "over budget" ? "warn" : ""}`}>{reason}</span>{" "}
        <span class="small soft">{REASONS[reason]}</span>
      </p>
      <ul>
        {shown.map((one, place) => (
          <li key={`${one.id ?? ""}${place}`}>
            <span class="why-what">
              {one.hidden ? "Not for you" : one.gone ? "Gone since" : one.title || one.schema_name || "Breadcrumb"}
            </span>
            <span class="small soft">
              <span class="mono">{one.source}</span>
              {one.tokens !== undefined && <> · {plural(one.tokens, "token")}</>}
              {one.created_at !== undefined && (
                <>
                  {" · "}
                  <Time iso={one.created_at}>{timeWithSeconds(one.created_at)}</Time>
                </>
              )}
            </span>
          </li>
        ))}
      </ul>
      {shown.length < out.length && (
        <button type="button" class="button bare tiny" onClick={() => setAll(true)}>
          Show all {number(out.length)}
        </button>
      )}
    </div>
  );
}

/** What each source was asked for. */
export function Sources({ explained }: { explained: Explanation }) {
  return (
    <details class="why-sources">
      <summary>
        The sources <span class="badge">{number(explained.sources.length)}</span>
      </summary>
      <ul>
        {explained.sources.map((source, place) => (
          <li key={place}>
            <span class="mono">{source.key}</span> <span class="soft small">found {number(source.found)}:</span>{" "}
            <span class="small">{sourceInWords(source)}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}
