/**
 * Parses Markdown into a tree. Supports the blocks, emphasis, code and links of CommonMark, and the tables, task lists
 * and strikethrough of GitHub, and formulas in `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. HTML tags are plain text.
 *
 * The input is not trusted: parsing takes time linear in its length, and the depth of the tree is limited. No library
 * was used for this reason, and reference links are not supported.
 */

export type Block =
  | { type: "paragraph"; text: Inline[] }
  | { type: "heading"; depth: number; text: Inline[] }
  | { type: "code"; language: string; code: string }
  | { type: "quote"; blocks: Block[] }
  | { type: "list"; start: number | null; items: Item[] }
  | { type: "table"; head: Inline[][]; rows: Inline[][][]; alignments: Alignment[] }
  | { type: "math"; tex: string }
  | { type: "rule" };

/** Alignment of a table column. Null if the table does not set it. */
export type Alignment = "left" | "center" | "right" | null;

export interface Item {
  /** Whether a task is done. Undefined if the item is not a task. */
  done?: boolean;
  blocks: Block[];
}

export interface Link {
  type: "link";
  depth: number;
  address: string;
  children: Inline[];
}

export type Inline =
  | string
  | { type: "strong" | "em" | "del"; depth: number; children: Inline[] }
  | Link
  | { type: "code"; code: string }
  | { type: "math"; tex: string; display: boolean }
  | { type: "break" };

const MAX_DEPTH = 8;
const MAX_COLUMNS = 64;
const MAX_ADDRESS_LENGTH = 1_500;
/** A longer formula is plain text. */
const MAX_TEX_LENGTH = 2_000;
const MAX_TEX_LINES = 50;

