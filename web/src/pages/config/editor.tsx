/** The text of a config. Until CodeMirror has come it is shown as it is. */

import { useEffect, useRef, useState } from "preact/hooks";
import { attempt } from "../../components/toast";
import { contexts, type Complaint } from "../../lib/contexts";
import type { EditorHandle } from "./codemirror";

interface EditorProps {
  text: string;
  /** The text as it is at this moment: a key may have been pressed since `text` was drawn. */
  now: () => string;
  label: string;
  complaints: readonly Complaint[];
  /** Go to this place. A new object each time. */
  goTo: { complaint: Complaint } | null;
  onChange: (text: string) => void;
}

export function Editor({ text, now, label, complaints, goTo, onChange }: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const [editor, setEditor] = useState<EditorHandle | null>(null);
  const latest = useRef(onChange);
  latest.current = onChange;

  useEffect(() => {
    let gone = false;
    let made: EditorHandle | null = null;
    void attempt("The editor did not load", async () => {
      const { createEditor } = await import("./codemirror");
      if (gone || !host.current) return;
      made = createEditor(host.current, now(), label, (typed) => latest.current(typed));
      setEditor(made);
      const schema = await contexts.schema();
      if (!gone) made.guide(schema);
    });
    return () => {
      gone = true;
      made?.destroy();
    };
  }, []);

  // What came from elsewhere: saved by somebody, or taken back. What was typed is there already.
  useEffect(() => editor?.show(now()), [editor, text]);
  useEffect(() => editor?.complain(complaints), [editor, complaints]);
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
