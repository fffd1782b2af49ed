/** Renders Markdown. Images become links, because the content security policy forbids other hosts. */

import { h, type VNode } from "preact";
import { useMemo } from "preact/hooks";
import { parseMarkdown, renderMarkdown, splitMarkdown, type ElementFactory } from "@breadcrumbs/client";
import { CodeBlock } from "./code-block";
import "./markdown.css";

const ELEMENTS: ElementFactory<VNode> = {
  element: (tag, attributes, children) => h(tag, attributes, ...children),
  codeBlock: (language, code) => <CodeBlock language={language} code={code} />,
  mathElement: (tag, attributes, children) => h(tag, attributes, ...children),
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
