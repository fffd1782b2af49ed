/** Editor of a JSON document. Shows plain text until CodeMirror has loaded. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JsonObject } from "@breadcrumbs/client";
import { plural } from "../../lib/format";
import { Icon } from "../icons";
import { attempt } from "../toast";
import type { EditorHandle } from "./codemirror";
import type { Finding, Findings, KnownValues } from "./findings";
import "./json-editor.css";

interface JsonEditorProps {
  text: string;
  /** Returns the current text, which can be newer than the rendered `text`. */
  now: () => string;
  label: string;
  complaints: readonly Finding[];
  warnings: readonly Finding[];
  /** Move the cursor to this position. A new object for each move. */
  goTo: { finding: Finding } | null;
  /** Loads the JSON Schema for completions and tooltips. */
  schema: () => Promise<JsonObject>;
  /** Loads values of the store for completions. */
  values: () => Promise<KnownValues>;
  onChange: (text: string) => void;
}

export function JsonEditor({ text, now, label, complaints, warnings, goTo, schema, values, onChange }: JsonEditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const [editor, setEditor] = useState<EditorHandle | null>(null);
  const latest = useRef(onChange);
  latest.current = onChange;

  useEffect(() => {
    let gone = false;
    let made: EditorHandle | null = null;
    void attempt("The editor could not be loaded", async () => {
      const { createEditor } = await import("./codemirror");
      if (gone || !host.current) return;
      made = createEditor(host.current, now(), label, (typed) => latest.current(typed));
      setEditor(made);
      const loaded = await schema();
      if (gone) return;
      made.guide(loaded);
      // Values from the store are an addition. Without permission to read them, only the schema is used.
      const known = await values().catch(() => undefined);
      if (!gone && known) made.guide(loaded, known);
    });
    return () => {
      gone = true;
      made?.destroy();
    };
  }, []);

  // Show text from outside the editor: saved by another user, or reset. Typed text is already there.
  useEffect(() => editor?.show(now()), [editor, text]);
  useEffect(() => editor?.complain(complaints, warnings), [editor, complaints, warnings]);
  useEffect(() => {
    if (goTo) editor?.goTo(goTo.finding);
  }, [editor, goTo]);

  return (
    <div class="json-text">
      {!editor && <pre class="json-plain">{text}</pre>}
      <div ref={host} class="json-code" hidden={!editor} data-ready={editor ? "" : undefined} />
    </div>
  );
}

/** The verdict about a text, and its errors and warnings. A click on one moves the cursor to it. */
export function FindingList({ found, onGo }: { found: Findings; onGo: (finding: Finding) => void }) {
  const { complaints, warnings, unknown } = found;
  return (
    <div class={`json-findings ${complaints.length ? "bad" : ""}`}>
      <p class="json-verdict" role="status">
        {unknown !== undefined ? (
          <>
            <Icon name="alert" /> Not checked: {unknown}
          </>
        ) : complaints.length ? (
          <>
            <Icon name="alert" /> {plural(complaints.length, "error")}
          </>
        ) : found.text ? (
          <>
            <Icon name="check" /> Valid
            {warnings.length > 0 && <>, {plural(warnings.length, "warning")}</>}
          </>
        ) : (
          "Checking …"
        )}
      </p>
      {complaints.length + warnings.length > 0 && (
        <ul>
          {[...complaints, ...warnings].map((one, place) => (
            <li key={place} class={place < complaints.length ? "" : "warning"}>
              <button type="button" class="button bare tiny" onClick={() => onGo(one)}>
                <span class="json-line">
                  {place < complaints.length ? "" : "Warning: "}Line {one.line}, column {one.column}
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
