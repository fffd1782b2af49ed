/** Completions and tooltips from the JSON Schema of context configs. */

import type { CompletionContext, CompletionResult, Completion } from "@codemirror/autocomplete";
import { syntaxTree } from "@codemirror/language";
import type { EditorState } from "@codemirror/state";
import type { Tooltip } from "@codemirror/view";
import type { Json, JsonObject } from "@breadcrumbs/client";

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

type Step = string | number;
type SyntaxNode = ReturnType<ReturnType<typeof syntaxTree>["resolveInner"]>;

export class SchemaGuide {
  readonly #root: Schema;
  readonly #definitions: Record<string, Schema>;

  constructor(document: JsonObject) {
    this.#root = document as unknown as Schema;
    this.#definitions = (document["$defs"] ?? {}) as unknown as Record<string, Schema>;
  }

  readonly complete = (context: CompletionContext): CompletionResult | null => {
    const { state, pos } = context;
    const node = syntaxTree(state).resolveInner(pos, -1);
    const quoted = node.name === "PropertyName" || node.name === "String";
    const from = quoted ? node.from : (context.matchBefore(/[\w$]+/)?.from ?? pos);
    if (!quoted && !context.explicit && from === pos) return null;
    const to = quoted ? node.to : pos;
    const property = ancestor(node, "Property");
    const inValue = property !== null && node.name !== "PropertyName" && isAfterColon(state, property, from);
    const options = inValue
      ? this.#values(pathTo(state, property))
      : this.#names(state, ancestor(node, "Object"), node, state.sliceDoc(to, to + 40));
    if (!options.length) return null;
    // An explicit request shows all options. Typing shows the options that match.
    return context.explicit ? { from, to, options, filter: false } : { from, to, options, validFor: /^"?[\w$.]*"?$/ };
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

  #names(state: EditorState, object: SyntaxNode | null, here: SyntaxNode, after: string): Completion[] {
    const schema = object && this.#at(pathTo(state, object));
    if (!object || !schema?.properties) return [];
    const present = new Set(
      object.getChildren("Property").flatMap((property) => {
        const name = property.getChild("PropertyName");
        return name && name.from !== here.from ? [JSON.parse(state.sliceDoc(name.from, name.to)) as string] : [];
      }),
    );
    const colon = /^\s*:/.test(after);
    return Object.entries(schema.properties)
      .filter(([name]) => !present.has(name))
      .map(([name, of]) => ({
        label: `"${name}"`,
        type: "property",
        detail: schema.required?.includes(name) ? "required" : "",
        info: describe(this.#resolved(of)) ?? "",
        boost: schema.required?.includes(name) ? 1 : 0,
        apply: colon ? `"${name}"` : `"${name}": ${this.#initialValue(of)}`,
      }));
  }

  #values(path: Step[]): Completion[] {
    const found = this.#at(path);
    if (!found) return [];
    const choices = [found, ...(found.anyOf ?? [])].flatMap((one) => {
      const schema = this.#resolved(one);
      if (schema.enum) return schema.enum;
      return schema.type === "boolean" ? [true, false] : schema.type === "null" ? [null] : [];
    });
    return choices.map((value) => ({ label: JSON.stringify(value), type: "enum" }));
  }

  #initialValue(schema: Schema): string {
    const of = this.#resolved(schema);
    if (of.default !== undefined && of.default !== null && typeof of.default !== "object") {
      return JSON.stringify(of.default);
    }
    if (of.type === "array") return "[]";
    return of.type === "object" ? "{}" : of.type === "string" ? '""' : "";
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

function ancestor(from: SyntaxNode, name: string): SyntaxNode | null {
  let node: SyntaxNode | null = from;
  while (node && node.name !== name && !(name === "Property" && (node.name === "Object" || node.name === "Array"))) {
    node = node.parent;
  }
  return node?.name === name ? node : null;
}

function isAfterColon(state: EditorState, property: SyntaxNode, pos: number): boolean {
  const name = property.getChild("PropertyName");
  return name !== null && state.sliceDoc(name.to, pos).includes(":");
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
