/** The agents page: the agents in force, an editor of definitions, and a trial run. */

import { useEffect, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { FindingList, JsonEditor } from "../../components/json-editor";
import type { Finding } from "../../components/json-editor/findings";
import { attempt, toast } from "../../components/toast";
import { contexts, formatJson } from "../../lib/contexts";
import { lacking, narrowed } from "../../lib/credential";
import { definitions, type AgentInForce, type DefinitionFindings } from "../../lib/definitions";
import { plural } from "../../lib/format";
import { useShortcuts } from "../../lib/keys";
import { go, href, route } from "../../lib/router";
import { Facts } from "./facts";
import {
  edit,
  entries,
  follow,
  forget,
  isEdited,
  isOvertaken,
  listed,
  load,
  loadDefinition,
  NEW,
  problem,
  rebase,
  remove,
  save,
  startNew,
  stored,
  textOf,
  type Entry,
} from "./state";
import { Trial } from "./trial";
import "../../style/workbench.css";
import "./agents.css";

export default function AgentsPage() {
  useEffect(follow, []);
  const all = entries.value;
  const entry = all.find((one) => one.key === route.value.rest[0]) ?? all[0];
  if (listed.value === null) {
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
      <AgentList all={all} shown={entry} answering={listed.value.answering} />
      {entry ? <Workbench entry={entry} key={entry.key} /> : <Nothing />}
    </div>
  );
}

const SOURCES: Record<AgentInForce["source"], string> = {
  file: "Installation",
  breadcrumb: "Breadcrumb",
  program: "Program",
};

const ANSWERING: Record<string, string> = {
  all: "If several agents match a message, all of them answer.",
  first: "If several agents match a message, the first one answers.",
};

function AgentList({ all, shown, answering }: { all: readonly Entry[]; shown: Entry | undefined; answering: string }) {
  return (
    <nav class="workbench-list" aria-label="Agents">
      <h1>Agents</h1>
      <ul>
        {all.map((entry) => (
          <li key={entry.key}>
            <a href={href("agents", [entry.key])} aria-current={entry.key === shown?.key ? "true" : undefined}>
              <span class="workbench-name">
                {entry.name}
                {isEdited(entry) && <span class="workbench-dot" title="Unsaved edits" />}
                {isEdited(entry) && <span class="unseen">, edited</span>}
              </span>
              <span class="workbench-kind">
                {entry.agent ? SOURCES[entry.agent.source] : entry.key === NEW ? "Not saved" : "Breadcrumb"}
                <State entry={entry} />
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
          go(href("agents", [NEW]));
        }}
      >
        <Icon name="plus" /> New agent
      </button>
      <p class="small soft workbench-note">
        {ANSWERING[answering] ?? `Rule for messages that several agents match: ${answering}.`}
      </p>
    </nav>
  );
}

function State({ entry }: { entry: Entry }) {
  if (entry.key === NEW) return null;
  if (!entry.agent) return <span class="badge bad">not valid</span>;
  if (entry.problem !== undefined) return <span class="badge warn">older version active</span>;
  if (!entry.agent.running) return <span class="badge warn">not running</span>;
  return <span class="badge good">{entry.agent.answers_users ? "answers users" : "active"}</span>;
}

function Nothing() {
  return (
    <div class="empty">
      <Icon name="spark" />
      <h2>No agents</h2>
      <p>An agent reacts to breadcrumbs and answers them with a model. Create one to start.</p>
    </div>
  );
}

const CHECK_DELAY_MS = 250;
const UNCHECKED: DefinitionFindings = { text: "", complaints: [], warnings: [] };

function Workbench({ entry }: { entry: Entry }) {
  const [found, setFound] = useState<DefinitionFindings>(UNCHECKED);
  const [goTo, setGoTo] = useState<{ finding: Finding } | null>(null);
  const [saving, setSaving] = useState(false);
  const [pane, setPane] = useState<"edit" | "side">("edit");
  const text = textOf(entry);
  const edited = isEdited(entry);
  const editable = entry.key === NEW || entry.breadcrumb !== undefined || edited;
  const refused = narrowed() ?? lacking("curator");

  // Events of the definition change the list, so the stored text is loaded again with each list.
  useEffect(() => {
    void attempt("The definition could not be loaded", () => loadDefinition(entry));
  }, [entry.breadcrumb, listed.value]);

  // The server checks the text shortly after the last key press.
  useEffect(() => {
    if (!text) return;
    const abort = new AbortController();
    const check = async () => {
      try {
        setFound(await definitions.check(text, abort.signal));
      } catch (error) {
        if (!abort.signal.aborted) setFound({ ...UNCHECKED, text, unknown: messageOf(error) });
      }
    };
    const timer = setTimeout(() => void check(), found.text === "" ? 0 : CHECK_DELAY_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);

  const checked = found.text === text && found.unknown === undefined;
  const valid = checked && found.complaints.length === 0;

  const store = async () => {
    if (refused !== undefined || saving || !edited) return;
    setSaving(true);
    await attempt("Saving failed", async () => {
      const result = checked ? found : await definitions.check(text);
      setFound(result);
      const [first] = result.complaints;
      if (first || result.agent === undefined) {
        if (first) setGoTo({ finding: first });
        toast(`Not saved: the definition has ${plural(result.complaints.length, "error")}.`, true);
        return;
      }
      const done = await save(entry, result.agent);
      if (done.as === "overtaken") toast("Not saved: another user has saved this definition.", true);
      else if (done.as === "deleted") toast("Not saved: this definition was deleted.", true);
      else {
        toast("Saved. It applies from the next message.");
        if (result.agent !== entry.key) go(href("agents", [result.agent]), true);
      }
    });
    setSaving(false);
  };

  useShortcuts(
    [
      { keys: "Ctrl+s", what: "Save agent", group: "Agents", inFields: true, run: () => void store() },
      { keys: "F8", what: "Next error (in the text)", group: "Agents" },
    ],
    [entry, text, saving, found],
  );

  return (
    <div class="workbench-panes" data-pane={pane}>
      <div class="workbench-tabs" role="group" aria-label="Show">
        <button type="button" class="button" aria-pressed={pane === "edit"} onClick={() => setPane("edit")}>
          Edit
        </button>
        <button type="button" class="button" aria-pressed={pane === "side"} onClick={() => setPane("side")}>
          Facts and trial
        </button>
      </div>
      <section class="workbench-editor" aria-label={`Agent ${entry.name}`}>
        <header class="workbench-head">
          <div class="workbench-title">
            <h2>{entry.name}</h2>
            <State entry={entry} />
            <span class={`badge info ${edited ? "" : "workbench-absent"}`}>edited</span>
          </div>
          <div class="workbench-actions">
            {edited && (
              <button type="button" class="button" onClick={() => void discard(entry)}>
                {entry.key === NEW ? "Discard" : "Discard edits"}
              </button>
            )}
            {entry.agent && (
              <button type="button" class="button" onClick={() => copy(entry)}>
                Copy as new agent
              </button>
            )}
            {entry.breadcrumb !== undefined && (
              <button
                type="button"
                class="button danger"
                disabled={refused !== undefined}
                title={refused}
                onClick={() => void removeAfterQuestion(entry)}
              >
                Delete
              </button>
            )}
            {editable && (
              <button
                type="button"
                class="button main"
                disabled={saving || !edited || refused !== undefined || (checked && !valid)}
                title={refused ?? (checked && !valid ? "Correct the errors first" : "Save (Ctrl+S)")}
                onClick={() => void store()}
              >
                {saving ? <span class="spinner" /> : <Icon name="check" />}
                Save
              </button>
            )}
          </div>
          <p class="small soft">
            {refused !== undefined && <strong>{refused} You cannot save. </strong>}
            {effectOf(entry)}
          </p>
        </header>
        {isOvertaken(entry) && (
          <div class="notice warn workbench-notice" role="alert">
            <Icon name="alert" />
            <div class="grow">
              <p>Another user has saved this definition. Your edits are still here. Saving them overwrites the other version.</p>
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
        {entry.problem !== undefined && (
          <p class="notice bad workbench-notice">
            <Icon name="alert" /> {entry.agent ? "The newest version is not used" : "This definition is not used"}: {entry.problem}
          </p>
        )}
        {text ? (
          <>
            <JsonEditor
              text={text}
              now={() => textOf(entry)}
              label={`Definition of ${entry.name}, JSON`}
              complaints={found.complaints}
              warnings={found.warnings}
              goTo={goTo}
              schema={definitions.schema}
              values={contexts.values}
              onChange={(now) => edit(entry, now)}
            />
            <FindingList found={found} onGo={(finding) => setGoTo({ finding })} />
          </>
        ) : (
          entry.agent && entry.breadcrumb === undefined && <Elsewhere agent={entry.agent} />
        )}
      </section>
      <section class="workbench-side" aria-label="Facts and trial" tabIndex={-1}>
        {entry.agent && <Facts agent={entry.agent} />}
        <Trial text={valid ? text : ""} />
      </section>
    </div>
  );
}

/** Shown instead of the editor for an agent whose definition is in a program. */
function Elsewhere({ agent }: { agent: AgentInForce }) {
  return (
    <div class="empty">
      <Icon name="spark" />
      <p>
        {agent.source === "program"
          ? "This agent belongs to a program. Its definition is in the code of that program."
          : "This agent belongs to the installation. Its definition is in a file."}
      </p>
    </div>
  );
}

function copy(entry: Entry): void {
  const agent = entry.agent;
  if (!agent) return;
  const saved = stored.peek()[entry.key];
  const definition = saved ? JSON.parse(saved.text) : { system_prompt: "", ...(agent.model && { model: agent.model }), tools: agent.tools };
  startNew(saved || agent.definition ? `${formatJson({ ...definition, agent_id: `${agent.agent_id}-copy` })}\n` : undefined);
  go(href("agents", [NEW]));
}

async function discard(entry: Entry): Promise<void> {
  const sure = await confirmed({
    title: entry.key === NEW ? "Discard this agent?" : "Discard all edits?",
    text: "All changes since the last save will be lost.",
    action: "Discard",
    danger: true,
  });
  if (sure) forget(entry.key);
}

async function removeAfterQuestion(entry: Entry): Promise<void> {
  const sure = await confirmed({
    title: "Delete this agent?",
    text: "It answers no further messages. Its earlier answers stay. An agent of the installation with the same name applies again.",
    action: "Delete",
    danger: true,
  });
  if (!sure) return;
  await attempt("Deleting failed", async () => {
    await remove(entry);
    go(href("agents"), true);
    toast("Deleted.");
  });
}

function effectOf(entry: Entry): string {
  if (entry.key === NEW) return "Will be saved as a breadcrumb. It replaces another agent with the same agent_id.";
  if (entry.breadcrumb !== undefined) return "Saving creates the next version, which applies from the next message.";
  if (entry.agent?.source === "program") return "Read-only: the agent runs in a program that uses the Python API.";
  return "Read-only: the agent comes with the installation. To change it, copy it and keep its agent_id.";
}
