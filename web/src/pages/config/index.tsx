/** The context configs: edit them, see at once what the model would see, save. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { messageOf, type Json } from "@breadcrumbs/client";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { attempt, toast } from "../../components/toast";
import { contexts, laidOut, type Complaint } from "../../lib/contexts";
import { plural } from "../../lib/format";
import { useShortcuts } from "../../lib/keys";
import { go, href, route } from "../../lib/router";
import { client } from "../../lib/server";
import { Editor } from "./editor";
import { Preview } from "./preview";
import {
  checkOne,
  configs,
  edit,
  entries,
  follow,
  forget,
  isEdited,
  load,
  overtaken,
  parsed,
  problem,
  rebase,
  save,
  startNew,
  textOf,
  type Entry,
} from "./state";
import "./config.css";

export default function ConfigPage() {
  useEffect(follow, []);
  const all = entries.value;
  const { rest, query } = route.value;
  const entry = chosen(all, rest[0], query["consumer"]);
  if (configs.value === null) {
    return problem.value ? (
      <div class="empty" role="alert">
        <Icon name="alert" />
        <p>{problem.value}</p>
        <button type="button" class="button" onClick={() => void load()}>
          Try again
        </button>
      </div>
    ) : (
      <div class="config" aria-busy="true" />
    );
  }
  return (
    <div class="config">
      <ConfigList all={all} shown={entry} />
      {entry ? <Workbench entry={entry} key={entry.key} /> : <Nothing />}
    </div>
  );
}

function chosen(all: readonly Entry[], key?: string, consumer?: string): Entry | undefined {
  return (
    all.find((entry) => entry.key === key) ??
    all.find((entry) => consumer !== undefined && entry.holds.includes(consumer)) ??
    all.find((entry) => entry.holds.length > 0) ??
    all[0]
  );
}

const KINDS: Record<Entry["kind"], string> = {
  file: "File",
  "built-in": "File, not writable",
  breadcrumb: "Breadcrumb",
  new: "Not saved yet",
};

function ConfigList({ all, shown }: { all: readonly Entry[]; shown: Entry | undefined }) {
  const { query } = route.value;
  const keep = query["session"] === undefined ? {} : { session: query["session"] };
  return (
    <nav class="config-list" aria-label="Context configs">
      <h1>Context configs</h1>
      <ul>
        {all.map((entry) => (
          <li key={entry.key}>
            <a
              href={href("config", [entry.key], keep)}
              aria-current={entry.key === shown?.key ? "true" : undefined}
              title={entry.path ?? entry.name}
            >
              <span class="config-name">
                {entry.name}
                {isEdited(entry) && <span class="config-dot" title="Edited, not saved" />}
                {isEdited(entry) && <span class="unseen">, edited</span>}
              </span>
              <span class="config-kind">
                {entry.deleted ? "Deleted meanwhile" : KINDS[entry.kind]}
                {entry.kind !== "new" && <Force entry={entry} />}
              </span>
            </a>
          </li>
        ))}
      </ul>
      <button
        type="button"
        class="button config-new"
        onClick={() => {
          startNew();
          go(href("config", ["new"], keep));
        }}
      >
        <Icon name="plus" /> New config
      </button>
      {!configs.value?.file && (
        <p class="small soft config-note">
          This process knows of no config file: the context builders run elsewhere. What is saved here holds for
          them all the same, as breadcrumbs.
        </p>
      )}
    </nav>
  );
}

function Force({ entry }: { entry: Entry }) {
  if (entry.problem !== undefined || entry.complaints.length) return <span class="badge bad">not usable</span>;
  if (entry.holds.length === 0) return <span class="badge">replaced</span>;
  const some = entry.holds.length < entry.consumers.length;
  return <span class="badge good">{some ? "in force in part" : "in force"}</span>;
}

function Nothing() {
  return (
    <div class="empty">
      <Icon name="config" />
      <h2>No context config</h2>
      <p>A config says which breadcrumbs a model gets to see. Begin with a new one.</p>
    </div>
  );
}

const PAUSE = 250;

interface Findings {
  /** Of which text. */
  text: string;
  complaints: readonly Complaint[];
  consumers: string[];
  /** The server could not be asked. */
  unknown?: string;
}

