/**
 * Timeline with one column per session. Time runs from top to bottom. Only visible rows are rendered, so that many
 * events do not slow it down.
 */

import { memo } from "preact/compat";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Icon } from "../../components/icons";
import { duration, number, plural, shortened, timeWithSeconds, wholeTime } from "../../lib/format";
import { href } from "../../lib/router";
import { PAUSE_HEIGHT, rowsOf, type Item, type Row } from "./items";
import { KINDS, SESSION } from "./kinds";

export interface TimelineProps {
  items: readonly Item[];
  /** Session ids, and "" for breadcrumbs without a session. */
  lanes: readonly string[];
  names: ReadonlyMap<string, string>;
  counts: ReadonlyMap<string, number>;
  gone: ReadonlySet<string>;
  older: "none" | "some" | "loading";
  onOlder: () => void;
  selected: string | undefined;
  onOpen: (item: Item) => void;
  onTag: (tag: string) => void;
  onSchema: (schema: string) => void;
  onFollowing: (following: boolean) => void;
}

// Always 24 hours, so that it fits into the column. The tooltip shows the localized date and time.
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

const OVERSCAN = 500;
const HEAD = 44;
const NEAR_THE_END = 48;

export function Timeline(props: TimelineProps) {
  const { items, lanes, selected } = props;
  const rows = useMemo(() => rowsOf(items, lanes), [items, lanes]);
  const scroller = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLOListElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const following = useRef(true);
  const anchor = useRef<{ key: string; offset: number } | null>(null);
  const [unseen, setUnseen] = useState(0);
  const lastKey = useRef("");
  const [current, setCurrent] = useState("");
  const focusWanted = useRef("");

  const whole = (rows.at(-1)?.top ?? 0) + (rows.at(-1)?.height ?? 0);
  const first = Math.max(0, place(rows, view.top - OVERSCAN));
  const end = Math.min(rows.length, place(rows, view.top + view.height + OVERSCAN) + 1);

  const look = useCallback(() => {
    const element = scroller.current;
    if (!element) return;
    setView({ top: element.scrollTop, height: element.clientHeight });
  }, []);

  const onScroll = () => {
    const element = scroller.current;
    if (!element) return;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_THE_END;
    if (atEnd !== following.current) {
      following.current = atEnd;
      props.onFollowing(atEnd);
    }
    if (atEnd) setUnseen(0);
    const row = rows[place(rows, element.scrollTop)];
    anchor.current = row ? { key: row.key, offset: element.scrollTop - row.top } : null;
    look();
  };

  useEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const watch = new ResizeObserver(() => {
      if (following.current) element.scrollTop = element.scrollHeight;
      look();
    });
    watch.observe(element);
    props.onFollowing(true);
    return () => watch.disconnect();
  }, []);

  // New rows are added below. Scroll to the end if the user was there, otherwise keep the position.
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const newest = rows.at(-1)?.key ?? "";
    if (following.current) {
      element.scrollTop = element.scrollHeight;
    } else {
      const held = anchor.current && rows.find((row) => row.key === anchor.current?.key);
      if (held && anchor.current) element.scrollTop = held.top + anchor.current.offset;
      const seenUntil = rows.findIndex((row) => row.key === lastKey.current);
      if (newest !== lastKey.current && seenUntil >= 0) setUnseen((count) => count + rows.length - 1 - seenUntil);
    }
    lastKey.current = newest;
    look();
  }, [rows]);

  const toEnd = () => {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  };

  // The board has a single tab stop. The arrow keys move between cards.
  const flat = useMemo(
    () => rows.flatMap((row, at) => row.cells.flatMap((item, lane) => (item ? [{ item, at, lane }] : []))),
    [rows],
  );
  const newest = items.findLast((item) => lanes.includes(item.session))?.key ?? "";
  const tabStop = flat.some(({ item }) => item.key === current) ? current : newest;
  // Always render the row of the tab stop, even if it is not visible: otherwise Tab could not reach the board.
  const stop = flat.find(({ item }) => item.key === tabStop)?.at ?? first;
  const drawn = rows.slice(first, end);
  const stopRow = rows[stop];
  if (stopRow && stop < first) drawn.unshift(stopRow);
  else if (stopRow && stop >= end) drawn.push(stopRow);

  const step = (from: string, key: string): string | undefined => {
    const here = flat.find(({ item }) => item.key === from);
    if (!here) return newest;
    if (key === "Home") return flat[0]?.item.key;
    if (key === "End") return newest;
    if (key === "ArrowUp" || key === "ArrowDown") {
      const lane = flat.filter((one) => one.lane === here.lane);
      return lane[lane.indexOf(here) + (key === "ArrowUp" ? -1 : 1)]?.item.key;
    }
    const direction = key === "ArrowLeft" ? -1 : 1;
    for (let lane = here.lane + direction; lane >= 0 && lane < lanes.length; lane += direction) {
      const there = flat.filter((one) => one.lane === lane);
      if (there.length === 0) continue;
      return there.reduce((a, b) => (Math.abs(a.at - here.at) <= Math.abs(b.at - here.at) ? a : b)).item.key;
    }
    return undefined;
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (!["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    const from = (event.target as HTMLElement).closest<HTMLElement>("[data-key]")?.dataset["key"];
    if (from === undefined) return;
    event.preventDefault();
    const to = step(from, event.key);
    if (to === undefined) return;
    focusWanted.current = to;
    setCurrent(to);
    const row = rows.find((one) => one.cells.some((item) => item?.key === to));
    const element = scroller.current;
    if (!row || !element) return;
    const top = HEAD + (list.current?.offsetTop ?? 0) + row.top;
    if (top < element.scrollTop + HEAD) element.scrollTop = top - HEAD;
    else if (top + row.height > element.scrollTop + element.clientHeight) {
      element.scrollTop = top + row.height - element.clientHeight;
    }
    look();
  };

  useLayoutEffect(() => {
    if (!focusWanted.current) return;
    const button = scroller.current?.querySelector<HTMLElement>(`[data-key="${CSS.escape(focusWanted.current)}"] .board-open`);
    if (button) {
      focusWanted.current = "";
      button.focus({ preventScroll: true });
    }
  });

  return (
    <div class="board-view">
      <div
        class="board-scroller"
        ref={scroller}
        onScroll={onScroll}
        onKeyDown={onKeyDown}
        style={{ "--lanes": lanes.length }}
      >
        <div class="board-head">
          <span class="board-gutter" />
          {lanes.map((session) => (
            <LaneHead
              key={session}
              session={session}
              name={laneName(session, lanes, props.names)}
              count={props.counts.get(session) ?? 0}
              onTag={props.onTag}
            />
          ))}
        </div>
        <div class="board-body">
          <div class="board-lines" aria-hidden="true">
            <span />
            {lanes.map((session) => (
              <span key={session} />
            ))}
          </div>
          {props.older !== "none" && (
            <div class="board-older">
              <button type="button" class="button tiny" disabled={props.older === "loading"} onClick={props.onOlder}>
                {props.older === "loading" ? "Loading …" : "Show older"}
              </button>
            </div>
          )}
          <ol class="board-rows" ref={list} aria-label="Events, newest last" style={{ height: `${whole}px` }}>
            {drawn.map((row) => (
              <RowView
                key={row.key}
                row={row}
                gone={props.gone}
                selected={selected}
                tabStop={tabStop}
                onOpen={props.onOpen}
                onTag={props.onTag}
                onSchema={props.onSchema}
                onFocus={setCurrent}
              />
            ))}
          </ol>
        </div>
      </div>
      <div class="board-unseen" role="status">
        {unseen > 0 && (
          <button type="button" class="button main" onClick={toEnd}>
            <Icon name="down" /> {number(unseen)} new
          </button>
        )}
      </div>
    </div>
  );
}

/** Return the title of a session, with its id if another lane has the same title. */
function laneName(session: string, lanes: readonly string[], names: ReadonlyMap<string, string>): string {
  const name = names.get(session);
  if (!name) return session;
  const alone = lanes.every((other) => other === session || names.get(other) !== name);
  return alone ? shortened(name, 60) : `${shortened(name, 30)} · ${session}`;
}

function LaneHead({ session, name, count, onTag }: {
  session: string;
  name: string;
  count: number;
  onTag: (tag: string) => void;
}) {
  if (session === "") {
    return (
      <div class="board-lane-head none">
        <span class="board-lane-name">No session</span>
        <span class="board-lane-count">{number(count)}</span>
      </div>
    );
  }
  return (
    <div class="board-lane-head">
      <button
        type="button"
        class="board-lane-name"
        title={`Show only session ${session}`}
        onClick={() => onTag(SESSION + session)}
      >
        {name}
      </button>
      <span class="board-lane-count" title={plural(count, "event")}>
        {number(count)}
      </span>
      <a class="board-lane-chat" href={href("chat", [session])} aria-label={`Open ${name} in chat`} title="Open in chat">
        <Icon name="chat" />
      </a>
    </div>
  );
}

interface RowProps {
  row: Row;
  gone: ReadonlySet<string>;
  selected: string | undefined;
  tabStop: string;
  onOpen: (item: Item) => void;
  onTag: (tag: string) => void;
  onSchema: (schema: string) => void;
  onFocus: (key: string) => void;
}

const RowView = memo(
  function RowView({ row, gone, selected, tabStop, onOpen, onTag, onSchema, onFocus }: RowProps) {
    return (
      <li class="board-row" style={{ transform: `translateY(${row.top}px)`, height: `${row.height}px` }}>
        {row.pause !== undefined && (
          <span class="board-pause" style={{ height: `${PAUSE_HEIGHT}px` }}>
            <span>{duration(row.pause)} later</span>
          </span>
        )}
        <time class={`board-gutter ${row.since === undefined ? "" : "since"}`} dateTime={row.at} title={wholeTime(row.at)}>
          {row.since === undefined ? clock.format(row.ms) : `+${duration(row.since)}`}
        </time>
        {row.cells.map((item, lane) => (
          <div class="board-cell" key={lane}>
            {item && (
              <Card
                item={item}
                gone={gone.has(item.id)}
                on={selected === item.key}
                tabStop={tabStop === item.key}
                onOpen={onOpen}
                onTag={onTag}
                onSchema={onSchema}
                onFocus={onFocus}
              />
            )}
          </div>
        ))}
      </li>
    );
  },
  (before, after) =>
    before.row.key === after.row.key &&
    before.row.top === after.row.top &&
    before.row.cells.length === after.row.cells.length &&
    before.row.cells.every((item, lane) => {
      const now = after.row.cells[lane];
      if (item !== now) return false;
      if (!item) return true;
      return (
        (before.selected === item.key) === (after.selected === item.key) &&
        (before.tabStop === item.key) === (after.tabStop === item.key) &&
        before.gone.has(item.id) === after.gone.has(item.id)
      );
    }) &&
    before.onOpen === after.onOpen,
);

interface CardProps {
  item: Item;
  gone: boolean;
  on: boolean;
  tabStop: boolean;
  onOpen: (item: Item) => void;
  onTag: (tag: string) => void;
  onSchema: (schema: string) => void;
  onFocus: (key: string) => void;
}

function Card({ item, gone, on, tabStop, onOpen, onTag, onSchema, onFocus }: CardProps) {
  const { icon, name } = KINDS[item.kind];
  const deleted = item.operation === "deleted";
  const text = deleted ? "Deleted" : item.text || "(no text)";
  const tags = item.tags.filter((tag) => !tag.startsWith(SESSION));
  return (
    <div
      class={`board-card ${item.kind} ${on ? "on" : ""} ${gone ? "gone" : ""}`}
      data-key={item.key}
      data-id={item.id}
      data-kind={item.kind}
    >
      <span class="board-mark">
        <Icon name={deleted ? "trash" : icon} />
      </span>
      <button
        type="button"
        class="board-open"
        tabIndex={tabStop ? 0 : -1}
        aria-current={on ? "true" : undefined}
        onClick={() => onOpen(item)}
        onFocus={() => onFocus(item.key)}
      >
        <span class="unseen">{name}: </span>
        <span class="board-text">{text}</span>
        {item.version > 1 && !deleted && <span class="badge">v{item.version}</span>}
        <span class="unseen">
          , {item.session ? `session ${item.session}` : "no session"}, {timeWithSeconds(item.at)}
        </span>
      </button>
      {/* Not focusable: keyboard users find the same tags in the details. */}
      <span class="board-tags">
        {item.schema && <SmallTag text={item.schema} schema onClick={() => onSchema(item.schema)} />}
        {tags.map((tag) => (
          <SmallTag key={tag} text={tag} onClick={() => onTag(tag)} />
        ))}
      </span>
    </div>
  );
}

function SmallTag({ text, schema = false, onClick }: { text: string; schema?: boolean; onClick: () => void }) {
  return (
    <button
      type="button"
      class={`board-tag ${schema ? "schema" : ""}`}
      tabIndex={-1}
      title={`Show only ${text}`}
      onClick={onClick}
    >
      {text}
    </button>
  );
}

/** Return the index of the row at this vertical position. */
function place(rows: readonly Row[], top: number): number {
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((rows[middle]?.top ?? 0) <= top) low = middle;
    else high = middle - 1;
  }
  return low;
}

