/** The blackboard page: live events, in one lane per session. */

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { messageOf, type Breadcrumb } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { number, plural } from "../../lib/format";
import { useShortcuts } from "../../lib/keys";
import { go, href, route } from "../../lib/router";
import { client } from "../../lib/server";
import { Stream } from "../../lib/stream";
import { Detail } from "./detail";
import { asQuery, boardHref, matches, readFilters, toggledSchema, toggledTag, type Filters } from "./filters";
import { chooseLanes, fromEvent, fromList, merged, type Item } from "./items";
import { SESSION, sessionOf } from "./kinds";
import { olderContexts } from "./older-contexts";
import { Timeline } from "./timeline";
import { textsOf } from "./untitled";
import "./board.css";

const PAGE = 200;
const MAX_ITEMS = 2_000;
/** Schemas whose text is in the context and not in the title. */
const SCHEMAS_WITH_TEXT = ["user.message.v1", "agent.error.v1"];
const MAX_WAITING = 2_000;
/** Events that arrive within this time are rendered together, so that a burst costs one rendering. */
const BATCH_MS = 60;

export default function BoardPage() {
  const { rest, query } = route.value;
  const id = rest[0];
  const version = Number(query["version"]) || undefined;
  const filters = useMemo(() => readFilters(location.hash), [route.value]);
  const filterKey = JSON.stringify(filters);

  const [items, setItems] = useState<readonly Item[]>([]);
  const [loaded, setLoaded] = useState(false);
  const [problem, setProblem] = useState("");
  const [paused, setPaused] = useState(false);
  const [waiting, setWaiting] = useState(0);
  const [dropped, setDropped] = useState(0);
  const [following, setFollowing] = useState(true);
  const [older, setOlder] = useState<"none" | "some" | "loading">("none");
  const [most, setMost] = useState(() => Math.min(8, Math.max(3, Math.floor((window.innerWidth - 90) / 230))));
  const [names, setNames] = useState<ReadonlyMap<string, string>>(new Map());
  const [touched, setTouched] = useState({ id: "", changes: 0, tick: 0 });

  const current = useRef<Filters>(filters);
  const stream = useRef<Stream | undefined>(undefined);
  const held = useRef<Item[]>([]);
  const arriving = useRef<Item[]>([]);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const cursor = useRef<string | undefined>(undefined);
  const room = useRef(MAX_ITEMS);
  const isPaused = useRef(false);
  const open = useRef<{ id: string | undefined; session: string }>({ id, session: "" });

  const show = useCallback((more: readonly Item[]) => {
    const wanted = more.filter((item) => matches(item, current.current));
    if (wanted.length === 0) return;
    setItems((known) => merged(known, wanted, room.current));
  }, []);

  const arrive = useCallback((item: Item) => {
    // The details are updated even while the board is paused.
    const looking = open.current;
    if (looking.id !== undefined && (item.id === looking.id || (looking.session && item.session === looking.session))) {
      setTouched((before) => ({
        id: looking.id ?? "",
        changes: before.changes + (item.id === looking.id ? 1 : 0),
        tick: before.tick + 1,
      }));
    }
    if (isPaused.current) {
      held.current.push(item);
      if (held.current.length > MAX_WAITING) {
        held.current.shift();
        setDropped((before) => before + 1);
      }
      setWaiting(held.current.length);
      return;
    }
    arriving.current.push(item);
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      show(arriving.current.splice(0));
    }, BATCH_MS);
  }, []);

  const load = useCallback(async (limit: number, signal?: AbortSignal) => {
    const asked = current.current;
    const asks = { ...asQuery(asked), sort: "-updated_at" as const, limit };
    // Only these schemas are listed with their context: they are small. Contexts are large, and their titles suffice.
    const withText = SCHEMAS_WITH_TEXT.filter((schema) => asked.schema === "" || asked.schema === schema);
    try {
      const [all, ...pages] = await Promise.all([
        client.breadcrumbs.list(asks, signal),
        ...withText.map((schema) =>
          client.breadcrumbs.list({ ...asks, schema_name: schema, include_context: true }, signal),
        ),
      ]);
      if (asked !== current.current) return;
      const withContext = new Map(pages.flatMap((page) => page.items.map((crumb) => [crumb.id, crumb])));
      show(all.items.map((crumb) => fromList(withContext.get(crumb.id) ?? crumb)));
      if (limit === PAGE) {
        cursor.current = all.next;
        setOlder(all.next === undefined ? "none" : "some");
      }
      setProblem("");
      const listed = all.items.filter((crumb) => !withContext.has(crumb.id));
      const [older, texts] = await Promise.all([
        olderContexts(all.items, all.next === undefined, signal),
        textsOf(listed, asks, signal),
      ]);
      if (asked === current.current) show([...older, ...texts]);
    } catch (error) {
      if (!signal?.aborted) setProblem(messageOf(error));
    } finally {
      if (!signal?.aborted) setLoaded(true);
    }
  }, []);

  useEffect(() => {
    stream.current = new Stream(asQuery(current.current), {
      onEvent: (event) => {
        const item = fromEvent(event);
        if (item) arrive(item);
      },
      // Breadcrumbs written between the first list and the start of the stream are in neither.
      onOpen: (again) => void (!again && load(50)),
      onGap: () => void load(PAGE),
    });
    client.sessions.list({ limit: 100 }).then(
      (page) => setNames(new Map(page.sessions.map((one) => [one.id, one.title ?? one.summary ?? ""]))),
      () => {}, // the board works without names
    );
    return () => {
      stream.current?.close();
      clearTimeout(timer.current);
    };
  }, []);

  useEffect(() => {
    current.current = filters;
    const abort = new AbortController();
    stream.current?.follow(asQuery(filters));
    setItems((known) => known.filter((item) => matches(item, filters)));
    room.current = MAX_ITEMS;
    void load(PAGE, abort.signal);
    return () => abort.abort();
  }, [filterKey]);

  const loadOlder = useCallback(async () => {
    const asked = current.current;
    if (cursor.current === undefined) return;
    setOlder("loading");
    try {
      const query = { ...asQuery(asked), sort: "-updated_at", limit: PAGE, cursor: cursor.current } as const;
      const page = await client.breadcrumbs.list(query);
      if (asked !== current.current) return;
      room.current += page.items.length;
      cursor.current = page.next;
      show(page.items.map(fromList));
      setOlder(page.next === undefined ? "none" : "some");
      const older = await olderContexts(page.items, page.next === undefined);
      room.current += older.length;
      if (asked === current.current) show(older);
    } catch (error) {
      setProblem(messageOf(error));
      setOlder("some");
    }
  }, []);

  const togglePause = useCallback(() => {
    isPaused.current = !isPaused.current;
    setPaused(isPaused.current);
    if (!isPaused.current) {
      show(held.current.splice(0));
      setWaiting(0);
      setDropped(0);
    }
  }, []);

  // Lanes keep their positions as long as they are shown.
  const places = useRef<string[]>([]);
  const { lanes, hidden, counts, gone } = useMemo(() => {
    const counts = new Map<string, number>();
    for (const item of items) counts.set(item.session, (counts.get(item.session) ?? 0) + 1);
    places.current = chooseLanes(places.current, items, most);
    const all = counts.size - (counts.has("") ? 1 : 0);
    const lanes = counts.has("") ? [...places.current, ""] : places.current;
    const gone = new Set(items.filter((item) => item.operation === "deleted").map((item) => item.id));
    return { lanes, hidden: all - places.current.length, counts, gone };
  }, [items, most]);

  const goTo = (place: { id?: string | undefined; version?: number | undefined } & Partial<Filters>) =>
    go(boardHref({ ...readFilters(location.hash), ...place }));
  const shown = useRef(items);
  shown.current = items;
  const onOpen = useCallback((item: Item) => {
    // If there are several versions, open the version of this card.
    const several = shown.current.some((other) => other.id === item.id && other.version !== item.version);
    const wanted = (several || item.version > 1) && item.operation !== "deleted";
    goTo({ id: item.id, version: wanted ? item.version : undefined });
  }, []);
  const onLoaded = useCallback((crumb: Breadcrumb) => {
    if (open.current.id === crumb.id) open.current.session = sessionOf(crumb.tags) ?? "";
  }, []);
  const onOpenId = useCallback((other: string, wanted?: number) => goTo({ id: other, version: wanted }), []);
  const onTag = useCallback((tag: string) => {
    const here = route.peek();
    goTo({ id: here.rest[0], ...toggledTag(readFilters(location.hash), tag) });
  }, []);
  const onSchema = useCallback((schema: string) => {
    const here = route.peek();
    goTo({ id: here.rest[0], ...toggledSchema(readFilters(location.hash), schema) });
  }, []);
  const close = useCallback(() => {
    const key = document.querySelector<HTMLElement>(".board-card.on")?.dataset["key"];
    goTo({ id: undefined });
    // Return the focus to the card.
    setTimeout(() => {
      const card = key && document.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"] .board-open`);
      if (card) card.focus({ preventScroll: true });
    });
  }, []);

  const known = id === undefined ? undefined : findItem(items, id, version);
  if (open.current.id !== id) open.current = { id, session: known?.session ?? "" };
  const filtered = filters.schema !== "" || filters.tags.length > 0;

  useShortcuts(
    [
      { keys: "p", what: "Pause or resume", group: "Blackboard", run: togglePause },
      { keys: "f", what: "Filter by tag or schema", group: "Blackboard", run: () => document.getElementById("board-filter")?.focus() },
      { keys: "Escape", what: "Close details", group: "Blackboard", run: close },
      { keys: "↑ ↓ ← →", what: "Move between cards", group: "Blackboard" },
    ],
    [],
  );

  return (
    <div class={`board-page ${id === undefined ? "" : "with-detail"}`}>
      <section class="board-main" aria-labelledby="board-title">
        <div class="board-bar">
          <h1 id="board-title">Blackboard</h1>
          <button
            type="button"
            class={`button tiny board-pause-button ${paused ? "main" : ""}`}
            aria-pressed={paused}
            title={paused ? "Resume (p)" : "Pause (p)"}
            onClick={togglePause}
          >
            <Icon name={paused ? "play" : "pause"} />
            {paused ? (waiting ? `Resume · ${number(waiting)} waiting` : "Resume") : "Pause"}
          </button>
          <FilterBox items={items} onTag={onTag} onSchema={onSchema} />
          <span class="board-count soft small" aria-live="off">
            {plural(items.length, "event")} · {plural(counts.size - (counts.has("") ? 1 : 0), "session")}
            {!following && !paused && " · scrolled back"}
            {dropped > 0 && ` · paused too long: ${plural(dropped, "event")} dropped`}
          </span>
          {hidden > 0 && (
            <button type="button" class="button tiny" onClick={() => setMost((count) => count + 8)}>
              Show {plural(hidden, "more session")}
            </button>
          )}
        </div>
        {filtered && (
          <ul class="board-chips" aria-label="Filters">
            {filters.schema && <Chip text={filters.schema} onRemove={() => onSchema(filters.schema)} />}
            {filters.tags.map((tag) => (
              <Chip key={tag} text={tag} onRemove={() => onTag(tag)} />
            ))}
            <li>
              <button type="button" class="button bare tiny" onClick={() => goTo({ id, schema: "", tags: [] })}>
                Clear filters
              </button>
            </li>
          </ul>
        )}
        {problem && (
          <p class="notice bad board-problem" role="alert">
            <Icon name="alert" /> <span class="grow">{problem}</span>
            <button type="button" class="button tiny" onClick={() => void load(PAGE)}>
              Retry
            </button>
          </p>
        )}
        {items.length > 0 ? (
          <Timeline
            items={items}
            lanes={lanes}
            names={names}
            counts={counts}
            gone={gone}
            older={older}
            onOlder={loadOlder}
            selected={known?.key}
            onOpen={onOpen}
            onTag={onTag}
            onSchema={onSchema}
            onFollowing={setFollowing}
          />
        ) : (
          loaded && !problem && <Nothing filtered={filtered} />
        )}
      </section>
      {id !== undefined && (
        <Detail
          key={id}
          id={id}
          version={version}
          known={known}
          filters={filters}
          changes={touched.id === id ? touched.changes : 0}
          tick={touched.id === id ? touched.tick : 0}
          onLoaded={onLoaded}
          onOpen={onOpenId}
          onTag={onTag}
          onSchema={onSchema}
          onClose={close}
        />
      )}
    </div>
  );
}

