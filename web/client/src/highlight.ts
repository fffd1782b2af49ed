/**
 * Splits source code into tokens for syntax highlighting. It recognizes comments, strings, numbers, keywords and names,
 * but does not parse the language. Unknown languages are one plain token.
 *
 * The input is not trusted: the time is linear in its length, and long code is not highlighted. The result is available
 * at once, so that code does not flicker while it is streamed. These are the reasons why no library is used.
 */

export type TokenKind =
  | "comment" | "string" | "number" | "keyword" | "literal" | "function" | "property" | "inserted" | "deleted" | "meta";

export interface Token {
  /** Undefined for plain text. */
  kind?: TokenKind;
  text: string;
}

/** Longer code is not highlighted, because each token becomes an element. */
export const MAX_HIGHLIGHTED_LENGTH = 20_000;

const MAX_TOKENS = 4_000;

/** Return the tokens of a text. Their texts joined are the code. */
export function highlight(code: string, language: string): Token[] {
  const grammar = code.length > MAX_HIGHLIGHTED_LENGTH ? undefined : grammarOf(language);
  if (grammar === undefined) return [{ text: code }];
  const tokens: Token[] = [];
  let plain = 0;
  for (const found of code.matchAll(grammar.pattern)) {
    const kind = kindOf(found, grammar);
    if (kind === undefined) continue;
    if (tokens.length >= MAX_TOKENS) break;
    if (found.index > plain) tokens.push({ text: code.slice(plain, found.index) });
    tokens.push({ kind, text: found[0] });
    plain = found.index + found[0].length;
  }
  if (plain < code.length) tokens.push({ text: code.slice(plain) });
  return tokens;
}

interface Grammar {
  /** One named group per kind of token, and the group `word` for names. */
  pattern: RegExp;
  /** Kinds of the groups, except `word`. */
  kinds: readonly TokenKind[];
  keywords: ReadonlySet<string>;
  literals: ReadonlySet<string>;
  ignoresCase: boolean;
}

function kindOf(found: RegExpMatchArray, grammar: Grammar): TokenKind | undefined {
  const word = found.groups?.["word"];
  if (word === undefined) return grammar.kinds.find((kind) => found.groups?.[kind] !== undefined);
  const name = grammar.ignoresCase ? word.toLowerCase() : word;
  if (grammar.keywords.has(name)) return "keyword";
  if (grammar.literals.has(name)) return "literal";
  const next = found.input?.[(found.index ?? 0) + word.length];
  return next === "(" ? "function" : undefined;
}

// --- Patterns ---------------------------------------------------------------------------------------------------
// An unfinished comment or string ends at the end of the text, or of the line if it cannot contain line breaks. No
// pattern fails after a long match, so that the time stays linear.

const LINE_COMMENT = String.raw`\/\/[^\n]*`;
const BLOCK_COMMENT = String.raw`\/\*[^]*?(?:\*\/|(?![^]))`;
const HASH_COMMENT = String.raw`(?<![\w$&{])#[^\n]*`;
const DASH_COMMENT = String.raw`--[^\n]*`;
const DOUBLE_QUOTED = String.raw`"[^"\\\n]*(?:\\[^][^"\\\n]*)*"?`;
const SINGLE_QUOTED = String.raw`'[^'\\\n]*(?:\\[^][^'\\\n]*)*'?`;
const BACKQUOTED = "`[^`\\\\]*(?:\\\\[^][^`\\\\]*)*`?";
const TRIPLE_QUOTED = String.raw`"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))`;
// A single quote also starts a lifetime in Rust, and is a digit separator in C++.
const CHARACTER = String.raw`'(?:[^'\\\n]|\\[^\n]{1,10}?)'`;
const NUMBER = String.raw`(?<![\w$.])(?:0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][+-]?\d+)?)\w{0,3}`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;

interface Description {
  names: string;
  keywords?: string;
  literals?: string;
  comment?: string;
  string?: string;
  /** Further groups, which have priority over the others. */
  more?: Partial<Record<TokenKind, string>>;
  word?: string;
  number?: string;
  ignoresCase?: boolean;
}

