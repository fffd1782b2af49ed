/** Panel that explains an answer: the context of its model, and the items that were left out. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, messageOf, type Message } from "@breadcrumbs/client";
import {
  ATTACHMENT_SCHEMA,
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
import { href, route } from "../../lib/router";
import { Icon } from "../icons";
import { JsonView } from "../json";
import { Tag } from "../tag";
import { Time } from "../time";
import { Budget } from "./budget";
import { hasUnfetched, NotFetched } from "./not-fetched";
import { ReceiptView } from "./receipt";
import { ReplayView } from "./replay";
import { PrefixReuse } from "./reuse";
import "./why.css";

export interface WhyProps {
  answer: Message;
  onClose: () => void;
}

interface LoadState {
  explanation?: Explanation;
  problem?: string;
}

export function WhyPanel({ answer, onClose }: WhyProps) {
  const title = useRef<HTMLHeadingElement>(null);
  const [loaded, setLoaded] = useState<LoadState>({});
  const [attempt, setAttempt] = useState(0);
  const [promptLoaded, setPromptLoaded] = useState(false);
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
    setLoaded({});
    contexts
      .explain(id, typeof version === "number" ? version : undefined, abort.signal)
      .then((explanation) => setLoaded({ explanation }))
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setLoaded({ problem: inWords(error) });
      });
    return () => abort.abort();
  }, [id, version, attempt]);

  // The address can name the section "Replay". It moves down while the sections above it load.
  const { message, why } = route.value.query;
  const toReplay = why === "replay" && message === answer.id;
  useEffect(() => {
    if (toReplay) jumpTo("why-replay");
  }, [toReplay, loaded, promptLoaded]);

  const sections = sectionsOf(id !== undefined, hasReceipt(answer));
  return (
    <div class="why">
      <header class="why-head">
        <h2 ref={title} tabIndex={-1}>
          Why this answer?
        </h2>
        <button type="button" class="button bare square" aria-label="Close" title="Close (Escape)" onClick={onClose}>
          <Icon name="close" />
        </button>
        {sections.length > 2 && (
          <nav class="why-sections" aria-label="Sections">
            {sections.map(([section, label]) => (
              <button key={section} type="button" class="button bare tiny" onClick={() => jumpTo(section)}>
                {label}
              </button>
            ))}
          </nav>
        )}
      </header>
      {id === undefined ? (
        <p class="notice">
          <Icon name="why" /> This answer has no context from the context builder. Its agent fetches its own
          breadcrumbs.
        </p>
      ) : loaded.problem !== undefined ? (
        <div class="notice bad" role="alert">
          <Icon name="alert" />
          <div class="grow">
            <p>{loaded.problem}</p>
            <button type="button" class="button tiny" onClick={() => setAttempt(attempt + 1)}>
              Retry
            </button>
          </div>
        </div>
      ) : loaded.explanation === undefined ? (
        <p class="why-waiting soft" role="status">
          <span class="spinner" aria-hidden="true" /> Loading …
        </p>
      ) : (
        <Explained explained={loaded.explanation} />
      )}
      {answer.id !== undefined && (
        <ReceiptView
          answer={answer.id}
          withItems={id === undefined || loaded.problem !== undefined}
          onLoad={() => setPromptLoaded(true)}
        />
      )}
      {answer.id !== undefined && hasReceipt(answer) && (
        <ReplayView answer={answer.id} consumer={loaded.explanation?.consumer_id} />
      )}
    </div>
  );
}

/** Ids and names of the sections. The first two belong to the context, the others to the receipt. */
function sectionsOf(hasContext: boolean, hasPrompt: boolean): [string, string][] {
  const context: [string, string][] = [
    ["why-in", "Included"],
    ["why-out", "Left out"],
  ];
  const prompt: [string, string][] = [
    ["why-prompt", "Complete prompt"],
    ["why-replay", "Replay"],
  ];
  return [...(hasContext ? context : []), ...(hasPrompt ? prompt : [])];
}

/** Scroll to a section, and move the focus there for keyboards and screen readers. */
function jumpTo(section: string): void {
  const heading = document.getElementById(section);
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  heading.scrollIntoView({ block: "start" });
}

/** Whether the runtime stored how the answer was made. Only such answers can be replayed. */
function hasReceipt(answer: Message): boolean {
  return "model_receipt" in answer.context;
}

function textIn(answer: Message, name: string): string | undefined {
  const value = answer.context[name];
  return typeof value === "string" ? value : undefined;
}

