/**
 * Converts formulas from TeX to MathML, as a tree of elements. It supports the commands that are common in chat answers:
 * fractions, roots, scripts, accents, delimiters, alphabets, matrices and aligned equations. It has no macros.
 *
 * The input is not trusted: the depth of the tree is limited, the number of elements is proportional to the length of
 * the formula, and no command can set a link, a style or an attribute. A formula with an unknown command or an error
 * has no tree, and its source is shown.
 */

import { ALPHABETS, FUNCTIONS, LIMIT_FUNCTIONS, LIMIT_OPERATORS, SPACES, SYMBOLS } from "./tex-symbols.ts";

export interface MathElement {
  tag: string;
  attributes: Record<string, string>;
  children: (MathElement | string)[];
}

/** Each group and each command is one level. */
const MAX_DEPTH = 60;

/** Return the `math` element of a formula, or null if the formula cannot be converted. */
export function parseTex(tex: string, display: boolean): MathElement | null {
  try {
    const body = new TexParser(tex).formula();
    return make("math", { display: display ? "block" : "inline", alttext: tex }, [body]);
  } catch (error) {
    if (error instanceof TexError) return null;
    throw error;
  }
}

class TexError extends Error {}

type Attributes = Record<string, string>;

function make(tag: string, attributes: Attributes = {}, children: (MathElement | string)[] = []): MathElement {
  return { tag, attributes, children };
}

const operator = (text: string, attributes: Attributes = {}): MathElement => make("mo", attributes, [text]);
const fence = (text: string): MathElement => operator(text, { fence: "true", stretchy: "true" });
const space = (width: string): MathElement => make("mspace", { width });
const row = (children: MathElement[]): MathElement => (children.length === 1 && children[0]) || make("mrow", {}, children);

const TOKEN = /\\(?:(?:operatorname|tag)\*|[a-zA-Z]+|[^])|\d+(?:\.\d+)?|[^]/uy;
const CELL_ENDS: ReadonlySet<string> = new Set(["", "&", "\\\\", "\\cr", "}", "\\end", "\\right"]);

/** Operators with their own character in MathML. */
const CHARACTERS: Record<string, string> = { "-": "−", "*": "∗", "'": "′", "`": "‘" };
const FENCES = "()[]|/";
const DELIMITERS: Record<string, string> = {
  "\\{": "{", "\\}": "}", "\\lbrace": "{", "\\rbrace": "}", "\\langle": "⟨", "\\rangle": "⟩", "\\lfloor": "⌊",
  "\\rfloor": "⌋", "\\lceil": "⌈", "\\rceil": "⌉", "\\vert": "|", "\\lvert": "|", "\\rvert": "|", "\\|": "‖",
  "\\Vert": "‖", "\\lVert": "‖", "\\rVert": "‖", "\\uparrow": "↑", "\\downarrow": "↓", "\\backslash": "\\", ".": "",
  "<": "⟨", ">": "⟩",
};
const ACCENTS: Record<string, string> = {
  hat: "^", widehat: "^", bar: "‾", overline: "‾", vec: "→", overrightarrow: "→", tilde: "~", widetilde: "~", dot: "˙",
  ddot: "¨", check: "ˇ", breve: "˘", acute: "´", grave: "`", mathring: "˚", overbrace: "⏞", overleftarrow: "←",
};
const UNDER_ACCENTS: Record<string, string> = { underline: "_", underbrace: "⏟" };
const STRETCHED = new Set([
  "widehat", "overline", "overrightarrow", "widetilde", "overbrace", "overleftarrow", "underline", "underbrace",
]);
const BIG: Record<string, string> = { big: "1.2em", Big: "1.8em", bigg: "2.4em", Bigg: "3em" };
const MATRICES: Record<string, readonly [string, string]> = {
  matrix: ["", ""], smallmatrix: ["", ""], array: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"],
  Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], cases: ["{", ""], rcases: ["", "}"],
};
const ALIGNED = new Set(["aligned", "align", "align*", "split", "alignat", "alignat*", "eqnarray", "eqnarray*"]);
const CENTERED = new Set(["gather", "gather*", "gathered", "equation", "equation*", "multline", "multline*"]);
/** Commands that only change the style, which is left to the browser. */
const IGNORED = new Set([
  "displaystyle", "textstyle", "scriptstyle", "scriptscriptstyle", "nonumber", "notag", "relax", "allowbreak", "middle",
  "hline", "rm", "bf", "it",
]);

