/**
 * Renders a Markdown tree as elements of any kind, such as DOM nodes or nodes of a framework. It never writes HTML, so
 * none can be injected.
 */

import { parseTex, type MathElement } from "./tex.ts";
import { safeAddress, type Block, type Inline, type Item, type Link } from "./markdown.ts";

/** Creates the elements. */
export interface ElementFactory<N> {
  element(tag: string, attributes: Record<string, string>, children: (N | string)[]): N;
  codeBlock(language: string, code: string): N;
  /** Creates an element of MathML. Without this function, the source of a formula is shown. */
  mathElement?(tag: string, attributes: Record<string, string>, children: (N | string)[]): N;
  /** Renders a link that must not be followed. */
  unsafeLink(link: Link, label: (N | string)[]): (N | string)[];
}

/** Headings in a message start at `h3`, because the page around it uses `h1` and `h2`. */
const HEADING_OFFSET = 2;

export function renderMarkdown<N>(blocks: readonly Block[], factory: ElementFactory<N>): N[] {
  return blocks.map((block) => renderBlock(block, factory));
}

function renderBlock<N>(block: Block, factory: ElementFactory<N>): N {
  const { element } = factory;
  switch (block.type) {
    case "paragraph":
      return element("p", {}, renderInline(block.text, factory));
    case "heading":
      return element(`h${Math.min(6, block.depth + HEADING_OFFSET)}`, {}, renderInline(block.text, factory));
    case "code":
      return factory.codeBlock(block.language, block.code);
    case "quote":
      return element("blockquote", {}, renderMarkdown(block.blocks, factory));
    case "list": {
      const items = block.items.map((item) => element("li", {}, renderItem(item, factory)));
      return block.start === null ? element("ul", {}, items) : element("ol", { start: `${block.start}` }, items);
    }
    case "table":
      return renderTable(block, factory);
    case "math":
      return element("p", { class: "formula" }, [renderFormula(block.tex, true, factory)]);
    case "rule":
      return element("hr", {}, []);
  }
}

/** Render a list item. Its first paragraph is inline, next to the list marker. */
function renderItem<N>({ done, blocks }: Item, factory: ElementFactory<N>): (N | string)[] {
  const [first, ...rest] = blocks;
  const text = first?.type === "paragraph" ? renderInline(first.text, factory) : [];
  const below = first?.type === "paragraph" ? rest : blocks;
  return [...renderTask(done, factory), ...text, ...renderMarkdown(below, factory)];
}

function renderTask<N>(done: boolean | undefined, { element }: ElementFactory<N>): N[] {
  if (done === undefined) return [];
  return [
    element("span", { "aria-hidden": "true" }, [done ? "☑ " : "☐ "]),
    element("span", { class: "unseen" }, [done ? "done: " : "to do: "]),
  ];
}

/** Render a formula, or its source if it cannot be converted. */
function renderFormula<N>(tex: string, display: boolean, factory: ElementFactory<N>): N {
  const { mathElement } = factory;
  const math = mathElement && parseTex(tex, display);
  if (!mathElement || !math) return factory.element("code", { class: "tex" }, [tex]);
  const render = ({ tag, attributes, children }: MathElement): N =>
    mathElement(tag, attributes, children.map((child) => (typeof child === "string" ? child : render(child))));
  return render(math);
}

function renderTable<N>({ head, rows, alignments }: Extract<Block, { type: "table" }>, factory: ElementFactory<N>): N {
  const { element } = factory;
  // A class, because the content security policy forbids style attributes.
  const aligned = (column: number): Record<string, string> =>
    alignments[column] ? { class: `align-${alignments[column]}` } : {};
  const renderRow = (tag: string, cells: readonly Inline[][]) =>
    element("tr", {}, cells.map((cell, column) => element(tag, aligned(column), renderInline(cell, factory))));
  const table = element("table", {}, [
    element("thead", {}, [renderRow("th", head)]),
    element("tbody", {}, rows.map((row) => renderRow("td", row))),
  ]);
  // A wide table scrolls in its own box, which is focusable for keyboard users.
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, [table]);
}

function renderInline<N>(parts: readonly Inline[], factory: ElementFactory<N>): (N | string)[] {
  return parts.flatMap((part) => renderPart(part, factory));
}

function renderPart<N>(part: Inline, factory: ElementFactory<N>): (N | string)[] {
  if (typeof part === "string") return [part];
  switch (part.type) {
    case "strong":
    case "em":
    case "del":
      return [factory.element(part.type, {}, renderInline(part.children, factory))];
    case "code":
      return [factory.element("code", {}, [part.code])];
    case "math":
      return [renderFormula(part.tex, part.display, factory)];
    case "break":
      return [factory.element("br", {}, [])];
    case "link":
      return renderLink(part, factory);
  }
}

function renderLink<N>(link: Link, factory: ElementFactory<N>): (N | string)[] {
  const label = renderInline(link.children, factory);
  const address = safeAddress(link.address);
  if (address === null) return factory.unsafeLink(link, label);
  const attributes = { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" };
  return [factory.element("a", attributes, label)];
}
