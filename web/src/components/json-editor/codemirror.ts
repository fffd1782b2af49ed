/**
 * CodeMirror editor for JSON, built as a separate chunk. It is in a shadow root, because there CodeMirror uses
 * constructed style sheets. In the document it would add <style> elements, which the content security policy forbids.
 */

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting, syntaxTree } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { Compartment, EditorState, RangeSetBuilder } from "@codemirror/state";
import {
  Decoration,
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  hoverTooltip,
  keymap,
  lineNumbers,
  ViewPlugin,
  type DecorationSet,
  type ViewUpdate,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { JsonObject } from "@breadcrumbs/client";
import { SchemaGuide } from "./completion";
import type { Finding, KnownValues } from "./findings";

export interface EditorHandle {
  /** Replace the text. The user can undo this. */
  show(text: string): void;
  complain(complaints: readonly Finding[], warnings: readonly Finding[]): void;
  goTo(complaint: Finding): void;
  guide(schema: JsonObject, known?: KnownValues): void;
  destroy(): void;
}

export function createEditor(
  host: HTMLElement,
  text: string,
  label: string,
  onChange: (text: string) => void,
): EditorHandle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  // Typed keys must not trigger shortcuts of the page, which does not see the text field in the shadow root.
  host.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
  });
  const guided = new Compartment();
  let showing = false;
  const extensions = [
    lineNumbers(),
    lintGutter(),
    highlightActiveLineGutter(),
    highlightSpecialChars(),
    history(),
    drawSelection(),
    indentOnInput(),
    bracketMatching(),
    closeBrackets(),
    highlightActiveLine(),
    json(),
    syntaxHighlighting(colours),
    guided.of([]),
    EditorView.lineWrapping,
    hanging,
    // No binding for Tab, so that it moves the focus out of the editor.
    keymap.of([...closeBracketsKeymap, ...completionKeymap, ...lintKeymap, ...historyKeymap, ...defaultKeymap]),
    EditorView.contentAttributes.of({ "aria-label": label, "aria-multiline": "true", tabindex: "0" }),
    typingOverSelections,
    EditorView.updateListener.of((update) => {
      if (update.docChanged && !showing) onChange(update.state.doc.toString());
    }),
    theme,
  ];
  const view = new EditorView({ state: EditorState.create({ doc: text, extensions }), root, parent: root });

  return {
    show(next) {
      if (next === view.state.doc.toString()) return;
      showing = true;
      const anchor = Math.min(view.state.selection.main.head, next.length);
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next }, selection: { anchor } });
      showing = false;
    },
    complain(complaints, warnings) {
      const shown = [
        ...complaints.map((one) => diagnostic(view.state, one, "error")),
        ...warnings.map((one) => diagnostic(view.state, one, "warning")),
      ];
      view.dispatch(setDiagnostics(view.state, shown));
    },
    goTo(complaint) {
      const pos = placeOf(view.state, complaint);
      view.dispatch({ selection: { anchor: pos }, effects: EditorView.scrollIntoView(pos, { y: "center" }) });
      view.focus();
    },
    guide(schema, known) {
      const { complete, explain } = new SchemaGuide(schema, known);
      view.dispatch({
        effects: guided.reconfigure([
          autocompletion({ override: [complete], icons: false }),
          hoverTooltip((shown, pos) => explain(shown.state, pos)),
        ]),
      });
    },
    destroy: () => view.destroy(),
  };
}

function placeOf(state: EditorState, { line, column }: Finding): number {
  const found = state.doc.line(Math.min(Math.max(line, 1), state.doc.lines));
  // The server counts code points, the editor UTF-16 units.
  const before = [...found.text].slice(0, column - 1).join("").length;
  return Math.min(found.from + before, found.to);
}

function diagnostic(state: EditorState, complaint: Finding, severity: "error" | "warning"): Diagnostic {
  const from = placeOf(state, complaint);
  const node = syntaxTree(state).resolveInner(from, 1);
  const line = state.doc.lineAt(from);
  // Mark up to the end of the value, but only on its first line, so that the position stays visible.
  const to = node.from === from ? Math.min(node.to, line.to) : Math.min(from + 1, line.to);
  return { from, to: Math.max(from, to), severity, message: inWords(complaint) };
}

function inWords({ where, message }: Finding): string {
  return where ? `${where}: ${message}` : message;
}

/**
 * Replaces a selection by typed text. Chromium would keep the style of the old text in a style attribute, which the
 * content security policy refuses.
 */