class TexParser {
  readonly #tex: string;
  #at = 0;
  #depth = 0;

  constructor(tex: string) {
    this.#tex = tex;
  }

  formula(): MathElement {
    const rows = this.#rows();
    if (this.#at < this.#tex.length) throw new TexError("text after the end of the formula");
    return rows.length === 1 && rows[0]?.length === 1 ? row(rows[0][0] ?? []) : table(rows, "aligned");
  }

  // --- Tokens -----------------------------------------------------------------------------------------------------

  #skipSpaces(): void {
    for (;;) {
      while (/\s/.test(this.#tex[this.#at] ?? "x")) this.#at += 1;
      if (this.#tex[this.#at] !== "%") return;
      while (this.#at < this.#tex.length && this.#tex[this.#at] !== "\n") this.#at += 1; // a comment
    }
  }

  /** Return the next token without consuming it. Empty at the end. */
  #peek(): string {
    this.#skipSpaces();
    TOKEN.lastIndex = this.#at;
    return TOKEN.exec(this.#tex)?.[0] ?? "";
  }

  #take(): string {
    const token = this.#peek();
    this.#at += token.length;
    return token;
  }

  #takeIf(token: string): boolean {
    if (this.#peek() !== token) return false;
    this.#at += token.length;
    return true;
  }

  #expect(token: string): void {
    if (!this.#takeIf(token)) throw new TexError(`expected ${token}`);
  }

  /** Return the text in braces without parsing it. */
  #rawArgument(): string {
    this.#expect("{");
    const from = this.#at;
    for (let open = 1; this.#at < this.#tex.length; this.#at += 1) {
      const char = this.#tex[this.#at];
      if (char === "\\") this.#at += 1;
      else if (char === "{") open += 1;
      else if (char === "}" && --open === 0) return this.#tex.slice(from, this.#at++);
    }
    throw new TexError("missing }");
  }

  // --- Rows ---------------------------------------------------------------------------------------------------------

  /** Parse rows separated by `\\`, each with cells separated by `&`, up to a token that ends them. */
  #rows(): MathElement[][][] {
    const rows: MathElement[][][] = [[this.#cell()]];
    for (;;) {
      const current = rows[rows.length - 1] ?? [];
      if (this.#takeIf("&")) {
        current.push(this.#cell());
      } else if (this.#takeIf("\\\\") || this.#takeIf("\\cr")) {
        if (this.#tex[this.#at] === "[") this.#at = this.#tex.indexOf("]", this.#at) + 1 || this.#tex.length;
        rows.push([this.#cell()]);
      } else {
        const last = rows[rows.length - 1];
        if (rows.length > 1 && last?.length === 1 && last[0]?.length === 0) rows.pop(); // after a final `\\`
        return rows;
      }
    }
  }

  #cell(): MathElement[] {
    return this.#nested(() => {
      const found: MathElement[] = [];
      while (!CELL_ENDS.has(this.#peek())) found.push(...this.#scripted());
      return found;
    });
  }

  #nested<T>(parse: () => T): T {
    if (++this.#depth > MAX_DEPTH) throw new TexError("nested too deeply");
    const found = parse();
    this.#depth -= 1;
    return found;
  }

  /** Parse one argument: a group in braces, or a single token. */
  #argument(): MathElement {
    if (this.#takeIf("{")) return this.#groupRest();
    if (!/^\d/.test(this.#peek())) return row(this.#atom().nodes);
    return make("mn", {}, [this.#tex[this.#at++] ?? ""]); // `\frac12` is one half
  }

  #groupRest(): MathElement {
    const inside = this.#cell();
    this.#expect("}");
    return row(inside);
  }

  /** Parse an atom with its scripts. */
  #scripted(): MathElement[] {
    const token = this.#peek();
    const atom = token === "^" || token === "_" ? { nodes: [make("mrow")] } : this.#atom();
    const base = atom.nodes.at(-1);
    if (base === undefined) return [];
    let above: MathElement | undefined;
    let below: MathElement | undefined;
    let isBeside = !atom.hasLimits;
    for (;;) {
      if (this.#takeIf("\\limits")) isBeside = false;
      else if (this.#takeIf("\\nolimits")) isBeside = true;
      else if (this.#takeIf("_")) below = joined(below, this.#argument());
      else if (this.#takeIf("^")) above = joined(above, this.#argument());
      else if (this.#takeIf("'")) above = joined(above, operator("′"));
      else break;
    }
    const node = withScripts(base, below, above, isBeside);
    const after = atom.isFunction && /^(?:[\p{L}\d]|\\[a-zA-Z])/u.test(this.#peek()) ? [space("0.1667em")] : [];
    return [...atom.nodes.slice(0, -1), node, ...after];
  }

  /** Parse an atom. Most have one node, and scripts belong to the last one. */
  #atom(): Atom {
    return this.#nested(() => {
      const token = this.#take();
      if (token === "") throw new TexError("missing argument");
      if (token.startsWith("\\")) return this.#command(token);
      return { nodes: token === "{" ? [this.#groupRest()] : characters(token) };
    });
  }

  // --- Commands -------------------------------------------------------------------------------------------------------

  #command(token: string): Atom {
    const name = token.slice(1);
    if (Object.hasOwn(SPACES, name)) return { nodes: [space(SPACES[name] ?? "0")] };
    if (Object.hasOwn(DELIMITERS, token)) return { nodes: [operator(DELIMITERS[token] ?? "", { stretchy: "false" })] };
    if (FUNCTIONS.has(name)) return { nodes: [make("mi", {}, [name])], isFunction: true };
    if (Object.hasOwn(LIMIT_FUNCTIONS, name)) {
      const text = LIMIT_FUNCTIONS[name] ?? name;
      return { nodes: [operator(text, { movablelimits: "true", form: "prefix" })], hasLimits: true };
    }
    if (Object.hasOwn(SYMBOLS, name)) {
      const text = SYMBOLS[name] ?? "";
      return { nodes: [symbol(text)], hasLimits: LIMIT_OPERATORS.has(text) };
    }
    if (Object.hasOwn(ALPHABETS, name)) return { nodes: [inAlphabet(this.#argument(), name)] };
    if (IGNORED.has(name)) return { nodes: [make("mrow")] };
    return this.#structure(name);
  }

  #structure(name: string): Atom {
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return one(make("mfrac", {}, [this.#argument(), this.#argument()]));
      case "binom":
      case "dbinom":
      case "tbinom": {
        const numbers = make("mfrac", { linethickness: "0" }, [this.#argument(), this.#argument()]);
        return one(make("mrow", {}, [fence("("), numbers, fence(")")]));
      }
      case "sqrt":
        return one(this.#root());
      case "text":
      case "textrm":
      case "textbf":
      case "textit":
      case "texttt":
      case "textsf":
      case "textnormal":
      case "mbox":
      case "hbox":
        return one(make("mtext", {}, [plainText(this.#rawArgument())]));
      case "operatorname":
        return { ...one(make("mi", {}, [plainText(this.#rawArgument())])), isFunction: true };
      case "operatorname*":
        return { nodes: [operator(plainText(this.#rawArgument()), { movablelimits: "true", form: "prefix" })], hasLimits: true };
      case "overset":
      case "stackrel": {
        const above = this.#argument();
        return one(make("mover", {}, [this.#argument(), above]));
      }
      case "underset": {
        const below = this.#argument();
        return one(make("munder", {}, [this.#argument(), below]));
      }
      case "xrightarrow":
      case "xleftarrow":
        return one(make("mover", {}, [operator(name === "xrightarrow" ? "→" : "←", { stretchy: "true" }), this.#argument()]));
      case "substack":
        this.#expect("{");
        return one(this.#tableUpTo("}", "gathered"));
      case "boxed":
        return one(make("mrow", { class: "boxed" }, [this.#argument()]));
      case "phantom":
        return one(make("mphantom", {}, [this.#argument()]));
      case "pmod":
        return { nodes: [space("1em"), make("mtext", {}, ["(mod "]), this.#argument(), make("mtext", {}, [")"])] };
      case "bmod":
      case "mod":
        return { nodes: [space("0.2222em"), make("mi", {}, ["mod"]), space("0.2222em")] };
      case "tag":
      case "tag*":
        return { nodes: [space("2em"), make("mtext", {}, [`(${plainText(this.#rawArgument())})`])] };
      case "label":
      case "color":
        this.#rawArgument();
        return one(make("mrow"));
      case "textcolor":
        this.#rawArgument();
        return one(this.#argument());
      case "not":
        return one(negated(this.#argument()));
      case "left":
        return one(this.#fenced());
      case "begin":
        return one(this.#environment());
    }
    return this.#decoration(name);
  }

  /** Parse an accent, or a delimiter of a fixed size. */
  #decoration(name: string): Atom {
    const stretchy = STRETCHED.has(name) ? "true" : "false";
    if (Object.hasOwn(ACCENTS, name)) {
      const mark = operator(ACCENTS[name] ?? "", { stretchy });
      return { nodes: [make("mover", { accent: "true" }, [this.#argument(), mark])], hasLimits: name === "overbrace" };
    }
    if (Object.hasOwn(UNDER_ACCENTS, name)) {
      const mark = operator(UNDER_ACCENTS[name] ?? "", { stretchy });
      const isBrace = name === "underbrace";
      return { nodes: [make("munder", { accentunder: "true" }, [this.#argument(), mark])], hasLimits: isBrace };
    }
    const size = /^([bB]igg?)[lrm]?$/.exec(name)?.[1];
    if (size !== undefined) {
      const height = BIG[size] ?? "1em";
      return one(operator(this.#delimiter(), { stretchy: "true", minsize: height, maxsize: height }));
    }
    throw new TexError(`unknown command ${name}`);
  }

  #root(): MathElement {
    if (!this.#takeIf("[")) return make("msqrt", {}, [this.#argument()]);
    const index: MathElement[] = [];
    while (!this.#takeIf("]")) {
      if (this.#peek() === "" || this.#peek() === "}") throw new TexError("missing ]");
      index.push(...this.#scripted());
    }
    return make("mroot", {}, [this.#argument(), row(index)]);
  }

  #delimiter(): string {
    const token = this.#take();
    if (Object.hasOwn(DELIMITERS, token)) return DELIMITERS[token] ?? "";
    if (token !== "" && FENCES.includes(token)) return token;
    throw new TexError(`not a delimiter: ${token}`);
  }

  #fenced(): MathElement {
    const open = this.#delimiter();
    const inside = this.#cell();
    this.#expect("\\right");
    const close = this.#delimiter();
    return make("mrow", {}, [...(open ? [fence(open)] : []), ...inside, ...(close ? [fence(close)] : [])]);
  }

  #environment(): MathElement {
    const name = this.#rawArgument();
    if (name === "array" || name.startsWith("alignat")) this.#rawArgument(); // alignment of the columns
    const [open, close] = (Object.hasOwn(MATRICES, name) && MATRICES[name]) || ["", ""];
    if (!Object.hasOwn(MATRICES, name) && !ALIGNED.has(name) && !CENTERED.has(name)) {
      throw new TexError(`unknown environment ${name}`);
    }
    const kind = ALIGNED.has(name) ? "aligned" : name.endsWith("cases") ? "cases" : "matrix";
    const found = this.#tableUpTo("\\end", kind);
    if (this.#rawArgument() !== name) throw new TexError(`missing \\end{${name}}`);
    return make("mrow", {}, [...(open ? [fence(open)] : []), found, ...(close ? [fence(close)] : [])]);
  }

  #tableUpTo(end: string, kind: TableKind): MathElement {
    const rows = this.#rows();
    this.#expect(end);
    return table(rows, kind);
  }
}

interface Atom {
  nodes: MathElement[];
  /** Whether scripts are placed above and below. */
  hasLimits?: boolean;
  /** Whether a space separates it from its argument. */
  isFunction?: boolean;
}

const one = (node: MathElement): Atom => ({ nodes: [node] });

type TableKind = "aligned" | "cases" | "matrix" | "gathered";

function table(rows: readonly MathElement[][][], kind: TableKind): MathElement {
  // Classes, because MathML has no attribute for the alignment of columns that all browsers support.
  const alignment = (column: number): Attributes => {
    if (kind === "cases") return { class: "align-left" };
    return kind === "aligned" ? { class: column % 2 === 0 ? "align-right" : "align-left" } : {};
  };
  const attributes: Attributes = kind === "aligned" ? { class: "aligned", displaystyle: "true" } : {};
  return make(
    "mtable",
    attributes,
    rows.map((cells) => make("mtr", {}, cells.map((cell, column) => make("mtd", alignment(column), cell)))),
  );
}

function characters(token: string): MathElement[] {
  if (/^\d/.test(token)) return [make("mn", {}, [token])];
  if (/^\p{L}/u.test(token)) return [make("mi", {}, [token])];
  if (token === "~") return [space("0.3333em")];
  if ("}^_&#".includes(token)) throw new TexError(`unexpected ${token}`);
  const text = CHARACTERS[token] ?? token;
  return [operator(text, FENCES.includes(token) ? { stretchy: "false" } : {})];
}

function symbol(text: string): MathElement {
  return /^[\p{L}∞∅∂∇ℏ…∠°]/u.test(text) ? make("mi", {}, [text]) : operator(text);
}

function joined(before: MathElement | undefined, more: MathElement): MathElement {
  return before === undefined ? more : make("mrow", {}, [before, more]);
}

function withScripts(
  base: MathElement,
  below: MathElement | undefined,
  above: MathElement | undefined,
  isBeside: boolean,
): MathElement {
  if (below && above) return make(isBeside ? "msubsup" : "munderover", {}, [base, below, above]);
  if (below) return make(isBeside ? "msub" : "munder", {}, [base, below]);
  if (above) return make(isBeside ? "msup" : "mover", {}, [base, above]);
  return base;
}

function negated(node: MathElement): MathElement {
  const [text] = node.children;
  return typeof text === "string" ? { ...node, children: [`${text}\u0338`] } : node;
}

/** Replace letters and digits by those of a mathematical alphabet. */
function inAlphabet(node: MathElement, name: string): MathElement {
  const convert = ALPHABETS[name];
  const isUpright = name === "mathrm";
  const parts = node.tag === "mrow" ? node.children : [node];
  const isWord = parts.every((part) => typeof part === "object" && ["mi", "mn"].includes(part.tag));
  if (isUpright && isWord) {
    const word = parts.flatMap((part) => (typeof part === "object" ? part.children : [])).join("");
    return make("mi", { mathvariant: "normal" }, [word]);
  }
  const children = node.children.map((child) =>
    typeof child === "object" ? inAlphabet(child, name) : [...child].map((char) => convert?.(char) ?? char).join(""),
  );
  return { ...node, children };
}

/** Return a text argument without the markup that it can contain. */
function plainText(text: string): string {
  return text.replace(/\\([&%$#_{} ])/g, "$1").replaceAll("~", "\u00a0").replace(/^ | $/g, "\u00a0");
}
