/** The config page: edit context configs with a live preview of the context. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { messageOf, type Json } from "@breadcrumbs/client";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { FindingList, JsonEditor } from "../../components/json-editor";
import type { Finding, Findings } from "../../components/json-editor/findings";
import { attempt, toast } from "../../components/toast";
import { contexts, formatJson } from "../../lib/contexts";
import { lacking, narrowed } from "../../lib/credential";
import { plural } from "../../lib/format";
import { useShortcuts } from "../../lib/keys";
import { go, href, route } from "../../lib/router";
import { client } from "../../lib/server";
import { History, HISTORY } from "./history";
import { PastTurns } from "./past-turns";
import { Preview } from "./preview";
import {
  checkOne,
  configs,
  differingBuilders,
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
import "../../style/workbench.css";
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
          Retry
        </button>
      </div>
    ) : (
      <div class="workbench" aria-busy="true" />
    );
  }
  return (
    <div class="workbench">
      <ConfigList all={all} shown={rest[0] === HISTORY ? undefined : entry} />
      {rest[0] === HISTORY ? <History /> : entry ? <Workbench entry={entry} key={entry.key} /> : <Nothing />}
    </div>
  );
}

function chosen(all: readonly Entry[], key?: string, consumer?: string): Entry | undefined {
  return (
    all.find((entry) => entry.key === key) ??
    all.find((entry) => consumer !== undefined && entry.activeFor.includes(consumer)) ??
    all.find((entry) => entry.activeFor.length > 0) ??
    all[0]
  );
}

const KINDS: Record<Entry["kind"], string> = {
  file: "File",
  "built-in": "Read-only file",
  breadcrumb: "Breadcrumb",
  new: "Not saved",
};

function ConfigList({ all, shown }: { all: readonly Entry[]; shown: Entry | undefined }) {
  const { query } = route.value;
  const keep = query["session"] === undefined ? {} : { session: query["session"] };
  return (
    <nav class="workbench-list" aria-label="Context configs">
      <h1>Context configs</h1>
      <ul>
        {all.map((entry) => (
          <li key={entry.key}>
            <a
              href={href("config", [entry.key], keep)}
              aria-current={entry.key === shown?.key ? "true" : undefined}
              title={entry.path ?? entry.name}
            >
              <span class="workbench-name">
                {entry.name}
                {isEdited(entry) && <span class="workbench-dot" title="Unsaved edits" />}
                {isEdited(entry) && <span class="unseen">, edited</span>}
              </span>
              <span class="workbench-kind">
                {entry.deleted ? "Deleted" : KINDS[entry.kind]}
                {entry.kind !== "new" && <Force entry={entry} />}
              </span>
            </a>
          </li>
        ))}
      </ul>
      <button
        type="button"
        class="button workbench-new"
        onClick={() => {
          startNew();
          go(href("config", ["new"], keep));
        }}
      >
        <Icon name="plus" /> New config
      </button>
      <a
        class="config-history-link"
        href={href("config", [HISTORY], keep)}
        aria-current={route.value.rest[0] === HISTORY ? "true" : undefined}
      >
        <span class="workbench-name">History</span>
        <span class="workbench-kind">Configs that were in force</span>
      </a>
      {!configs.value?.file && (
        <p class="small soft workbench-note">
          This process has no config file, and no context builder is running. Configs that you save here are stored as
          breadcrumbs and apply to all context builders.
        </p>
      )}
      {configs.value?.file?.published && (
        <p class="small soft workbench-note">
          The context builders run in other processes. Configs that you save here are stored as breadcrumbs and apply to
          all of them.
        </p>
      )}
      <BuilderNotice text={differingBuilders.value} />
    </nav>
  );
}

const SETTLED_MS = 6000;

/** Shows a difference between builders that persists. After a save, they need a moment to load the new text. */
function BuilderNotice({ text }: { text: string }) {
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), text ? SETTLED_MS : 0);
    return () => clearTimeout(timer);
  }, [text]);
  if (!settled || settled !== text) return null;
  return (
    <p class="notice warn workbench-note" role="status">
      <Icon name="alert" /> {text}
    </p>
  );
}

