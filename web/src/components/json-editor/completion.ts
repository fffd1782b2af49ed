/** Completions and tooltips from the JSON Schema of the edited document. */

import {
  pickedCompletion,
  startCompletion,
  type Completion,
  type CompletionContext,
  type CompletionResult,
} from "@codemirror/autocomplete";
import { syntaxTree } from "@codemirror/language";
import type { EditorState } from "@codemirror/state";
import type { Tooltip } from "@codemirror/view";
import type { Json, JsonObject } from "@breadcrumbs/client";
import type { KnownValues } from "./findings";
import { locate, type Place, type Step } from "./json-place";

interface Schema {
  $ref?: string;
  type?: string;
  description?: string;
  default?: Json;
  enum?: Json[];
  minimum?: number;
  maximum?: number;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
}

type SyntaxNode = ReturnType<ReturnType<typeof syntaxTree>["resolveInner"]>;

const NOTHING_KNOWN: KnownValues = { schemas: [], tags: [], consumers: [] };

export class SchemaGuide {
  readonly #known: KnownValues;
  readonly #root: Schema;
  readonly #definitions: Record<string, Schema>;

  constructor(document: JsonObject, known: KnownValues = NOTHING_KNOWN) {
    this.#known = known;
    this.#root = document as unknown as Schema;
    this.#definitions = (document["$defs"] ?? {}) as unknown as Record<string, Schema>;
  }

  readonly complete = (context: CompletionContext): CompletionResult | null => {
    const text = context.state.doc.toString();
    const place = locate(text, context.pos);
    // Typing outside quotes offers something only after the first letter.
    if (place.from === context.pos && !context.explicit) return null;
    const options = place.expects === "name" ? this.#names(place, text) : this.#values(place, text);
    if (!options.length) return null;
    // Options are compared with the text before the cursor. Applying one replaces the whole token.
    const { from } = place;
    // An explicit request shows all options. Typing shows the options that match.
    return context.explicit ? { from, options, filter: false } : { from, options, validFor: /^"?[^"\n]*$/ };
  };

  /** Return the tooltip for a field name. */
  readonly explain = (state: EditorState, pos: number): Tooltip | null => {
    const node = syntaxTree(state).resolveInner(pos, -1);
    if (node.name !== "PropertyName" || !node.parent) return null;
    const found = this.#at(pathTo(state, node.parent));
    const words = found && describe(found);
    if (!words) return null;
    return {
      pos: node.from,
      end: node.to,
      create: () => {
        const dom = document.createElement("div");
        dom.className = "cm-explained";
        dom.textContent = words;
        return { dom };
      },
    };
  };

  #names(place: Place, text: string): Completion[] {
    const schema = this.#at(place.path);
    if (!schema?.properties) return [];
    const colon = /^\s*:/.test(text.slice(place.to, place.to + 40));
    return Object.entries(schema.properties)
      .filter(([name]) => !place.present.has(name))
      .map(([name, of]) => ({
        label: `"${name}"`,
        type: "property",
        detail: schema.required?.includes(name) ? "required" : "",
        info: describe(this.#resolved(of)) ?? "",
        boost: schema.required?.includes(name) ? 1 : 0,
        apply: colon ? replaceToken(`"${name}"`) : this.#insertField(name, [...place.path, name], text),
      }));
  }

  /** Return a function that inserts a field with its first value, and offers values if there are any. */
  #insertField(name: string, path: Step[], text: string): NonNullable<Completion["apply"]> {
    const of = this.#at(path);
    const item = of?.type === "array" ? this.#at([...path, 0]) : undefined;
    const inArray = item !== undefined && this.#choices([...path, 0], text).length > 0;
    const offers = inArray || (of?.type !== "array" && this.#choices(path, text).length > 0);
    const value = inArray ? '[""]' : this.#initialValue(of ?? {});
    const before = `"${name}": `;
    // The cursor goes behind the opening quote, so that a chosen or typed value replaces the first one.
    const cursor = before.length + (offers ? value.indexOf('"') + 1 : value.length);
    return replaceToken(before + value, cursor, offers);
  }

  #values(place: Place, text: string): Completion[] {
    if (place.expects !== "value") return [];
    const inArray = typeof place.path.at(-1) === "number";
    return this.#choices(place.path, text)
      .filter((value) => !inArray || typeof value !== "string" || !place.present.has(value))
      .map((value) => JSON.stringify(value))
      .map((label) => ({ label, type: "enum", apply: replaceToken(label) }));
  }

  /** Return the values that a path can have: those of the schema, or else those that exist in the store. */
  #choices(path: Step[], text: string): Json[] {
    const found = this.#at(path);
    if (!found) return [];
    const choices = [found, ...(found.anyOf ?? [])].flatMap((one) => {
      const schema = this.#resolved(one);
      if (schema.enum) return schema.enum;
      return schema.type === "boolean" ? [true, false] : schema.type === "null" ? [null] : [];
    });
    return [...this.#existing(path, text), ...choices];
  }

  #existing(path: Step[], text: string): readonly string[] {
    const fields = path.filter((step) => typeof step === "string");
    switch (fields.at(-1)) {
      case "schema_name":
      case "schema_names":
        return this.#known.schemas;
      case "any_tags":
      case "all_tags":
      case "tags":
        return this.#known.tags;
      case "consumer_id":
        return this.#known.consumers;
      case "key":
        return fields.includes("limits") ? keysIn(text) : [];
      default:
        return [];
    }
  }

  #initialValue(schema: Schema): string {
    const of = this.#resolved(schema);
    if (of.default !== undefined && of.default !== null && typeof of.default !== "object") {
      return JSON.stringify(of.default);
    }
    const types = [of, ...(of.anyOf ?? [])].map((one) => this.#resolved(one));
    if (types.some((one) => one.type === "array")) return "[]";
    if (types.some((one) => one.type === "object" || one.properties)) return "{}";
    return types.some((one) => one.type === "string") ? '""' : "";
  }

  #at(path: Step[]): Schema | undefined {
    let now: Schema | undefined = this.#root;
    for (const step of path) {
      const alternatives: Schema[] = now ? [now, ...(now.anyOf ?? [])].map((one) => this.#resolved(one)) : [];
      now = undefined;
      for (const one of alternatives) {
        const next = typeof step === "number" ? one.items : one.properties?.[step];
        if (next) {
          now = this.#resolved(next);
          break;
        }
      }
      if (!now) return undefined;
    }
    // The document is one config or a list of configs. For a nullable field, use the other type.
    const alternatives = [now, ...(now?.anyOf ?? [])].map((one) => this.#resolved(one ?? {}));
    return alternatives.find((one) => one.properties) ?? now;
  }

  #resolved(schema: Schema): Schema {
    const name = schema.$ref?.split("/").at(-1);
    return name === undefined ? schema : { ...this.#definitions[name], ...schema };
  }
}

