/** Renders Markdown. Images become links, because the content security policy forbids other hosts. */

import { h, type VNode } from "preact";
import { useMemo } from "preact/hooks";
import { parseMarkdown, renderMarkdown, splitMarkdown, type ElementFactory } from "@breadcrumbs/client";
import { Icon } from "./icons";
import { toast } from "./toast";

const ELEMENTS: ElementFactory<VNode> = {
  element: (tag, attributes, children) => h(tag, attributes, ...children),
  codeBlock: (language, code) => <CodeBlock language={language} code={code} />,
  unsafeLink: (_link, label) => [<span>{label}</span>],
};

export function Markdown({ text }: { text: string }) {
  return (
    <div class="prose">
      {splitMarkdown(text).map((piece, index) => (
        <Piece key={index} text={piece} />
      ))}
    </div>
  );
}

/** Renders one block. Memoized, because only the last block changes while an answer is written. */
function Piece({ text }: { text: string }) {
  return useMemo(() => <>{renderMarkdown(parseMarkdown(text), ELEMENTS)}</>, [text]);
}

function CodeBlock({ language, code }: { language: string; code: string }) {
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
        <code>{code}</code>
      </pre>
    </div>
  );
}