// --- Blocks -------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]{0,40})[^`\n]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
const TASK = /^\[([ xX])\][ \t]+/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const MATH_ALONE = /^ {0,3}(?:\$\$|\\\[)[ \t]*$/;

/** Split the text into its top-level blocks. Appending text changes only the last block. */
export function splitMarkdown(text: string): string[] {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const found: string[] = [];
  for (let at = 0; at < lines.length; ) {
    const { end } = blockAt(lines, at, 0);
    const piece = lines.slice(at, end).join("\n");
    if (piece.trim()) found.push(piece);
    at = end;
  }
  return found;
}

export function parseMarkdown(text: string): Block[] {
  return blocksOf(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocksOf(lines: readonly string[], depth: number): Block[] {
  const found: Block[] = [];
  for (let at = 0; at < lines.length; ) {
    const { block, end } = blockAt(lines, at, depth);
    if (block) found.push(block());
    at = end;
  }
  return found;
}

interface Found {
  /** Parses the block. Not called if only its end is needed. */
  block?: () => Block;
  end: number;
}

function blockAt(lines: readonly string[], at: number, depth: number): Found {
  const line = lines[at] ?? "";
  if (!line.trim()) return { end: at + 1 };

  const fence = FENCE.exec(line);
  if (fence) {
    const [, mark = "", language = ""] = fence;
    let stop = at + 1;
    while (stop < lines.length && !closes(lines[stop] ?? "", mark)) stop += 1; // the end can be missing while the text is streamed
    return { block: () => ({ type: "code", language, code: lines.slice(at + 1, stop).join("\n") }), end: stop + 1 };
  }

  const heading = HEADING.exec(line);
  if (heading) {
    const [, marks = "", words = ""] = heading;
    const text = words.replace(/[ \t]+#+[ \t]*$/, "");
    return { block: () => ({ type: "heading", depth: marks.length, text: inline(text) }), end: at + 1 };
  }

  if (RULE.test(line)) return { block: () => ({ type: "rule" }), end: at + 1 };

  if (QUOTE.test(line) && depth < MAX_DEPTH) {
    let end = at + 1;
    while (end < lines.length && (QUOTE.test(lines[end] ?? "") || continues(lines[end] ?? ""))) end += 1;
    const quoted = () => lines.slice(at, end).map((other) => other.replace(QUOTE, ""));
    return { block: () => ({ type: "quote", blocks: blocksOf(quoted(), depth + 1) }), end };
  }

  if (ITEM.test(line) && depth < MAX_DEPTH) return listAt(lines, at, depth);

  const math = MATH.test(line) ? mathAt(lines, at) : undefined;
  if (math) return math;

  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
    const head = cells(line);
    if (cells(lines[at + 1] ?? "").length === head.length) return tableAt(lines, at, head);
  }

  let end = at + 1;
  while (end < lines.length && continues(lines[end] ?? "")) end += 1;
  const text = () => lines.slice(at, end).map((other) => other.trimStart()).join("\n").trimEnd();
  return { block: () => ({ type: "paragraph", text: inline(text()) }), end };
}

/**
 * Return the formula that starts at a line, or undefined if the line belongs to a paragraph. A formula contains no blank
 * line. Until its end is streamed it is a paragraph, because half a formula has errors.
 */
function mathAt(lines: readonly string[], at: number): Found | undefined {
  const [, opener = ""] = MATH.exec(lines[at] ?? "") ?? [];
  const closer = opener === "$$" ? "$$" : "\\]";
  const isAlone = MATH_ALONE.test(lines[at] ?? "");
  const own: string[] = [];
  let end = at;
  for (; end < lines.length && end - at < MAX_TEX_LINES; end += 1) {
    const text = (lines[end] ?? "").trim().slice(end === at ? opener.length : 0);
    if (end > at && text === "") break;
    const close = text.indexOf(closer);
    if (close < 0) {
      own.push(text);
      continue;
    }
    if (close !== text.length - closer.length) return undefined; // text follows the formula
    const tex = [...own, text.slice(0, close)].join("\n").trim();
    return tex && tex.length <= MAX_TEX_LENGTH ? { block: () => ({ type: "math", tex }), end: end + 1 } : undefined;
  }
  if (!isAlone) return undefined;
  const source = lines.slice(at, end).join("\n");
  return { block: () => ({ type: "paragraph", text: [source] }), end };
}

function closes(line: string, mark: string): boolean {
  const text = line.trim();
  return text.length >= mark.length && text === (mark[0] ?? "").repeat(text.length);
}

/** Whether a line continues the paragraph above it. */
function continues(line: string): boolean {
  return (
    line.trim() !== "" &&
    !FENCE.test(line) && !HEADING.test(line) && !RULE.test(line) && !QUOTE.test(line) && !ITEM.test(line) &&
    !MATH_ALONE.test(line)
  );
}

const indentOf = (line: string): number => line.length - line.trimStart().length;

function listAt(lines: readonly string[], from: number, depth: number): Found {
  const first = ITEM.exec(lines[from] ?? "");
  const indent = first?.[1]?.length ?? 0;
  const isOrdered = (mark: string | undefined) => mark !== undefined && mark.length > 1;
  const ordered = isOrdered(first?.[2]);
  const inside: string[][] = [];
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at] ?? "");
    if (!item || isOrdered(item[2]) !== ordered || RULE.test(lines[at] ?? "")) break;
    const width = (item[1]?.length ?? 0) + (item[2]?.length ?? 0) + 1;
    const own = [item[3] ?? ""];
    at += 1;
    for (let blank = false; at < lines.length; at += 1) {
      const line = lines[at] ?? "";
      if (!line.trim()) {
        blank = true;
        own.push("");
        continue;
      }
      // An indentation of two spaces is enough to continue an item, because most people and models write it so.
      const belongs = indentOf(line) >= indent + 2 || (!blank && continues(line));
      if (!belongs) break;
      blank = false;
      own.push(line.slice(Math.min(indentOf(line), width)));
    }
    inside.push(own);
  }
  const start = ordered ? Number.parseInt(first?.[2] ?? "1", 10) : null;
  return {
    block: () => ({ type: "list", start, items: inside.map((own) => itemOf(own, depth)) }),
    end: Math.max(at, from + 1),
  };
}

function itemOf(lines: readonly string[], depth: number): Item {
  const task = TASK.exec(lines[0] ?? "");
  if (!task) return { blocks: blocksOf(lines, depth + 1) };
  const words = [(lines[0] ?? "").slice(task[0].length), ...lines.slice(1)];
  return { done: task[1] !== " ", blocks: blocksOf(words, depth + 1) };
}

function tableAt(lines: readonly string[], at: number, head: string[]): Found {
  let end = at + 2;
  while (end < lines.length && continues(lines[end] ?? "")) end += 1;
  const rows = () =>
    lines.slice(at + 2, end).map((line) => {
      const row = cells(line);
      return head.map((_, column) => inline(row[column] ?? ""));
    });
  const alignments = cells(lines[at + 1] ?? "").map(alignmentOf);
  return { block: () => ({ type: "table", head: head.map((cell) => inline(cell)), rows: rows(), alignments }), end };
}