function findItem(items: readonly Item[], id: string, version: number | undefined): Item | undefined {
  return (
    (version === undefined ? undefined : items.find((item) => item.id === id && item.version === version)) ??
    items.findLast((item) => item.id === id)
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  return (
    <div class="empty">
      <Icon name="board" />
      <h2>{filtered ? "No matches" : "No events yet"}</h2>
      <p>
        {filtered
          ? "No breadcrumb matches all filters. New matches will appear here."
          : "Messages, contexts, tool calls and answers will appear here as soon as they are written."}
      </p>
      {!filtered && (
        <a class="button main" href={href("chat")}>
          Open chat
        </a>
      )}
    </div>
  );
}

function Chip({ text, onRemove }: { text: string; onRemove: () => void }) {
  return (
    <li class="tag on board-chip">
      <span>{text}</span>
      <button type="button" aria-label={`Remove filter ${text}`} onClick={onRemove}>
        <Icon name="close" />
      </button>
    </li>
  );
}

function FilterBox({ items, onTag, onSchema }: {
  items: readonly Item[];
  onTag: (tag: string) => void;
  onSchema: (schema: string) => void;
}) {
  const field = useRef<HTMLInputElement>(null);
  const { schemas, tags } = useMemo(() => {
    const tags = new Set(items.flatMap((item) => item.tags));
    return { schemas: new Set(items.map((item) => item.schema).filter(Boolean)), tags };
  }, [items]);
  const choices = [...schemas, ...[...tags].sort((a, b) => Number(a.startsWith(SESSION)) - Number(b.startsWith(SESSION)))];
  return (
    <form
      class="board-filter"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const wanted = field.current?.value.trim() ?? "";
        if (!wanted) return;
        if (schemas.has(wanted) || /^[\w-]+(\.[\w-]+)+$/.test(wanted)) onSchema(wanted);
        else onTag(wanted);
        if (field.current) field.current.value = "";
      }}
    >
      <Icon name="filter" />
      <input
        ref={field}
        id="board-filter"
        class="field"
        list="board-choices"
        placeholder="Tag or schema"
        aria-label="Filter by tag or schema"
        autoComplete="off"
        spellcheck={false}
        maxLength={256}
      />
      <datalist id="board-choices">
        {choices.slice(0, 200).map((choice) => (
          <option key={choice} value={choice} />
        ))}
      </datalist>
    </form>
  );
}
