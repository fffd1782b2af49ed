/** Editor of a config. Shows plain text until CodeMirror has loaded. */

import { useEffect, useRef, useState } from "preact/hooks";
import { attempt } from "../../components/toast";
import { contexts, type Complaint } from "../../lib/contexts";
import type { EditorHandle } from "./codemirror";

interface EditorProps {
  text: string;
  /** Returns the current text, which can be newer than the rendered `text`. */
  now: () => string;
  label: string;
  complaints: readonly Complaint[];
  warnings: readonly Complaint[];
  /** Move the cursor to this position. A new object for each move. */
  goTo: { complaint: Complaint } | null;
  onChange: (text: string) => void;
}

export function Editor({ text, now, label, complaints, warnings, goTo, onChange }: EditorProps) {
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
      const schema = await contexts.schema();
      if (gone) return;
      made.guide(schema);
      // Values from the store are an addition. Without permission to read them, only the schema is used.
      const known = await contexts.values().catch(() => undefined);
      if (!gone && known) made.guide(schema, known);
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
    if (goTo) editor?.goTo(goTo.complaint);
  }, [editor, goTo]);

  return (
    <>
      {!editor && <pre class="config-plain">{text}</pre>}
      <div ref={host} class="config-code" hidden={!editor} data-ready={editor ? "" : undefined} />
    </>
  );
}