function alignmentOf(divider: string): Alignment {
  if (divider.endsWith(":")) return divider.startsWith(":") ? "center" : "right";
  return divider.startsWith(":") ? "left" : null;
}

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner
    .split(/(?<!\\)\|/, MAX_COLUMNS)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// --- Inline content -------------------------------------------------------------------------------------------

interface Delimiter {
  mark: string;
  /** Number of marks that are not used yet. */
  count: number;
  /** Number of marks in the text. */
  length: number;
  opens: boolean;
  closes: boolean;
}

interface Bracket {
  bracket: true;
  image: boolean;
  /** Index of the part where its label starts. */
  part: number;
}

type Part = Inline | Delimiter;

const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPECIAL = /[\\`*_~[\]!\n&h$]/g;
const ESCAPED = /[!-/:-@[-`{-~]/;
const DOLLAR = /[$`]/g;
const BARE = /https?:\/\/[^\s<>"`]+/y;
const REFERENCE = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;

function inline(text: string): Inline[] {
  const parts: Part[] = [];
  const brackets: Bracket[] = [];
  const ticks = tickRuns(text);
  const formulas = formulaFinder(text);
  let paren = 0; // index of the next closing parenthesis after the start of an address, or -1
  let plain = "";
  let at = 0;

  const flush = () => {
    if (plain) parts.push(plain);
    plain = "";
  };

  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    const char = text[at];
    if (char === undefined) break;

    const formula = char === "$" || char === "\\" ? formulas(at) : undefined;
    if (formula) {
      flush();
      parts.push({ type: "math", tex: formula.tex, display: formula.display });
      at = formula.end;
      continue;
    }

    if (char === "\\") {
      const escaped = text[at + 1] ?? "";
      if (ESCAPED.test(escaped)) {
        plain += escaped;
        at += 2;
        continue;
      }
    } else if (char === "`") {
      const run = runAt(text, at);
      const close = ticks.closing(run, at);
      if (close === undefined) {
        plain += "`".repeat(run);
        at += run;
      } else {
        flush();
        parts.push({ type: "code", code: codeText(text.slice(at + run, close)) });
        at = close + run;
      }
      continue;
    } else if (char === "\n") {
      plain = plain.trimEnd();
      flush();
      parts.push({ type: "break" });
      at += 1;
      continue;
    } else if (char === "*" || char === "_" || char === "~") {
      const length = runAt(text, at);
      if (char === "~" && length !== 2) {
        plain += char.repeat(length);
      } else {
        flush();
        parts.push(delimiter(text, at, char, length));
      }
      at += length;
      continue;
    } else if (char === "[" || (char === "!" && text[at + 1] === "[")) {
      flush();
      brackets.push({ bracket: true, image: char === "!", part: parts.length });
      parts.push(char === "!" ? "![" : "[");
      at += char === "!" ? 2 : 1;
      continue;
    } else if (char === "]") {
      const opener = brackets.pop();
      const maybe = opener !== undefined && text[at + 1] === "(";
      if (maybe && paren >= 0 && paren < at + 2) paren = text.indexOf(")", at + 2);
      const near = maybe && paren >= 0 && paren - at < MAX_ADDRESS_LENGTH;
      const target = near ? targetAt(text, at + 2) : undefined;
      if (opener && target) {
        flush();
        const label = emphasised(parts.splice(opener.part).slice(1));
        parts.push(link(target.address, label));
        if (!opener.image) brackets.length = 0; // links cannot be nested
        at = target.end;
        continue;
      }
    } else if (char === "h") {
      BARE.lastIndex = at;
      const found = wordBefore(text, at) ? null : BARE.exec(text);
      if (found && brackets.length === 0) {
        const address = withoutTail(found[0]);
        if (safeAddress(address) !== null) {
          flush();
          parts.push(link(address, [address]));
          at += address.length;
          continue;
        }
      }
    } else if (char === "&") {
      REFERENCE.lastIndex = at;
      const found = REFERENCE.exec(text);
      const resolved = found && resolveReference(found);
      if (found && resolved) {
        plain += resolved;
        at += found[0].length;
        continue;
      }
    }
    plain += char;
    at += 1;
  }
  flush();
  return emphasised(parts);
}

