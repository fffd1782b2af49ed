/** Details of one breadcrumb: its turn, its content, its versions. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, messageOf, type Breadcrumb } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { JsonTree } from "../../components/json-tree";
import { Tag } from "../../components/tag";
import { Time } from "../../components/time";
import { toast } from "../../components/toast";
import { bytes, dayName, plural, timeWithSeconds } from "../../lib/format";
import { href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Filters } from "./filters";
import type { Item } from "./items";
import { gist, KINDS, kindOf, sessionOf } from "./kinds";
import { TurnGraph } from "./turn-graph";
import { useHistory, Versions } from "./versions";

interface DetailProps {
  id: string;
  version: number | undefined;
  /** The item in the timeline, if it is loaded. */
  known: Item | undefined;
  filters: Filters;
  /** Increases with every event of this breadcrumb. */
  changes: number;
  /** Increases with every event of its session. */
  tick: number;
  onLoaded: (crumb: Breadcrumb) => void;
  onOpen: (id: string, version?: number) => void;
  onTag: (tag: string) => void;
  onSchema: (schema: string) => void;
  onClose: () => void;
}

const TABS = { turn: "Turn", content: "Content", versions: "Versions" } as const;
type Tab = keyof typeof TABS;

/** The last selected tab, used for the next breadcrumb too. */
let preferred: Tab = "turn";

export function Detail(props: DetailProps) {
  const { id, version, known, onClose } = props;
  const [crumb, setCrumb] = useState<Breadcrumb>();
  const [problem, setProblem] = useState<{ text: string; gone: boolean }>();
  const [tab, setTab] = useState<Tab>(preferred);
  const heading = useRef<HTMLHeadingElement>(null);

  useEffect(() => {
    const abort = new AbortController();
    setProblem(undefined);
    client.breadcrumbs.full(id, abort.signal).then(
      (found) => {
        setCrumb(found);
        props.onLoaded(found);
      },
      (error: unknown) => {
        if (abort.signal.aborted) return;
        setProblem({ text: messageOf(error), gone: error instanceof ApiError && error.status === 404 });
      },
    );
    return () => abort.abort();
  }, [id, props.changes]);

  useEffect(() => heading.current?.focus({ preventScroll: true }), [id]);

  const shown = crumb?.id === id ? crumb : undefined;
  const kind = kindOf(shown?.schema_name ?? known?.schema, shown?.tags ?? known?.tags);
  const { icon, name } = KINDS[kind];
  const hasTurn = shown !== undefined && (kind !== "other" || typeof shown.context?.["trigger_id"] === "string");
  const tabs = (Object.keys(TABS) as Tab[]).filter((one) => one !== "turn" || hasTurn);
  const active = tabs.includes(tab) ? tab : "content";
  const choose = (next: Tab) => {
    preferred = next;
    setTab(next);
  };
  const onTabKey = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = tabs[(tabs.indexOf(active) + step + tabs.length) % tabs.length];
    if (step === 0 || next === undefined) return;
    event.preventDefault();
    choose(next);
    (event.currentTarget as HTMLElement).querySelector<HTMLElement>(`#board-tab-${next}`)?.focus();
  };

  return (
    <aside class="board-detail" aria-labelledby="board-detail-name">
      <header class={`board-detail-head ${kind}`}>
        <span class="board-mark">
          <Icon name={icon} />
        </span>
        <div class="grow">
          <h2 id="board-detail-name" ref={heading} tabIndex={-1}>
            {name}
            {version !== undefined && shown && version !== shown.version && <span class="badge">v{version}</span>}
          </h2>
          <p class="board-detail-text">{(shown && (gist(kind, shown.context) || shown.title)) || known?.text || ""}</p>
        </div>
        <button type="button" class="button bare square" aria-label="Close details" title="Close (Esc)" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div class="board-detail-body">
        {problem &&
          (problem.gone ? (
            <p class="notice warn" role="status">
              <Icon name="trash" /> Not found. The breadcrumb was deleted or has expired.
            </p>
          ) : (
            <p class="notice bad" role="alert">
              <Icon name="alert" /> {problem.text}
            </p>
          ))}
        {shown && !problem && (
          <>
            <Facts crumb={shown} {...props} />
            <div class="board-tabs" role="tablist" aria-label="Details" onKeyDown={onTabKey}>
              {tabs.map((one) => (
                <button
                  key={one}
                  type="button"
                  role="tab"
                  id={`board-tab-${one}`}
                  aria-selected={one === active}
                  aria-controls="board-panel"
                  tabIndex={one === active ? 0 : -1}
                  onClick={() => choose(one)}
                >
                  {TABS[one]}
                  {one === "versions" && shown.version > 1 && <span class="badge">{shown.version}</span>}
                </button>
              ))}
            </div>
            <div class="board-panel" role="tabpanel" id="board-panel" aria-labelledby={`board-tab-${active}`}>
              {active === "turn" && <TurnOf crumb={shown} version={version} tick={props.tick} onOpen={props.onOpen} />}
              {active === "content" && <Content crumb={shown} version={version} onOpen={props.onOpen} />}
              {active === "versions" && <Versions id={id} newest={shown.version} wanted={version} />}
            </div>
          </>
        )}
        {!shown && !problem && <p class="soft">Loading …</p>}
      </div>
    </aside>
  );
}