function Workbench({ entry }: { entry: Entry }) {
  const text = textOf(entry);
  const edited = isEdited(entry);
  const [found, setFound] = useState<Findings>({ text: "", complaints: entry.complaints, consumers: [] });
  const [goTo, setGoTo] = useState<{ complaint: Complaint } | null>(null);
  const [saving, setSaving] = useState(false);
  const [consumer, setConsumer] = useState<string>();
  const [pane, setPane] = useState<"edit" | "preview">("edit");
  const { query } = route.value;

  // Checked by the server, a moment after the last key.
  useEffect(() => {
    const abort = new AbortController();
    const ask = async () => {
      try {
        const checked = await (entry.kind === "file" ? contexts.check : checkOne)(text, abort.signal);
        const consumers = checked.configs.map((one) => one.consumer_id);
        setFound({ text, complaints: checked.complaints, consumers });
      } catch (error) {
        if (!abort.signal.aborted) setFound({ text, complaints: [], consumers: [], unknown: messageOf(error) });
      }
    };
    const timer = setTimeout(() => void ask(), found.text === "" ? 0 : PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, entry.kind]);

  const usable = found.text === text && found.complaints.length === 0 && found.consumers.length > 0;
  const draft = useMemo(() => (usable ? parsed(text) : undefined), [usable, text]);
  const wanted = consumer !== undefined && found.consumers.includes(consumer) ? consumer : found.consumers[0];
  const saved = useMemo(() => baseline(entry, wanted), [entry, wanted]);

  const store = async () => {
    if (saving || (!edited && entry.kind !== "new")) return;
    setSaving(true);
    await attempt("It was not saved", async () => {
      const done = await save(entry);
      if (done.as === "refused") {
        setFound({ text, complaints: done.complaints, consumers: [] });
        const [first] = done.complaints;
        if (first) setGoTo({ complaint: first });
        toast(`Not saved: ${plural(done.complaints.length, "thing is", "things are")} wrong with it.`, true);
      } else if (done.as === "overtaken") {
        toast("Not saved: somebody else has saved it meanwhile.", true);
      } else if (done.as === "deleted") {
        toast("Not saved: somebody has deleted it meanwhile. Saving it again makes a new one.", true);
      } else {
        toast("Saved. It holds from the next message on.");
        if (done.key !== entry.key) go(href("config", [done.key], keepOf(query)), true);
      }
    });
    setSaving(false);
  };

  const remove = async () => {
    const others = configs.value?.file?.configs.some((one) => entry.consumers.includes(one.consumer_id));
    const sure = await confirmed({
      title: "Delete this config?",
      text: others
        ? `The file's config of ${entry.name} will hold again, from the next message on.`
        : `${entry.name} will get no contexts any more, unless another config makes them.`,
      action: "Delete",
      danger: true,
    });
    if (!sure) return;
    await attempt("It was not deleted", async () => {
      await client.breadcrumbs.remove(entry.key);
      forget(entry.key);
      go(href("config", [], keepOf(query)), true);
      await load();
      toast("Deleted.");
    });
  };

  const format = () => {
    const value = parsed(text);
    if (value !== undefined) edit(entry, `${laidOut(value)}\n`);
  };

  useShortcuts(
    [
      { keys: "Ctrl+s", what: "Save the config", group: "Config", inFields: true, run: () => void store() },
      { keys: "F8", what: "Next thing that is wrong (in the text)", group: "Config" },
      { keys: "Ctrl+Space", what: "Complete a field name (in the text)", group: "Config" },
      { keys: "Escape", what: "Close the list of names; Tab then leaves the text", group: "Config" },
    ],
    [entry, text, saving],
  );

  const behind = overtaken.value.includes(entry);
  return (
    <div class="config-bench" data-pane={pane}>
      <div class="config-tabs" role="group" aria-label="Show">
        <button type="button" class="button" aria-pressed={pane === "edit"} onClick={() => setPane("edit")}>
          Edit
        </button>
        <button type="button" class="button" aria-pressed={pane === "preview"} onClick={() => setPane("preview")}>
          Preview
        </button>
      </div>
      <section class="config-editor" aria-label={`Config ${entry.name}`}>
        <header class="config-head">
          <div class="config-title">
            <h2>{entry.name}</h2>
            {entry.kind !== "new" && <Force entry={entry} />}
            {edited && entry.kind !== "new" && <span class="badge info">edited</span>}
          </div>
          <div class="config-actions">
            <button type="button" class="button bare" disabled={parsed(text) === undefined} onClick={format}>
              Format
            </button>
            {edited && (
              <button type="button" class="button" onClick={() => void discard(entry)}>
                {entry.kind === "new" ? "Discard" : "Undo all"}
              </button>
            )}
            {entry.kind === "breadcrumb" && (
              <button type="button" class="button danger" onClick={() => void remove()}>
                Delete
              </button>
            )}
            <button
              type="button"
              class="button main"
              disabled={saving || !edited}
              title="Save (Ctrl+S)"
              onClick={() => void store()}
            >
              {saving ? <span class="spinner" /> : <Icon name="check" />}
              {entry.kind === "built-in" ? "Save as breadcrumb" : "Save"}
            </button>
          </div>
          <p class="config-effect small soft">{effectOf(entry)}</p>
        </header>
        {behind && (
          <div class="notice warn config-notice" role="alert">
            <Icon name="alert" />
            <div class="grow">
              <p>Somebody else has saved this since you began. What is typed here is still yours.</p>
              <p class="config-actions">
                <button type="button" class="button tiny" onClick={() => forget(entry.key)}>
                  Take theirs
                </button>
                <button type="button" class="button tiny" onClick={() => rebase(entry)}>
                  Keep mine, to save it over theirs
                </button>
              </p>
            </div>
          </div>
        )}
        {entry.deleted && (
          <p class="notice warn config-notice" role="alert">
            <Icon name="alert" /> Somebody has deleted this since you began. What is typed here is still yours: save it
            as a new one, or discard it.
          </p>
        )}
        {entry.problem !== undefined && !edited && (
          <p class="notice bad config-notice">
            <Icon name="alert" /> It is not used: {entry.problem}
          </p>
        )}
        <div class="config-text">
          <Editor
            text={text}
            now={() => textOf(entry)}
            label={`Config ${entry.name}, JSON`}
            complaints={found.complaints}
            goTo={goTo}
            onChange={(now) => edit(entry, now)}
          />
        </div>
        <Complaints found={found} onGo={(complaint) => setGoTo({ complaint })} />
      </section>
      <section class="config-preview" aria-label="Preview" tabIndex={-1}>
        <Preview
          draft={draft}
          saved={saved}
          consumer={wanted}
          consumers={found.consumers}
          onConsumer={setConsumer}
          session={query["session"]}
          onSession={(session) => go(href("config", [entry.key], { session }), true)}
        />
      </section>
    </div>
  );
}

function keepOf(query: Record<string, string>): Record<string, string> {
  return query["session"] === undefined ? {} : { session: query["session"] };
}

async function discard(entry: Entry): Promise<void> {
  const sure = await confirmed({
    title: entry.kind === "new" ? "Discard this config?" : "Undo all edits?",
    text: "What was typed since the last save is lost.",
    action: entry.kind === "new" ? "Discard" : "Undo all",
    danger: true,
  });
  if (sure) forget(entry.key);
}

/** What is saved, for comparing. A new config takes the place of the one that holds for its consumer. */
function baseline(entry: Entry, consumer: string | undefined): Json | undefined {
  if (entry.kind !== "new") return entry.text ? parsed(entry.text) : undefined;
  const holding = entries.value.find((one) => consumer !== undefined && one.holds.includes(consumer));
  return holding && parsed(holding.text);
}

function effectOf(entry: Entry) {
  switch (entry.kind) {
    case "file":
      return (
        <>
          Saves to <span class="mono">{entry.path}</span>. It holds for everybody on this server, from the next
          message on.
          {entry.holds.length < entry.consumers.length && (
            <> A breadcrumb takes its place for {missing(entry).join(", ")}: that one decides what is seen.</>
          )}
        </>
      );
    case "built-in":
      return entry.holds.length || !entry.consumers.length ? (
        <>
          It cannot be written from here ({entry.locked}). An edit is saved as a breadcrumb that takes its place;
          delete that, and this one holds again.
        </>
      ) : (
        <>A breadcrumb takes its place for {missing(entry).join(", ")}: edit that one, or delete it.</>
      );
    case "breadcrumb":
      return entry.holds.length ? (
        <>Version {entry.tag} of a breadcrumb. An edit becomes the next version, and holds from the next message on.</>
      ) : (
        <>
          Version {entry.tag} of a breadcrumb, which does not hold now. Of several for one consumer, the one that was
          saved last does.
        </>
      );
    case "new":
      return (
        <>
          Saved as a breadcrumb. It takes the place of any other config for the same <span class="mono">consumer_id</span>
          .
        </>
      );
  }
}

function missing(entry: Entry): string[] {
  return entry.consumers.filter((one) => !entry.holds.includes(one));
}

function Complaints({ found, onGo }: { found: Findings; onGo: (complaint: Complaint) => void }) {
  const { complaints, unknown } = found;
  return (
    <div class={`config-complaints ${complaints.length ? "bad" : ""}`}>
      <p class="config-verdict" role="status">
        {unknown !== undefined ? (
          <>
            <Icon name="alert" /> Not checked: {unknown}
          </>
        ) : complaints.length ? (
          <>
            <Icon name="alert" /> {plural(complaints.length, "thing is", "things are")} wrong
          </>
        ) : found.text ? (
          <>
            <Icon name="check" /> Can be used
          </>
        ) : (
          "Checking …"
        )}
      </p>
      {complaints.length > 0 && (
        <ul>
          {complaints.map((one, place) => (
            <li key={place}>
              <button type="button" class="button bare tiny" onClick={() => onGo(one)}>
                <span class="config-line">
                  Line {one.line}, column {one.column}
                </span>
                <span>
                  {one.where && <span class="mono">{one.where}: </span>}
                  {one.message}
                </span>
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