function runAt(text: string, at: number): number {
  let end = at;
  while (text[end] === text[at] && end < text.length) end += 1;
  return end - at;
}

/** Index all runs of backticks by length, so that finding the end of a code span takes constant time. */
function tickRuns(text: string): { closing(length: number, after: number): number | undefined } {
  const byLength = new Map<number, number[]>();
  for (const found of text.matchAll(/`+/g)) {
    const places = byLength.get(found[0].length) ?? [];
    places.push(found.index);
    byLength.set(found[0].length, places);
  }
  const passed = new Map<number, number>();
  return {
    closing(length, after) {
      const places = byLength.get(length) ?? [];
      let index = passed.get(length) ?? 0;
      while ((places[index] ?? Infinity) <= after) index += 1;
      passed.set(length, index);
      return places[index];
    },
  };
}

/**
 * Return a function that finds the formula that starts at an index. `$` is ambiguous: it starts a formula only before
 * and ends it only after a character that is not a space, and no digit follows the end, so that prices stay text.
 */
function formulaFinder(text: string): (at: number) => { tex: string; display: boolean; end: number } | undefined {
  let parenthesis = 0; // index of the next `\)`, or -1

  const delimited = (from: number, stop: number, length: number, display: boolean) => {
    const tex = text.slice(from, stop).trim();
    return tex && stop - from <= MAX_TEX_LENGTH ? { tex, display, end: stop + length } : undefined;
  };

  const inDollars = (at: number) => {
    if (/[\w$]/.test(text[at - 1] ?? "")) return undefined;
    const mark = runAt(text, at);
    if (mark > 2) return undefined;
    const from = at + mark;
    // The next dollar has to be the end. Each part of the text is therefore searched only once.
    DOLLAR.lastIndex = from;
    let stop = DOLLAR.exec(text)?.index ?? -1;
    while (stop > 0 && text[stop - 1] === "\\") stop = DOLLAR.exec(text)?.index ?? -1;
    if (stop < 0 || text[stop] !== "$" || runAt(text, stop) !== mark) return undefined;
    const isTight = (text[from] ?? " ").trim() !== "" && (text[stop - 1] ?? " ").trim() !== "";
    if (mark === 1 && (!isTight || /[\w]/.test(text[stop + 1] ?? ""))) return undefined;
    return delimited(from, stop, mark, mark === 2);
  };

  return (at) => {
    if (text[at] === "$") return inDollars(at);
    if (text[at + 1] !== "(") return undefined;
    if (parenthesis >= 0 && parenthesis < at + 2) parenthesis = text.indexOf("\\)", at + 2);
    return parenthesis < 0 ? undefined : delimited(at + 2, parenthesis, 2, false);
  };
}

function codeText(code: string): string {
  const line = code.replaceAll("\n", " ");
  return line.startsWith(" ") && line.endsWith(" ") && line.trim() ? line.slice(1, -1) : line;
}

function wordBefore(text: string, at: number): boolean {
  return at > 0 && /[\w/]/.test(text[at - 1] ?? "");
}

/** Return a delimiter run, with the left- and right-flanking rules of CommonMark. */
function delimiter(text: string, at: number, mark: string, length: number): Delimiter {
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const space = (char: string) => char.trim() === "";
  const left = !space(after) && (!PUNCTUATION.test(after) || space(before) || PUNCTUATION.test(before));
  const right = !space(before) && (!PUNCTUATION.test(before) || space(after) || PUNCTUATION.test(after));
  const word = mark === "_"; // an underscore inside a word is plain text
  return {
    mark,
    count: length,
    length,
    opens: left && (!word || !right || PUNCTUATION.test(before)),
    closes: right && (!word || !left || PUNCTUATION.test(after)),
  };
}

const isDelimiter = (part: Part): part is Delimiter => typeof part === "object" && "mark" in part;

/**
 * Match opening and closing delimiters with the algorithm of CommonMark. `bottoms` keeps the time linear: openers that
 * were searched without a match are not searched again.
 */
function emphasised(parts: readonly Part[]): Inline[] {
  const out: Part[] = [];
  const openers: number[] = []; // indexes in `out`
  const bottoms = new Map<string, number>();
  for (const part of parts) {
    if (!isDelimiter(part)) {
      out.push(part);
      continue;
    }
    const closer = { ...part };
    while (closer.closes && closer.count > 0) {
      const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
      const bottom = bottoms.get(kind) ?? 0;
      let top = openers.length - 1;
      while (top >= bottom && !matches(out[openers[top] ?? 0], closer)) top -= 1;
      if (top < bottom) {
        bottoms.set(kind, openers.length);
        break;
      }
      const place = openers[top] ?? 0;
      const opener = out[place] as Delimiter;
      const used = closer.mark === "~" || (opener.count >= 2 && closer.count >= 2) ? 2 : 1;
      const children = out.splice(place + 1).map(asText);
      openers.length = top + 1;
      for (const [name, height] of bottoms) bottoms.set(name, Math.min(height, openers.length));
      opener.count -= used;
      closer.count -= used;
      if (opener.count === 0) {
        out.pop();
        openers.pop();
      }
      out.push(...wrapped(closer.mark === "~" ? "del" : used === 2 ? "strong" : "em", children));
    }
    if (closer.count > 0) {
      if (closer.opens) openers.push(out.length);
      out.push(closer);
    }
  }
  return out.map(asText);
}

function matches(opener: Part | undefined, closer: Delimiter): boolean {
  if (opener === undefined || !isDelimiter(opener) || opener.mark !== closer.mark) return false;
  if (!(opener.closes || closer.opens)) return true;
  const both = opener.length + closer.length;
  return both % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

function asText(part: Part): Inline {
  return isDelimiter(part) ? part.mark.repeat(part.count) : part;
}

const depthOf = (children: readonly Inline[]): number =>
  children.reduce((most, child) => Math.max(most, typeof child === "object" && "depth" in child ? child.depth : 0), 0);

function wrapped(type: "strong" | "em" | "del", children: Inline[]): Inline[] {
  const depth = depthOf(children) + 1;
  return depth > MAX_DEPTH ? children : [{ type, depth, children }];
}

// --- Links ------------------------------------------------------------------------------------------------------

function link(address: string, children: Inline[]): Inline {
  return { type: "link", depth: depthOf(children) + 1, address, children };
}

/** Parse an address in parentheses. Its title, if any, is ignored. */
function targetAt(text: string, from: number): { address: string; end: number } | undefined {
  let at = from;
  let open = 0;
  const limit = Math.min(text.length, from + MAX_ADDRESS_LENGTH);
  for (; at < limit; at += 1) {
    const char = text[at] ?? "";
    if (char.trim() === "" || char === "<") break;
    if (char === "(") open += 1;
    if (char === ")" && open-- === 0) break;
  }
  const address = text.slice(from, at);
  const title = /[ \t]+(?:"[^"\n]{0,200}"|'[^'\n]{0,200}')[ \t]*/y;
  title.lastIndex = at;
  at += title.exec(text)?.[0].length ?? 0;
  return address && text[at] === ")" ? { address, end: at + 1 } : undefined;
}

/** Remove punctuation that follows an address in a sentence. */
function withoutTail(address: string): string {
  let end = address.length;
  let surplus = 0;
  for (const char of address) surplus += char === ")" ? 1 : char === "(" ? -1 : 0;
  for (; end > 0; end -= 1) {
    const char = address[end - 1] ?? "";
    if (char === ")" && surplus > 0) surplus -= 1;
    else if (!/[.,;:!?'*_~\]]/.test(char)) break;
  }
  return address.slice(0, end);
}

/** Return an address of a web page or an email. Returns null for any other address. */
export function safeAddress(address: string): string | null {
  if (!URL.canParse(address)) return null;
  const url = new URL(address);
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

const NAMED: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–",
  times: "×", rarr: "→", larr: "←", euro: "€", deg: "°",
};

/** Return the character of a character reference, or undefined if it is not valid. */
function resolveReference([, decimal, hex, name]: RegExpExecArray): string | undefined {
  if (name !== undefined) return Object.hasOwn(NAMED, name) ? NAMED[name] : undefined;
  const point = decimal !== undefined ? Number(decimal) : Number.parseInt(hex ?? "", 16);
  const real = point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff);
  return real ? String.fromCodePoint(point) : undefined;
}