function describe(schema: Schema): string | undefined {
  const parts = [
    schema.description?.replace(/\s+/g, " "),
    schema.minimum !== undefined && schema.maximum !== undefined
      ? `From ${schema.minimum} to ${schema.maximum}.`
      : undefined,
    schema.default !== undefined && schema.default !== null && typeof schema.default !== "object"
      ? `Default: ${JSON.stringify(schema.default)}.`
      : undefined,
  ].filter((part) => part !== undefined);
  return parts.length ? parts.map((part) => (/[.!?]$/.test(part) ? part : `${part}.`)).join(" ") : undefined;
}

/** Return a function that replaces the token at the cursor, and then offers values if `offers` is set. */
function replaceToken(insert: string, cursor = insert.length, offers = false): NonNullable<Completion["apply"]> {
  return (view, completion, from, to) => {
    const end = Math.max(to, locate(view.state.doc.toString(), to).to);
    view.dispatch({
      changes: { from, to: end, insert },
      selection: { anchor: from + cursor },
      userEvent: "input.complete",
      annotations: pickedCompletion.of(completion),
    });
    if (offers) startCompletion(view);
  };
}

/** Return the keys of the sources in a text, which can be incomplete. */
function keysIn(text: string): string[] {
  return [...new Set([...text.matchAll(/"key"\s*:\s*"([A-Za-z][\w.-]*)"/g)].map((match) => match[1]!))];
}

/** Return the JSON path of a node. */
function pathTo(state: EditorState, from: SyntaxNode): Step[] {
  const path: Step[] = [];
  for (let node: SyntaxNode | null = from; node?.parent; node = node.parent) {
    if (node.name === "Property") {
      const name = node.getChild("PropertyName");
      if (name) path.unshift(unquoted(state.sliceDoc(name.from, name.to)));
    } else if (node.parent.name === "Array") {
      let index = 0;
      for (let before = node.prevSibling; before; before = before.prevSibling) {
        if (/^[A-Z]/.test(before.name)) index += 1;
      }
      path.unshift(index);
    }
  }
  return path;
}

function unquoted(text: string): string {
  try {
    return JSON.parse(text) as string;
  } catch {
    return text;
  }
}