function inWords(error: unknown): string {
  if (error instanceof ApiError && error.status === 404) {
    return "The context of this answer was deleted. It cannot be explained any more.";
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
            , built at <Time iso={explained.made_at}>{timeWithSeconds(explained.made_at)}</Time>
          </>
        )}
      </p>
      <Budget
        tokens={explained.tokens}
        budget={explained.budget}
        shares={sharesOf(items)}
        countedBy={explained.counted_by}
      />
      {explained.reuse !== undefined && <PrefixReuse reuse={explained.reuse} />}
      {explained.notes.map((note) => (
        <p key={note} class="notice warn">
          <Icon name="alert" /> {note}
        </p>
      ))}
      <section aria-labelledby="why-in">
        <h3 id="why-in">
          Included <span class="badge">{number(items.length)}</span>
        </h3>
        <p class="small soft">Items in the order of the prompt.</p>
        <ol class="why-items">
          {items.map((item, place) => (
            <ShownItem key={item.id ?? place} item={item} explained={explained} />
          ))}
        </ol>
        {explained.parts_as_shown === false && (
          <p class="small soft">Some items are not shown: they were deleted, or you may not read them.</p>
        )}
      </section>
      <section aria-labelledby="why-out">
        <h3 id="why-out">
          Left out{" "}
          <span class="badge">
            {number(out.length + explained.left_out_besides)}
            {explained.sources.some((source) => source.more) && "+"}
          </span>
        </h3>
        {out.length === 0 && !hasUnfetched(explained) && (
          <p class="small soft">Nothing. Everything that matches the sources is included.</p>
        )}
        <LeftOuts out={out} besides={explained.left_out_besides} />
        <NotFetched explained={explained} />
      </section>
      <Sources explained={explained} />
    </>
  );
}

/** One item of a context, with the source that found it. */
function ShownItem({ item, explained }: { item: Item; explained: Explanation }) {
  const shown = partOf(explained.parts, item.id);
  const source = item.number === undefined ? undefined : explained.sources[item.number];
  const who = item.hidden ? "No access" : speakerOf(item, shown?.creator);
  return (
    <li class={`why-item card part-${item.place} ${item.is_trigger ? "trigger" : ""}`}>
      <div class="why-line">
        <strong class="why-who">{who}</strong>
        {item.is_trigger && <span class="badge info">being answered</span>}
        {item.place === "shared" && <span class="badge">shared</span>}
        {item.place === "elsewhere" && <span class="badge warn">other session</span>}
        {item.schema_name === ATTACHMENT_SCHEMA && <span class="badge">attachment</span>}
        {item.cut && (
          <span class="badge" title={`Cut to ${number(item.cut.kept)} of ${number(item.cut.of)} characters`}>
            cut
          </span>
        )}
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
              "the message being answered is always included"
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
            <dt>Created</dt>
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

const LONG_TEXT = 280;

/** Content of an item as the model got it. Long texts are collapsed. */
function Content({ item, content }: { item: Item; content: Part["items"][number]["content"] | undefined }) {
  const [open, setOpen] = useState(false);
  if (item.hidden) return <p class="why-text soft">Your token may not read this item.</p>;
  if (item.gone) return <p class="why-text soft">This item was deleted or has expired.</p>;
  const { words, rest } = content ? wordsOf(content) : { words: item.excerpt ?? item.title ?? "", rest: {} };
  const more = Object.keys(rest).length > 0;
  const folded = !open && words.length > LONG_TEXT;
  return (
    <>
      {words && <p class="why-text">{folded ? `${words.slice(0, LONG_TEXT).trimEnd()} …` : words}</p>}
      {more && (open || !words) && <JsonView value={rest} label="Other fields" />}
      {(words.length > LONG_TEXT || (more && words)) && (
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

const MAX_LEFT_OUT = 12;

/** Items that were left out, grouped by reason. */
export function LeftOuts({ out, besides }: { out: readonly LeftOut[]; besides: number }) {
  const reasons = [...new Set(out.map((one) => one.reason))];
  return (
    <>
      {reasons.map((reason) => (
        <LeftOutFor key={reason} reason={reason} out={out.filter((one) => one.reason === reason)} />
      ))}
      {besides > 0 && <p class="small soft">{number(besides)} more are not listed.</p>}
    </>
  );
}

function LeftOutFor({ reason, out }: { reason: Reason; out: readonly LeftOut[] }) {
  const [all, setAll] = useState(false);
  const shown = all ? out : out.slice(0, MAX_LEFT_OUT);
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
              {one.hidden ? "No access" : one.gone ? "Deleted" : one.title || one.schema_name || "Breadcrumb"}
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

/** Queries of the sources, and how many items each found. */
export function Sources({ explained }: { explained: Explanation }) {
  return (
    <details class="why-sources">
      <summary>
        Sources <span class="badge">{number(explained.sources.length)}</span>
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