const C_COMMENTS = `${LINE_COMMENT}|${BLOCK_COMMENT}`;
const C_WORDS =
  "break case char const continue default do double else enum extern float for goto if int long return short signed sizeof static struct switch typedef union unsigned void volatile while";
const DECORATOR = String.raw`(?<!\w)@[A-Za-z_][\w.]*`;

const DESCRIPTIONS: readonly Description[] = [
  {
    names: "javascript js jsx mjs cjs typescript ts tsx",
    keywords:
      "abstract as async await break case catch class const continue debugger declare default delete do else enum export extends finally for from function get if implements import in infer instanceof interface is keyof let namespace new of private protected public readonly return satisfies set static super switch this throw try type typeof var void while with yield any boolean never number object string unknown",
    literals: "true false null undefined NaN Infinity",
    comment: C_COMMENTS,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}|${BACKQUOTED}`,
    more: { meta: DECORATOR },
  },
  {
    names: "python py python3 pycon",
    keywords:
      "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try type while with yield",
    literals: "True False None self cls",
    comment: HASH_COMMENT,
    string: `(?<!\\w)[rRbBfFuUtT]{0,2}(?:${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|${SINGLE_QUOTED})`,
    more: { meta: String.raw`^[ \t]*@[\w.]+|^>>> |^\.\.\. ` },
  },
  {
    names: "bash sh shell zsh console shellsession",
    keywords:
      "if then else elif fi for while until do done case esac in function select time return exit break continue local export readonly declare set unset shift source alias cd echo printf read test trap eval exec sudo",
    literals: "true false",
    comment: HASH_COMMENT,
    string: String.raw`"[^"\\]*(?:\\[^][^"\\]*)*"?|'[^']*'?`,
    more: { property: String.raw`\$(?:\w+|\{[^}\n]{0,100}\}|[@*#?$!-])`, meta: String.raw`^\$ ` },
    word: String.raw`(?<![\w./-])[A-Za-z_][\w-]*`,
  },
  {
    names: "json json5 jsonc jsonl ndjson",
    literals: "true false null",
    comment: C_COMMENTS,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { property: String.raw`"[^"\\\n]*(?:\\[^][^"\\\n]*)*"(?=[ \t]{0,20}:)` },
  },
  {
    names: "yaml yml",
    literals: "true false null yes no on off",
    comment: String.raw`(?<!\S)#[^\n]*`,
    string: `${DOUBLE_QUOTED}|(?<!\\w)${SINGLE_QUOTED}`,
    more: { property: String.raw`^[ \t]*(?:- +)?[\w./-]+(?=:(?:\s|$))`, meta: String.raw`^---[^\n]*|(?<!\S)[&*!][\w!]+` },
  },
  {
    names: "toml ini conf properties env dotenv",
    literals: "true false",
    comment: String.raw`(?<!\S)[#;][^\n]*`,
    string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { property: String.raw`^[ \t]*[\w."-]+(?=[ \t]{0,20}=)`, meta: String.raw`^[ \t]*\[[^\]\n]*\]{1,2}` },
  },
  {
    names: "sql postgres postgresql mysql sqlite",
    keywords:
      "add all alter and as asc begin between by case check column commit constraint create cross database default delete desc distinct drop else end except exists explain foreign from full group having if in index inner insert intersect into is join key left like limit not offset on or order outer over partition primary references returning right rollback select set table then transaction trigger union unique update using values view when where with bigint boolean char date decimal float integer int json jsonb numeric serial text timestamp uuid varchar",
    literals: "true false null",
    comment: `${DASH_COMMENT}|${BLOCK_COMMENT}`,
    string: `'[^']*'?|${DOUBLE_QUOTED}`,
    ignoresCase: true,
  },
  {
    names: "html xml svg xhtml vue svelte",
    comment: String.raw`<!--[^]*?(?:-->|(?![^]))`,
    string: String.raw`(?<==[ \t]{0,5})(?:"[^"<]*"?|'[^'<]*'?)`,
    more: {
      meta: String.raw`<[!?][A-Za-z][^>]*>?|&#?\w{1,20};`,
      keyword: String.raw`<\/?[A-Za-z][\w:.-]*|(?<=[\w"'/ \t\n])\/?>`,
      property: String.raw`(?<=[\s"'])[\w:@.-]+(?==)`,
    },
    number: "(?!)",
    word: "(?!)",
  },
  {
    names: "css scss sass less",
    keywords: "important",
    comment: C_COMMENTS,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: {
      meta: String.raw`@[\w-]+`,
      property: String.raw`(?<![\w-])(?:--)?[a-z][a-z-]*(?=[ \t]{0,10}:[^:\n]*[;\n])|--[\w-]+|\$[\w-]+`,
      literal: String.raw`#[\da-fA-F]{3,8}(?![\w-])`,
    },
    number: String.raw`(?<![\w-])-?\d[\d.]*(?:%|[a-z]{1,4})?`,
    word: "[A-Za-z_][\\w-]*",
  },
  {
    names: "diff patch",
    more: {
      meta: String.raw`^(?:@@|diff |index |\+\+\+|---)[^\n]*`,
      inserted: String.raw`^\+[^\n]*`,
      deleted: String.raw`^-[^\n]*`,
    },
    number: "(?!)",
    word: "(?!)",
  },
  {
    names: "c h cpp c++ cc cxx hpp arduino objectivec",
    keywords: `${C_WORDS} alignas auto bool catch class concept consteval constexpr constinit co_await co_return co_yield decltype delete explicit export final friend inline mutable namespace new noexcept operator override private protected public register requires static_assert template this throw try typename using virtual`,
    literals: "true false NULL nullptr",
    comment: C_COMMENTS,
    string: `${DOUBLE_QUOTED}|(?<!\\w)${CHARACTER}`,
    more: { meta: String.raw`^[ \t]*#[ \t]*\w+` },
  },
  {
    names: "java kotlin kt scala groovy dart csharp cs",
    keywords: `${C_WORDS} abstract as async await base bool boolean by byte catch class companion data decimal def delegate do event explicit extends final finally foreach fun get given implements implicit import in init instanceof interface internal into is lateinit lazy lock match namespace native new null object open operator out override package params partial private protected public readonly record ref sealed set string super suspend synchronized this throw throws trait transient try typeof using val var virtual when where with yield`,
    literals: "true false null it",
    comment: C_COMMENTS,
    string: `${TRIPLE_QUOTED}|[$@]{0,2}${DOUBLE_QUOTED}|${CHARACTER}`,
    more: { meta: DECORATOR },
  },
  {
    names: "go golang",
    keywords:
      "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var any bool byte error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64",
    literals: "true false nil iota",
    comment: C_COMMENTS,
    string: "`[^`]*`?|" + `${DOUBLE_QUOTED}|${CHARACTER}`,
  },
  {
    names: "rust rs",
    keywords:
      "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait type union unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize String Vec Option Result",
    literals: "true false None Some Ok Err",
    comment: C_COMMENTS,
    string: String.raw`b?"[^"\\]*(?:\\[^][^"\\]*)*"?|b?${CHARACTER}`,
    more: { meta: String.raw`#!?\[[^\]\n]*\]?|\b[a-z_]\w*!(?=[(\[{])` },
  },
  {
    names: "swift",
    keywords:
      "actor as associatedtype async await break case catch class continue default defer do else enum extension fallthrough fileprivate final for func get guard if import in init inout internal is lazy let mutating open operator override private protocol public repeat required rethrows return self Self set static struct subscript super switch throw throws try typealias var weak where while Bool Double Int String",
    literals: "true false nil",
    comment: C_COMMENTS,
    string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}`,
    more: { meta: DECORATOR },
  },
  {
    names: "php",
    keywords:
      "abstract and array as break callable case catch class clone const continue declare default do echo else elseif enum extends final finally fn for foreach function global if implements include include_once instanceof interface isset list match namespace new or print private protected public readonly require require_once return static switch throw trait try unset use var while xor yield",
    literals: "true false null",
    comment: `${C_COMMENTS}|${HASH_COMMENT}`,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { meta: String.raw`<\?(?:php|=)?|\?>`, property: String.raw`\$\w+` },
    ignoresCase: true,
  },
  {
    names: "ruby rb elixir ex exs",
    keywords:
      "alias and begin break case class def defined do else elsif end ensure for if in include module next not or private protected public raise redo require require_relative rescue retry return self super then undef unless until when while yield defmodule defp fn use import with",
    literals: "true false nil",
    comment: HASH_COMMENT,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { literal: String.raw`(?<![\w:]):[A-Za-z_]\w*[?!]?`, property: String.raw`@{1,2}\w+` },
  },
  {
    names: "lua haskell hs",
    keywords:
      "and break case class data deriving do else elseif end for forall function goto if import in infix instance let local module newtype not of or qualified repeat return then type until where while",
    literals: "true false nil True False",
    comment: String.raw`--\[\[[^]*?(?:\]\]|(?![^]))|${DASH_COMMENT}`,
    string: DOUBLE_QUOTED + `|(?<!\\w)${SINGLE_QUOTED}`,
  },
  {
    names: "r julia jl",
    keywords:
      "abstract baremodule begin break catch const continue do else elseif end export finally for function global if import in let library local macro module mutable next primitive quote repeat require return struct try type using while",
    literals: "TRUE FALSE NULL NA NaN Inf true false nothing missing",
    comment: HASH_COMMENT,
    string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|(?<![\\w)\\]])${SINGLE_QUOTED}`,
    more: { meta: DECORATOR },
  },
  {
    names: "dockerfile docker containerfile",
    keywords:
      "from as run cmd label expose env add copy entrypoint volume user workdir arg onbuild stopsignal healthcheck shell",
    comment: String.raw`^[ \t]*#[^\n]*`,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { property: String.raw`\$(?:\w+|\{[^}\n]{0,100}\})` },
    word: String.raw`(?<![\w./-])(?:[A-Z]{2,}|[a-z]{2,})(?![\w./-])`,
    ignoresCase: true,
  },
  {
    names: "makefile make",
    keywords: "ifeq ifneq ifdef ifndef else endif include define endef export override",
    comment: HASH_COMMENT,
    string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
    more: { property: String.raw`\$(?:[@<^*?%]|[({][^)}\n]{0,100}[)}])`, function: String.raw`^[\w./%-]+(?=[ \t]{0,10}:)` },
  },
];

