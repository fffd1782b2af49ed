// The part of Markdown that models use in a chat, as elements: paragraphs, headings, lists, quotes, code, bold,
// italic, links. There is no HTML in it: a tag is shown as the text that it is.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const DEEPEST = 6;

/** @param {string} text */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.replaceAll("\r\n", "\n").split("\n"), 0));
  return fragment;
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {HTMLElement[]}
 */
function blocks(lines, depth) {
  /** @type {HTMLElement[]} */
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = lines.findIndex((other, place) => place > at && other.trim().startsWith(fence[1]));
      // While an answer is still being made the end of its code is missing.
      const stop = end < 0 ? lines.length : end;
      const code = h("code", {}, lines.slice(at + 1, stop).join("\n"));
      made.push(h("pre", { tabindex: "0", "aria-label": fence[2] ? `Code, ${fence[2]}` : "Code" }, code));
      at = stop + 1;
    } else if (heading) {
      // Two levels below what the panel itself has.
      made.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(h("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const stop = endOf(lines, at, (other) => QUOTE.test(other));
      const quoted = lines.slice(at, stop).map((other) => other.replace(QUOTE, ""));
      made.push(h("blockquote", {}, ...blocks(quoted, depth + 1)));
      at = stop;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      const [list, stop] = items(lines, at, depth);
      made.push(list);
      at = stop;
    } else {
      const stop = Math.max(at + 1, endOf(lines, at, (other) => !!other.trim() && !begins(other)));
      made.push(h("p", {}, ...inline(lines.slice(at, stop).join("\n"))));
      at = stop;
    }
  }
  return made;
}

/** Whether a line begins something that is not a paragraph. @param {string} line */
function begins(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {(line: string) => boolean} belongs
 */
function endOf(lines, from, belongs) {
  let at = from;
  while (at < lines.length && belongs(lines[at])) at += 1;
  return at;
}

/**
 * A list, with what is indented under its items.
 * @param {string[]} lines
 * @param {number} from
 * @param {number} depth
 * @returns {[HTMLElement, number]}
 */
function items(lines, from, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[from]));
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const list = h(ordered ? "ol" : "ul", ordered ? { start: `${parseInt(first[2], 10)}` } : {});
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== ordered) break;
    const stop = endOf(lines, at + 1, (line) => {
      const inner = ITEM.exec(line);
      if (inner) return inner[1].length > indent;
      return /^ +\S/.test(line) || (!!line.trim() && !begins(line));
    });
    const inside = lines.slice(at + 1, stop);
    const plain = endOf(inside, 0, (line) => !begins(line.trim()));
    const words = [item[3], ...inside.slice(0, plain).map((line) => line.trim())].join("\n");
    const margin = Math.min(...inside.slice(plain).map((line) => line.search(/\S|$/)), Infinity);
    const nested = inside.slice(plain).map((line) => line.slice(Number.isFinite(margin) ? margin : 0));
    list.append(h("li", {}, ...inline(words), ...blocks(nested, depth + 1)));
    at = stop;
    // An empty line between two items does not end the list.
    const next = endOf(lines, at, (line) => !line.trim());
    const further = next < lines.length ? ITEM.exec(lines[next]) : null;
    if (further && further[1].length === indent && /\d/.test(further[2]) === ordered) at = next;
  }
  return [list, at];
}

// In the order in which they win: code, then links, then what is bold or italic. All of it is bounded, so that a
// text that was made for it cannot keep the panel busy.
const INLINE = new RegExp(
  [
    /(?<ticks>`+)(?<code>[^`]|[^`][^]{0,2000}?[^`])\k<ticks>(?!`)/,
    /\[(?<label>[^\[\]\n]+)\]\((?<href>[^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)*)\)/,
    /(?<bare>https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?()\[\]*_])/,
    /(?<strong>\*\*|(?<!\w)__)(?=\S)(?<bold>[^]{0,2000}?\S)\k<strong>/,
    /(?<![\w*])(?<em>[*_])(?=[^\s*_])(?<italic>[^*_\n]*?[^\s*_])\k<em>(?![\w*])/,
    /\\(?<escaped>[\\`*_{}\[\]()#+\-.!>~|])/,
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);

/**
 * @param {string} text
 * @param {boolean} [inLink]
 * @returns {(Node | string)[]}
 */
function inline(text, inLink = false) {
  /** @type {(Node | string)[]} */
  const made = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const found = /** @type {Record<string, string | undefined>} */ (match.groups);
    /** @type {(Node | string)[] | undefined} */
    let nodes;
    if (found.code !== undefined) nodes = [h("code", {}, found.code)];
    else if (found.label !== undefined && !inLink) nodes = link(found.href ?? "", inline(found.label, true));
    else if (found.bare !== undefined && !inLink) nodes = link(found.bare, [found.bare]);
    else if (found.bold !== undefined) nodes = [h("strong", {}, ...inline(found.bold, inLink))];
    else if (found.italic !== undefined) nodes = [h("em", {}, ...inline(found.italic, inLink))];
    else if (found.escaped !== undefined) nodes = [found.escaped];
    made.push(...words(text.slice(at, match.index)), ...(nodes ?? [match[0]]));
    at = match.index + match[0].length;
  }
  made.push(...words(text.slice(at)));
  return made;
}

/** Text, with its line breaks. @param {string} text */
function words(text) {
  return text.split("\n").flatMap((line, place) => (place ? [h("br"), line] : line ? [line] : []));
}

/**
 * Only to where a link in a chat may lead; anything else stays the text that it was.
 * @param {string} target
 * @param {(Node | string)[]} label
 * @returns {(Node | string)[] | undefined}
 */
function link(target, label) {
  const url = URL.canParse(target) ? new URL(target) : undefined;
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return undefined;
  const attributes = { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return [h("a", attributes, ...label)];
}