function Facts({ crumb, filters, onTag, onSchema }: DetailProps & { crumb: Breadcrumb }) {
  const session = sessionOf(crumb.tags);
  const size = crumb["size_bytes"];
  const copy = async (what: string, text: string) => {
    try {
      await navigator.clipboard.writeText(text);
      toast(`${what} copied`);
    } catch {
      toast("Copying failed: the browser denied access to the clipboard.", true);
    }
  };
  return (
    <>
      <div class="board-all-tags">
        {crumb.schema_name && (
          <Tag tag={crumb.schema_name} on={filters.schema === crumb.schema_name} onClick={onSchema} />
        )}
        {crumb.tags.map((tag) => (
          <Tag key={tag} tag={tag} on={filters.tags.includes(tag)} onClick={onTag} />
        ))}
      </div>
      <dl class="board-facts">
        <dt>Created</dt>
        <dd>
          <Time iso={crumb.created_at}>{`${dayName(crumb.created_at)}, ${timeWithSeconds(crumb.created_at)}`}</Time>
        </dd>
        {crumb.version > 1 && (
          <>
            <dt>Updated</dt>
            <dd>
              <Time iso={crumb.updated_at}>{`${dayName(crumb.updated_at)}, ${timeWithSeconds(crumb.updated_at)}`}</Time>
              {`, ${plural(crumb.version, "version")}`}
            </dd>
          </>
        )}
        <dt>Id</dt>
        <dd>
          <code class="board-id">{crumb.id}</code>
          <button type="button" class="button bare tiny square" aria-label="Copy id" title="Copy" onClick={() => copy("Id", crumb.id)}>
            <Icon name="copy" />
          </button>
        </dd>
        {session !== undefined && (
          <>
            <dt>Session</dt>
            <dd>
              <a href={href("chat", [session])}>{session}</a>
            </dd>
          </>
        )}
        {typeof size === "number" && (
          <>
            <dt>Size</dt>
            <dd>{bytes(size)}</dd>
          </>
        )}
      </dl>
    </>
  );
}

/** Turn of a breadcrumb. An older version of a context belongs to the turn of an earlier message. */
function TurnOf({ crumb, version, tick, onOpen }: {
  crumb: Breadcrumb;
  version: number | undefined;
  tick: number;
  onOpen: DetailProps["onOpen"];
}) {
  const older = version !== undefined && version !== crumb.version;
  return older ? (
    <OlderTurn crumb={crumb} version={version} tick={tick} onOpen={onOpen} />
  ) : (
    <TurnGraph crumb={crumb} tick={tick} onOpen={onOpen} />
  );
}

function OlderTurn({ crumb, version, tick, onOpen }: {
  crumb: Breadcrumb;
  version: number;
  tick: number;
  onOpen: DetailProps["onOpen"];
}) {
  const { versions, problem } = useHistory(crumb.id, crumb.version);
  if (problem) return <p class="notice bad">{problem}</p>;
  if (!versions) return <p class="soft">Loading …</p>;
  const origin = versions.find((one) => one.version === version)?.context?.["trigger_id"];
  return <TurnGraph crumb={crumb} tick={tick} onOpen={onOpen} {...(typeof origin === "string" && { origin })} />;
}

function Content({ crumb, version, onOpen }: {
  crumb: Breadcrumb;
  version: number | undefined;
  onOpen: DetailProps["onOpen"];
}) {
  if (version !== undefined && version !== crumb.version) return <OlderContent crumb={crumb} version={version} onOpen={onOpen} />;
  return <Document value={crumb} />;
}

function OlderContent({ crumb, version, onOpen }: { crumb: Breadcrumb; version: number; onOpen: DetailProps["onOpen"] }) {
  const { versions, problem } = useHistory(crumb.id, crumb.version);
  if (problem) return <p class="notice bad">{problem}</p>;
  if (!versions) return <p class="soft">Loading …</p>;
  const found = versions.find((one) => one.version === version);
  return (
    <>
      <p class="notice">
        <span class="grow">
          {found ? `This is version ${version} of ${crumb.version}.` : `Version ${version} is no longer stored.`}
        </span>
        <button type="button" class="button tiny" onClick={() => onOpen(crumb.id)}>
          Show newest
        </button>
      </p>
      {found && <Document value={{ ...found }} />}
    </>
  );
}

function Document({ value }: { value: Record<string, unknown> }) {
  const [plain, setPlain] = useState(false);
  const text = JSON.stringify(value, null, 2);
  // Title and context first: the other fields are similar for all breadcrumbs.
  const { context, title, ...rest } = value;
  return (
    <>
      <div class="board-document-bar">
        <button type="button" class="button tiny" aria-pressed={plain} onClick={() => setPlain(!plain)}>
          {plain ? "Show tree" : "Show text"}
        </button>
        <button
          type="button"
          class="button tiny"
          onClick={() =>
            navigator.clipboard?.writeText(text).then(
              () => toast("JSON copied"),
              () => toast("Copying failed: the browser denied access to the clipboard.", true),
            )
          }
        >
          <Icon name="copy" /> Copy
        </button>
      </div>
      {plain ? (
        <pre class="json" tabIndex={0} role="region" aria-label="JSON">
          {text}
        </pre>
      ) : (
        <JsonTree value={{ title, context, ...rest }} label="Breadcrumb" open={2} />
      )}
    </>
  );
}