const typingOverSelections = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { from, to } = view.state.selection.main;
    const text = event.data;
    if (event.inputType !== "insertText" || text === null || from === to || view.composing) return false;
    const insert = () =>
      view.state.update({
        changes: { from, to, insert: text },
        selection: { anchor: from + text.length },
        userEvent: "input.type",
        scrollIntoView: true,
      });
    const handlers = view.state.facet(EditorView.inputHandler);
    if (!handlers.some((handle) => handle(view, from, to, text, insert))) view.dispatch(insert());
    event.preventDefault();
    return true;
  },
});

const MAX_INDENT = 16;

/** Indents wrapped lines like their first line. Uses classes, because the policy forbids style attributes. */
const hanging = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;

    constructor(view: EditorView) {
      this.decorations = hang(view);
    }

    update(update: ViewUpdate) {
      if (update.docChanged || update.viewportChanged) this.decorations = hang(update.view);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

const indented = Array.from({ length: MAX_INDENT + 1 }, (_, depth) => Decoration.line({ class: `cm-hang-${depth}` }));

function hang(view: EditorView): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  for (const { from, to } of view.visibleRanges) {
    for (let at = from; at <= to; ) {
      const line = view.state.doc.lineAt(at);
      const depth = Math.min(/^ */.exec(line.text)?.[0].length ?? 0, MAX_INDENT);
      builder.add(line.from, line.from, indented[depth]!);
      at = line.to + 1;
    }
  }
  return builder.finish();
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--info)" },
  { tag: tags.string, color: "var(--good)" },
  { tag: tags.number, color: "var(--violet)" },
  { tag: [tags.bool, tags.null], color: "var(--warn)" },
  { tag: [tags.separator, tags.squareBracket, tags.brace], color: "var(--soft)" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

const theme = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--paper)", fontSize: "var(--text-s)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.65", overflow: "auto" },
  ".cm-content": { padding: "0.75rem 0", caretColor: "var(--accent)" },
  ".cm-line": { padding: "0 1rem 0 0.5rem" },
  ...Object.fromEntries(
    indented.map((_, depth) => [
      `.cm-hang-${depth}`,
      { paddingLeft: `calc(0.5rem + ${depth + 2}ch)`, textIndent: `-${depth + 2}ch` },
    ]),
  ),
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in srgb, var(--accent) 24%, transparent)",
  },
  ".cm-gutters": { backgroundColor: "var(--paper)", color: "var(--soft)", border: "none" },
  ".cm-gutter-lint": { width: "1.3em" },
  ".cm-lineNumbers .cm-gutterElement": { paddingLeft: "0.75rem", minWidth: "2.6rem" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--tint-2) 45%, transparent)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--ink)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-tint)", outline: "1px solid var(--accent)" },
  ".cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--bad)",
    textDecorationSkipInk: "none",
    textUnderlineOffset: "3px",
  },
  ".cm-lintRange-warning": {
    backgroundImage: "none",
    textDecoration: "underline dotted var(--warn)",
    textDecorationSkipInk: "none",
    textUnderlineOffset: "3px",
  },
  ".cm-lint-marker-error, .cm-lint-marker-warning": { content: "none" },
  ".cm-lint-marker": { width: "auto", height: "auto" },
  ".cm-lint-marker-error::before": {
    content: '"!"',
    display: "grid",
    placeContent: "center",
    width: "1.15em",
    height: "1.15em",
    marginTop: "0.25em",
    borderRadius: "50%",
    backgroundColor: "var(--bad)",
    color: "var(--paper)",
    font: "700 0.8em/1 var(--font)",
  },
  ".cm-lint-marker-warning::before": {
    content: '"!"',
    display: "grid",
    placeContent: "center",
    width: "1.15em",
    height: "1.15em",
    marginTop: "0.25em",
    borderRadius: "50%",
    border: "1px solid var(--warn)",
    color: "var(--warn)",
    font: "700 0.8em/1 var(--font)",
  },
  ".cm-tooltip": {
    maxWidth: "min(30rem, 90vw)",
    border: "1px solid var(--line)",
    borderRadius: "var(--round-s)",
    backgroundColor: "var(--paper)",
    color: "var(--ink)",
    boxShadow: "var(--shadow)",
    font: "var(--text-s)/1.5 var(--font)",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "16em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "0.2rem 0.6rem", lineHeight: "1.6" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "var(--soft)", fontStyle: "normal" },
  "li[aria-selected] .cm-completionDetail": { color: "inherit" },
  ".cm-tooltip.cm-completionInfo": { padding: "0.5rem 0.7rem", width: "18rem" },
  ".cm-explained, .cm-diagnostic": { padding: "0.4rem 0.7rem" },
  ".cm-diagnostic-warning": { borderLeft: "3px solid var(--warn)" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
});
