/**
 * Markdown as elements. No HTML is made on the way, so none can get in. Pictures are links, because the policy
 * loads nothing from elsewhere.
 */

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { parse, pieces, safeAddress, type Block, type Inline, type Item } from "../lib/markdown";
import { Icon } from "./icons";
import { toast } from "./toast";

export function Markdown({ text }: { text: string }) {
  return (
    <div class="prose">
      {pieces(text).map((piece, index) => (
        <Piece key={index} text={piece} />
      ))}
    </div>
  );
}

/** While an answer is written only its last piece changes. */
function Piece({ text }: { text: string }) {
  return useMemo(() => <>{parse(text).map(block)}</>, [text]);
}

function block(found: Block, key: number): ComponentChild {
  switch (found.type) {
    case "paragraph":
      return <p key={key}>{inline(found.text)}</p>;
    case "heading": {
      // The page has headings of its own; those of a message come below them.
      const Tag = `h${Math.min(6, found.depth + 2)}` as "h3";
      return <Tag key={key}>{inline(found.text)}</Tag>;
    }
    case "code":
      return <CodeBlock key={key} language={found.language} code={found.code} />;
    case "quote":
      return <blockquote key={key}>{found.blocks.map(block)}</blockquote>;
    case "list": {
      const items = found.items.map((item, index) => <li key={index}>{listItem(item)}</li>);
      if (found.start === null) return <ul key={key}>{items}</ul>;
      return (
        <ol key={key} start={found.start}>
          {items}
        </ol>
      );
    }
    case "table":
      return (
        <div key={key} class="scroll" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead>
              <tr>
                {found.head.map((cell, column) => (
                  <th key={column}>{inline(cell)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {found.rows.map((row, index) => (
                <tr key={index}>
                  {row.map((cell, column) => (
                    <td key={column}>{inline(cell)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    case "rule":
      return <hr key={key} />;
  }
}

/** The first words of an item stand beside its mark, not in a paragraph of their own. */
function listItem({ done, blocks }: Item): ComponentChild {
  const [first, ...rest] = blocks;
  return (
    <>
      {done !== undefined && (
        <>
          <span aria-hidden="true">{done ? "☑ " : "☐ "}</span>
          <span class="unseen">{done ? "done: " : "to do: "}</span>
        </>
      )}
      {first?.type === "paragraph" ? inline(first.text) : first && block(first, 0)}
      {rest.map((found, index) => block(found, index + 1))}
    </>
  );
}

function inline(parts: readonly Inline[]): ComponentChild[] {
  return parts.map((part, key) => {
    if (typeof part === "string") return part;
    switch (part.type) {
      case "strong":
        return <strong key={key}>{inline(part.children)}</strong>;
      case "em":
        return <em key={key}>{inline(part.children)}</em>;
      case "del":
        return <del key={key}>{inline(part.children)}</del>;
      case "code":
        return <code key={key}>{part.code}</code>;
      case "break":
        return <br key={key} />;
      case "link": {
        const address = safeAddress(part.address);
        if (address === null) return <span key={key}>{inline(part.children)}</span>;
        return (
          <a key={key} href={address} title={address} target="_blank" rel="noopener noreferrer nofollow">
            {inline(part.children)}
          </a>
        );
      }
    }
  });
}

function CodeBlock({ language, code }: { language: string; code: string }) {
  const copy = () =>
    navigator.clipboard?.writeText(code).then(
      () => toast("Copied."),
      () => toast("The browser does not let this page copy.", true),
    );
  return (
    <div class="code">
      <div class="code-head">
        <span>{language}</span>
        <button type="button" class="button bare tiny square" aria-label="Copy the code" title="Copy" onClick={copy}>
          <Icon name="copy" />
        </button>
      </div>
      <pre tabIndex={0} role="region" aria-label={language ? `Code, ${language}` : "Code"}>
        <code>{code}</code>
      </pre>
    </div>
  );
}
