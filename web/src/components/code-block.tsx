/** A block of source code with syntax highlighting and a button that copies it. */

import { useMemo } from "preact/hooks";
import { highlight } from "@breadcrumbs/client";
import { Icon } from "./icons";
import { toast } from "./toast";

export function CodeBlock({ language, code }: { language: string; code: string }) {
  const tokens = useMemo(() => highlight(code, language), [code, language]);
  const copy = () =>
    navigator.clipboard?.writeText(code).then(
      () => toast("Copied."),
      () => toast("Copying failed: the browser denied access to the clipboard.", true),
    );
  return (
    <div class="code">
      <div class="code-head">
        <span>{language}</span>
        <button type="button" class="button bare tiny square" aria-label="Copy code" title="Copy" onClick={copy}>
          <Icon name="copy" />
        </button>
      </div>
      <pre tabIndex={0} role="region" aria-label={language ? `Code, ${language}` : "Code"}>
        <code>
          {tokens.map(({ kind, text }) => (kind === undefined ? text : <span class={`token-${kind}`}>{text}</span>))}
        </code>
      </pre>
    </div>
  );
}