function Force({ entry }: { entry: Entry }) {
  if (entry.problem !== undefined || entry.complaints.length) return <span class="badge bad">not valid</span>;
  if (entry.activeFor.length === 0) return <span class="badge">replaced</span>;
  const some = entry.activeFor.length < entry.consumers.length;
  return <span class="badge good">{some ? "partly active" : "active"}</span>;
}

function Nothing() {
  return (
    <div class="empty">
      <Icon name="config" />
      <h2>No context config</h2>
      <p>A config selects the breadcrumbs that a model sees. Create one to start.</p>
    </div>
  );
}

const CHECK_DELAY_MS = 250;
const NONE: readonly Finding[] = [];

interface ConfigFindings extends Findings {
  consumers: string[];
}

function Workbench({ entry }: { entry: Entry }) {
  const text = textOf(entry);
  const edited = isEdited(entry);
  const [found, setFound] = useState<ConfigFindings>({ text: "", complaints: entry.complaints, warnings: NONE, consumers: [] });
  const [goTo, setGoTo] = useState<{ finding: Finding } | null>(null);
  const [saving, setSaving] = useState(false);
  const [consumer, setConsumer] = useState<string>();
  const [pane, setPane] = useState<"edit" | "side">("edit");
  const { query } = route.value;

  // The server checks the text shortly after the last key press.
  useEffect(() => {
    const abort = new AbortController();
    const ask = async () => {
      try {
        const checked = await (entry.kind === "file" ? contexts.check : checkOne)(text, abort.signal);
        const consumers = checked.configs.map((one) => one.consumer_id);
        setFound({ text, complaints: checked.complaints, warnings: checked.warnings, consumers });
      } catch (error) {
        if (abort.signal.aborted) return;
        setFound({ text, complaints: NONE, warnings: NONE, consumers: [], unknown: messageOf(error) });
      }
    };
    const timer = setTimeout(() => void ask(), found.text === "" ? 0 : CHECK_DELAY_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, entry.kind]);

  const usable = found.text === text && found.complaints.length === 0 && found.consumers.length > 0;
  const draft = useMemo(() => (usable ? parsed(text) : undefined), [usable, text]);
  // While a broken file is not edited, preview the last valid config, which is active.
  const active = entry.activeText !== undefined && !edited ? entry.activeText : undefined;
  const consumers = active === undefined ? found.consumers : entry.activeFor;
  const wanted = consumer !== undefined && consumers.includes(consumer) ? consumer : consumers[0];
  const saved = useMemo(() => baseline(entry, wanted), [entry, wanted]);

  const refused = narrowed() ?? lacking(entry.kind === "file" ? "curator" : "emitter");

  const store = async () => {
    if (refused !== undefined || saving || (!edited && entry.kind !== "new")) return;
    const [error] = found.text === text ? found.complaints : NONE;
    if (error) {
      setGoTo({ finding: error });
      toast(`Not saved: the config has ${plural(found.complaints.length, "error")}.`, true);
      return;
    }
    setSaving(true);
    await attempt("Saving failed", async () => {
      const done = await save(entry);
      if (done.as === "refused") {
        setFound({ text, complaints: done.complaints, warnings: NONE, consumers: [] });
        const [first] = done.complaints;
        if (first) setGoTo({ finding: first });
        toast(`Not saved: the config has ${plural(done.complaints.length, "error")}.`, true);
      } else if (done.as === "overtaken") {
        toast("Not saved: another user has saved this config.", true);
      } else if (done.as === "deleted") {
        toast("Not saved: this config was deleted. Save again to create a new one.", true);
      } else {
        toast("Saved. It applies from the next message.");
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
        ? `The config file will apply to ${entry.name} again, from the next message.`
        : `${entry.name} will get no contexts, unless another config applies to it.`,
      action: "Delete",
      danger: true,
    });
    if (!sure) return;
    await attempt("Deleting failed", async () => {
      await client.breadcrumbs.remove(entry.key);
      forget(entry.key);
      go(href("config", [], keepOf(query)), true);
      await load();
      toast("Deleted.");
    });
  };

  const format = () => {
    const value = parsed(text);
    if (value !== undefined) edit(entry, `${formatJson(value)}\n`);
  };

  useShortcuts(
    [
      { keys: "Ctrl+s", what: "Save config", group: "Config", inFields: true, run: () => void store() },
      { keys: "F8", what: "Next error (in the text)", group: "Config" },
      { keys: "Ctrl+Space", what: "Complete field name (in the text)", group: "Config" },
      { keys: "Escape", what: "Close completions (Tab then leaves the text)", group: "Config" },
    ],
    [entry, text, saving, found],
  );

  const behind = overtaken.value.includes(entry);
  const blocked = found.text === text && found.complaints.length > 0;
  return (
    <div class="workbench-panes" data-pane={pane}>
      <div class="workbench-tabs" role="group" aria-label="Show">
        <button type="button" class="button" aria-pressed={pane === "edit"} onClick={() => setPane("edit")}>
          Edit
        </button>
        <button type="button" class="button" aria-pressed={pane === "side"} onClick={() => setPane("side")}>
          Preview
        </button>
      </div>
      <section class="workbench-editor" aria-label={`Config ${entry.name}`}>
        <header class="workbench-head">
          <div class="workbench-title">
            <h2>{entry.name}</h2>
            {entry.kind !== "new" && <Force entry={entry} />}
            {/* Always rendered, so that the first edit does not move the text. */}
            {entry.kind !== "new" && <span class={`badge info ${edited ? "" : "workbench-absent"}`}>edited</span>}
          </div>
          <div class="workbench-actions">
            <button type="button" class="button bare" disabled={parsed(text) === undefined} onClick={format}>
              Format
            </button>
            <button
              type="button"
              class="button"
              disabled={!edited}
              onClick={() => void discard(entry)}
            >
              {entry.kind === "new" ? "Discard" : "Discard edits"}
            </button>
            {entry.kind === "breadcrumb" && (
              <button
                type="button"
                class="button danger"
                disabled={refused !== undefined}
                title={refused}
                onClick={() => void remove()}
              >
                Delete
              </button>
            )}
            <button
              type="button"
              class="button main"
              disabled={saving || !edited || blocked || refused !== undefined}
              title={refused ?? (blocked ? "Correct the errors first" : "Save (Ctrl+S)")}
              onClick={() => void store()}
            >
              {saving ? <span class="spinner" /> : <Icon name="check" />}
              {entry.kind === "built-in" ? "Save as breadcrumb" : "Save"}
            </button>
          </div>
          <p class="workbench-effect small soft">
            {refused !== undefined && <strong>{refused} You can edit and preview, but not save. </strong>}
            {effectOf(entry)}
          </p>
        </header>
        {behind && (
          <div class="notice warn workbench-notice" role="alert">
            <Icon name="alert" />
            <div class="grow">
              <p>
                {entry.kind === "breadcrumb" ? "Another user has saved this config." : "The file was changed elsewhere."}{" "}
                Your edits are still here. Saving them overwrites the other version.
              </p>
              <p class="workbench-actions">
                <button type="button" class="button tiny" onClick={() => forget(entry.key)}>
                  Use theirs
                </button>
                <button type="button" class="button tiny" onClick={() => rebase(entry)}>
                  Keep mine
                </button>
              </p>
            </div>
          </div>
        )}
        {entry.deleted && (
          <p class="notice warn workbench-notice" role="alert">
            <Icon name="alert" /> This config was deleted. Your edits are still here. Save them as a new config, or
            discard them.
          </p>
        )}
        {entry.problem !== undefined && (
          <p class="notice bad workbench-notice">
            <Icon name="alert" /> This config is not used: {entry.problem}
          </p>
        )}
        {entry.activeText !== undefined && !edited && <StillActive entry={entry} text={entry.activeText} />}
        <JsonEditor
          text={text}
          now={() => textOf(entry)}
          label={`Config ${entry.name}, JSON`}
          complaints={found.complaints}
          warnings={found.warnings}
          goTo={goTo}
          onChange={(now) => edit(entry, now)}
          schema={contexts.schema}
          values={contexts.values}
        />
        <FindingList found={found} onGo={(finding) => setGoTo({ finding })} />
      </section>
      <section class="workbench-side" aria-label="Preview" tabIndex={-1}>
        <PastTurns draft={active === undefined ? draft : undefined} consumer={wanted} edited={edited} />
        <Preview
          draft={active === undefined ? draft : parsed(active)}
          saved={active === undefined ? saved : undefined}
          active={active !== undefined}
          consumer={wanted}
          consumers={consumers}
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
    title: entry.kind === "new" ? "Discard this config?" : "Discard all edits?",
    text: "All changes since the last save will be lost.",
    action: entry.kind === "new" ? "Discard" : "Discard edits",
    danger: true,
  });
  if (sure) forget(entry.key);
}

/** Tells that a file with errors is not used, and shows the last valid text. */
function StillActive({ entry, text }: { entry: Entry; text: string }) {
  const [first] = entry.complaints;
  return (
    <div class="notice bad workbench-notice" role="alert">
      <Icon name="alert" />
      <div class="grow">
        <p>
          {first ? (
            <>
              The file has an error in line {first.line}, column {first.column}:{" "}
              {first.where && <span class="mono">{first.where}: </span>}
              {first.message}.
            </>
          ) : (
            "The file is not valid."
          )}{" "}
          The last valid config stays active.
        </p>
        <details class="config-active">
          <summary>Show the active config</summary>
          <pre>{text}</pre>
        </details>
      </div>
    </div>
  );
}

/**
 * Return the saved config for the comparison. For a new config, that is the active config of its consumer. For a file
 * with errors, that is its last valid text.
 */
function baseline(entry: Entry, consumer: string | undefined): Json | undefined {
  if (entry.activeText !== undefined) return parsed(entry.activeText);
  if (entry.kind !== "new") return entry.text ? parsed(entry.text) : undefined;
  const holding = entries.value.find((one) => consumer !== undefined && one.activeFor.includes(consumer));
  return holding && parsed(holding.text);
}

function effectOf(entry: Entry) {
  switch (entry.kind) {
    case "file":
      return (
        <>
          Saved to <span class="mono">{entry.path}</span>. Changes apply to all users of this server, from the next
          message.
          {entry.activeFor.length < entry.consumers.length && (
            <> A breadcrumb replaces this config for {missing(entry).join(", ")}.</>
          )}
        </>
      );
    case "built-in":
      return entry.activeFor.length || !entry.consumers.length ? (
        <>
          Read-only: {entry.locked}. Edits are saved as a breadcrumb that replaces it. To use the file
          again, delete the breadcrumb.
        </>
      ) : (
        <>A breadcrumb replaces this config for {missing(entry).join(", ")}. Edit or delete the breadcrumb.</>
      );
    case "breadcrumb":
      return entry.activeFor.length ? (
        <>Version {entry.tag} of a breadcrumb. Saving creates the next version, which applies from the next message.</>
      ) : (
        <>
          Version {entry.tag} of a breadcrumb, not active. If several configs have the same consumer, the one saved last
          is active.
        </>
      );
    case "new":
      return (
        <>
          Will be saved as a breadcrumb. It replaces any other config with the same{" "}
          <span class="mono">consumer_id</span>.
        </>
      );
  }
}

function missing(entry: Entry): string[] {
  return entry.consumers.filter((one) => !entry.activeFor.includes(one));
}
