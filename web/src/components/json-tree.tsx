/** JSON as a tree whose branches can be opened and closed. Closed branches are not rendered. */

import { useState } from "preact/hooks";
import { plural } from "../lib/format";
import { Icon } from "./icons";

interface TreeProps {
  value: unknown;
  label: string;
  /** Number of levels that are open initially. */
  open?: number;
}

const LONG_TEXT = 600;
const PAGE_SIZE = 100;
/** Longer lists are closed initially. */
const SHORT_LIST = 20;

export function JsonTree({ value, label, open = 2 }: TreeProps) {
  return (
    <div class="json-tree" role="group" aria-label={label}>
      <Value value={value} open={open} />
    </div>
  );
}

function Value({ value, open, name }: { value: unknown; open: number; name?: string }) {
  if (value !== null && typeof value === "object") return <Branch value={value} open={open} {...(name !== undefined && { name })} />;
  return (
    <div class="json-line">
      <Name name={name} />
      <Leaf value={value} />
    </div>
  );
}

function Name({ name }: { name: string | undefined }) {
  return name === undefined ? null : (
    <>
      <span class="json-key">{name}</span>
      <span class="json-mark">: </span>
    </>
  );
}

function Branch({ value, open, name }: { value: object; open: number; name?: string }) {
  const list = Array.isArray(value);
  const entries: [string, unknown][] = list ? value.map((item, place) => [String(place), item]) : Object.entries(value);
  const [shown, setShown] = useState(open > 0 && entries.length > 0 && (!list || entries.length <= SHORT_LIST));
  const [most, setMost] = useState(PAGE_SIZE);
  if (entries.length === 0) {
    return (
      <div class="json-line">
        <Name name={name} />
        <span class="json-mark">{list ? "[ ]" : "{ }"}</span>
      </div>
    );
  }
  return (
    <div class="json-branch">
      <button type="button" class="json-toggle" aria-expanded={shown} onClick={() => setShown(!shown)}>
        <Icon name="chevron" />
        {name === undefined ? null : <span class="json-key">{name}</span>}
        <span class="json-count">{plural(entries.length, list ? "item" : "field")}</span>
        {!shown && <span class="json-hint">{hint(entries, list)}</span>}
      </button>
      {shown && (
        <div class="json-inside">
          {entries.slice(0, most).map(([key, inside]) => (
            <Value key={key} value={inside} open={open - 1} name={key} />
          ))}
          {entries.length > most && (
            <button type="button" class="button bare tiny" onClick={() => setMost(most + PAGE_SIZE)}>
              Show {plural(entries.length - most, "more", "more")}
            </button>
          )}
        </div>
      )}
    </div>
  );
}

/** Return a short preview of the content of a closed branch. */
function hint(entries: [string, unknown][], list: boolean): string {
  const first = entries.slice(0, 4).map(([key, value]) => (list ? short(value) : key));
  return `${first.join(", ")}${entries.length > 4 ? ", …" : ""}`;
}

function short(value: unknown): string {
  if (typeof value === "string") return value.length > 24 ? `${value.slice(0, 23)}…` : value;
  return value !== null && typeof value === "object" ? "…" : String(value);
}

function Leaf({ value }: { value: unknown }) {
  const [whole, setWhole] = useState(false);
  if (typeof value === "string") {
    const long = value.length > LONG_TEXT && !whole;
    return (
      <>
        <span class="json-text">{value === "" ? '""' : long ? value.slice(0, LONG_TEXT) : value}</span>
        {long && (
          <>
            {"… "}
            <button type="button" class="button bare tiny" onClick={() => setWhole(true)}>
              Show all {plural(value.length, "character")}
            </button>
          </>
        )}
      </>
    );
  }
  return <span class={typeof value === "number" ? "json-number" : "json-word"}>{String(value)}</span>;
}
