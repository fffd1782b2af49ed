/** Position of the cursor in a JSON text. The text can be incomplete, as it is while a user types. */

export type Step = string | number;

export interface Place {
  /** JSON path of the object that gets a name, or of the value. */
  path: Step[];
  /** Whether a field name or a value can be at the cursor. */
  expects: "name" | "value" | "nothing";
  /** Range of the token at the cursor, with its quotes. Empty between tokens. */
  from: number;
  to: number;
  /** Names of the other fields of the object, or the other strings of the array. */
  present: Set<string>;
}

interface Container {
  kind: "object" | "array";
  /** Name of the current field. */
  name: string | undefined;
  /** Index of the current entry of an array. */
  index: number;
  expects: Place["expects"] | "colon" | "comma";
  present: string[];
}

interface Token {
  from: number;
  to: number;
  /** Content of a string, undefined for other tokens. */
  text: string | undefined;
}

const STRING = /"(?:[^"\\\n]|\\.)*"?/y;
const WORD = /[^\s"{}[\],:]+/y;

/** Find the place of a position. Everything before it is read, and the rest of its container. */
export function locate(text: string, pos: number): Place {
  const stack: Container[] = [];
  let top: Container = { kind: "array", name: undefined, index: 0, expects: "value", present: [] };
  let found: { place: Omit<Place, "present">; owner: Container } | undefined;

  const path = (): Step[] =>
    [...stack.slice(1), top].filter((_, at) => at > 0 || stack.length > 0).flatMap((one) => stepOf(one));
  const note = (from: number, to: number) => {
    const expects = top.expects === "colon" || top.expects === "comma" ? "nothing" : top.expects;
    const inside = path();
    if (expects === "name") inside.pop();
    found = { place: { path: inside, expects, from, to }, owner: top };
  };

  for (let at = 0; at < text.length; ) {
    const token = tokenAt(text, at);
    // The cursor is in a token, or behind its first quote, or at the end of a word.
    const ends = token?.text !== undefined && text[token.to - 1] === '"' && token.to > token.from + 1;
    if (!found && token && token.from < pos && (ends ? pos < token.to : pos <= token.to)) note(token.from, token.to);
    else if (!found && at >= pos) note(pos, pos);
    if (token) {
      const isHere = found !== undefined && found.place.from === token.from && found.place.to === token.to;
      take(top, token, isHere);
      at = token.to;
      continue;
    }
    const character = text[at]!;
    at += 1;
    if (character === "{" || character === "[") {
      stack.push(top);
      const kind = character === "{" ? "object" : "array";
      top = { kind, name: undefined, index: 0, expects: kind === "object" ? "name" : "value", present: [] };
    } else if (character === "}" || character === "]") {
      if (found?.owner === top) break;
      top = stack.pop() ?? top;
      top.expects = "comma";
    } else if (character === ",") {
      top.index += 1;
      top.name = undefined;
      top.expects = top.kind === "object" ? "name" : "value";
    } else if (character === ":") {
      top.expects = "value";
    }
  }
  if (!found) note(pos, pos);
  const { place, owner } = found!;
  return { ...place, present: new Set(owner.present) };
}

function stepOf(one: Container): Step[] {
  if (one.kind === "array") return [one.index];
  return one.name === undefined ? [""] : [one.name];
}

function tokenAt(text: string, at: number): Token | undefined {
  STRING.lastIndex = WORD.lastIndex = at;
  const string = STRING.exec(text);
  if (string) return { from: at, to: at + string[0].length, text: string[0].replace(/^"|"$/g, "") };
  const word = WORD.exec(text);
  return word ? { from: at, to: at + word[0].length, text: undefined } : undefined;
}

/** Read a token. The token at the cursor does not count as present. */
function take(top: Container, token: Token, isHere: boolean): void {
  if (top.kind === "object" && top.expects === "name") {
    top.name = token.text ?? "";
    if (token.text !== undefined && !isHere) top.present.push(token.text);
    top.expects = "colon";
    return;
  }
  if (top.kind === "array" && token.text !== undefined && !isHere) top.present.push(token.text);
  top.expects = "comma";
}