const described = new Map(DESCRIPTIONS.flatMap((one) => one.names.split(" ").map((name) => [name, one])));
const grammars = new Map<Description, Grammar>();

/** Return the grammar of a language, or undefined if it is not known. Created at its first use. */
function grammarOf(language: string): Grammar | undefined {
  const description = described.get(language.toLowerCase());
  if (description === undefined) return undefined;
  let grammar = grammars.get(description);
  if (grammar === undefined) {
    grammar = grammarFrom(description);
    grammars.set(description, grammar);
  }
  return grammar;
}

function grammarFrom(description: Description): Grammar {
  const { comment, string, more } = description;
  const groups = {
    ...(comment !== undefined && { comment }),
    ...more,
    ...(string !== undefined && { string }),
    number: description.number ?? NUMBER,
    word: description.word ?? WORD,
  };
  const pattern = Object.entries(groups).map(([name, source]) => `(?<${name}>${source})`).join("|");
  return {
    pattern: new RegExp(pattern, "gm"),
    kinds: Object.keys(groups).filter((name) => name !== "word") as TokenKind[],
    keywords: wordSet(description.keywords),
    literals: wordSet(description.literals),
    ignoresCase: description.ignoresCase ?? false,
  };
}

function wordSet(words = ""): ReadonlySet<string> {
  return new Set(words.split(" ").filter(Boolean));
}
