// Renders the conversation, one list item per entry. An item is rendered again only if its entry has changed.

import { sentence } from "../client/index.js";
import { byId, h, icon } from "./dom.js";
import { ratingButtons } from "./feedback.js";
import { markdown } from "./markdown.js";
import { fullTime, shortTime } from "./text.js";

// Longer texts are cut off at first: the layout of a million characters takes seconds.
const MAX_SHOWN_LENGTH = 30_000;

/** @typedef {import("./conversation.js").Entry} Entry */
/**
 * A list item. `key` identifies it, and `mark` changes whenever it has to be rendered again. The footer is its last
 * child and has its own mark, so that a rating does not replace the text above it.
 * @typedef {{mark: string, make: () => HTMLElement}} Footer
 * @typedef {{key: string, mark: string, make: () => HTMLElement, footer?: Footer}} Item
 */
/**
 * @typedef {{note?: string, canRetry?: boolean, canDetach?: boolean, feedback?: import("./feedback.js").RatingState}} EntryState
 */
/**
 * @typedef {object} Actions
 * @property {(error: Entry) => void} retry
 * @property {(page: Entry) => void} detach
 * @property {(parcel: import("./outbox.js").Parcel) => void} sendAgain
 * @property {(parcel: import("./outbox.js").Parcel) => void} takeBack
 * @property {import("./feedback.js").RatingActions} feedback
 */

/** @typedef {{mark: string, element: HTMLElement}} ShownFooter */

/** A list that replaces only changed items, so that selection, focus and open details are kept. */
export class EntryList {
  #list = byId("entries");
  /** @type {Map<string, {mark: string, element: HTMLElement, footer?: ShownFooter}>} */
  #shown = new Map();

  /** @param {Item[]} items */
  show(items) {
    const before = this.#shown;
    this.#shown = new Map();
    /** @type {ChildNode | null} */
    let place = this.#list.firstChild;
    for (const { key, mark, make, footer } of items) {
      const known = before.get(key);
      const element = known?.mark === mark ? known.element : make();
      const shownFooter = showFooter(element, element === known?.element ? known.footer : undefined, footer);
      if (known && known.element !== element) {
        if (place === known.element) place = known.element.nextSibling;
        known.element.remove();
      }
      before.delete(key);
      this.#shown.set(key, { mark, element, footer: shownFooter });
      if (element === place) place = place.nextSibling;
      else this.#list.insertBefore(element, place);
    }
    for (const { element } of before.values()) element.remove();
  }
}

/**
 * Replace the footer of an item if it has changed.
 * @param {HTMLElement} item
 * @param {ShownFooter | undefined} shown
 * @param {Footer | undefined} wanted
 * @returns {ShownFooter | undefined}
 */
function showFooter(item, shown, wanted) {
  if (shown?.mark === wanted?.mark) return shown;
  shown?.element.remove();
  if (!wanted) return undefined;
  const element = wanted.make();
  item.append(element);
  return { mark: wanted.mark, element };
}

/**
 * @param {Entry} entry
 * @param {EntryState} state
 * @param {Actions} actions
 * @returns {Item}
 */
export function entryItem(entry, { feedback, ...state }, actions) {
  return {
    key: entry.id,
    mark: JSON.stringify([entry.version, state]),
    make: () => makeEntry(entry, state, actions),
    footer: feedback && {
      mark: JSON.stringify(feedback),
      make: () => ratingButtons(entry.id, feedback, actions.feedback),
    },
  };
}

/**
 * @param {Entry} entry
 * @param {Omit<EntryState, "feedback">} state
 * @param {Actions} actions
 */
function makeEntry(entry, state, actions) {
  switch (entry.kind) {
    case "user":
      return h(
        "li",
        { class: "entry user", "data-id": entry.id },
        head("You", entry.at, true),
        words(entry.text),
        state.note && h("p", { class: "entry-note" }, state.note),
      );
    case "answer":
      return h(
        "li",
        { class: "entry answer", "data-id": entry.id },
        head(entry.agent ?? "Agent", entry.at),
        entry.reasoning &&
          h("details", { class: "reasoning" }, h("summary", {}, h("span", {}, "Reasoning")), words(entry.reasoning)),
        rich(entry.text),
      );
    case "error":
      if (entry.cancelled) {
        return h("li", { class: "entry stopped", "data-id": entry.id }, "Answer stopped");
      }
      return h(
        "li",
        { class: "entry error", "data-id": entry.id },
        head("No answer", entry.at),
        words(entry.text),
        state.canRetry &&
          h(
            "div",
            { class: "entry-actions" },
            h("button", { type: "button", class: "small-button", click: () => actions.retry(entry) }, "Retry"),
          ),
      );
    case "page":
      return h(
        "li",
        { class: "entry page", "data-id": entry.id },
        pageCard(
          entry.page ?? { title: "", url: "", selection: false, truncated: false },
          entry.text,
          "attached",
          state.canDetach &&
            h(
              "button",
              {
                type: "button",
                class: "icon-button",
                "aria-label": `Remove page ${entry.page?.title ?? ""}`,
                title: "Remove page",
                click: () => actions.detach(entry),
              },
              icon("close"),
            ),
        ),
      );
    default:
      return h("li", { class: "entry tool", "data-id": entry.id }, toolCall(entry));
  }
}

/**
 * Return the item of a breadcrumb that the server has not confirmed.
 * @param {import("./outbox.js").Parcel} parcel
 * @param {{note: string, failed: boolean}} state
 * @param {Actions} actions
 * @returns {Item}
 */
export function parcelItem(parcel, state, actions) {
  const { context, title } = parcel.crumb;
  const make = () =>
    h(
      "li",
      { class: `entry user ${state.failed ? "failed" : "waiting"}` },
      "text" in context
        ? pageCard(
            { title, url: context.url, selection: context.selection, truncated: context.truncated },
            context.text,
            state.failed ? "not attached" : "attaching …",
          )
        : words(context.message),
      h("p", { class: "entry-note" }, state.note),
      state.failed &&
        h(
          "div",
          { class: "entry-actions" },
          h("button", { type: "button", class: "small-button", click: () => actions.sendAgain(parcel) }, "Retry"),
          h("button", { type: "button", class: "small-button", click: () => actions.takeBack(parcel) }, "Discard"),
        ),
    );
  return { key: parcel.key, mark: JSON.stringify(state), make };
}

/**
 * Return the item of an answer that is being written.
 * @param {import("./conversation.js").Draft} draft
 * @returns {Item}
 */
export function draftItem(draft) {
  const make = () =>
    h(
      "li",
      { class: "entry answer draft", "aria-busy": "true" },
      head(draft.agent, undefined),
      draft.letters.length > 0 && rich(draft.letters.join("")),
      draft.notice ? retryNote(draft) : draft.letters.length === 0 && thinkingDots(),
    );
  return { key: `draft ${draft.id}`, mark: `${draft.pieces}`, make };
}

/** @returns {Item} */
export function thinkingItem() {
  return { key: "thinking", mark: "", make: () => h("li", { class: "entry" }, thinkingDots()) };
}

function thinkingDots() {
  const label = h("span", { class: "hidden" }, "The agent is answering");
  return h("div", { class: "thinking" }, h("i"), h("i"), h("i"), label);
}

/**
 * Return why the model has not answered yet, and when it is called again.
 * @param {import("./conversation.js").Draft} draft
 */
function retryNote({ notice, retryAt = 0 }) {
  if (!notice) return "";
  const next = h("span", { "aria-live": "off" });
  const count = () => {
    const seconds = Math.ceil((retryAt - performance.now()) / 1000);
    next.textContent = `Attempt ${notice.attempt} ${seconds > 0 ? `in ${seconds} s.` : "is running."}`;
    if (seconds <= 0) clearInterval(timer);
  };
  const timer = setInterval(() => (next.isConnected ? count() : clearInterval(timer)), 1000);
  count();
  return h("p", { class: "entry-note retrying", role: "status" }, `${sentence(notice.reason)} `, next);
}

/** Render plain text. @param {string} text */
function words(text) {
  return bounded(text, (part) => h("div", { class: "words" }, part));
}

/** Render Markdown. @param {string} text */
function rich(text) {
  return bounded(text, (part) => h("div", { class: "rich" }, markdown(part)));
}

/**
 * Render the start of a very long text, with a button for the rest.
 * @param {string} text
 * @param {(part: string) => HTMLElement} make
 */
function bounded(text, make) {
  if (text.length <= MAX_SHOWN_LENGTH) return make(text);
  const box = h("div");
  const all = () => box.replaceChildren(make(text));
  const label = `Show all ${text.length.toLocaleString()} characters`;
  box.append(
    make(`${text.slice(0, MAX_SHOWN_LENGTH).toWellFormed()} …`),
    h("div", { class: "entry-actions" }, h("button", { type: "button", class: "small-button", click: all }, label)),
  );
  return box;
}

/**
 * @param {string} who
 * @param {string | undefined} at
 * @param {boolean} [quiet] Show the name to screen readers only.
 */
function head(who, at, quiet = false) {
  return h(
    "div",
    { class: "entry-head" },
    h("span", { class: quiet ? "hidden" : "who" }, who),
    at !== undefined && h("time", { datetime: at, title: fullTime(at) }, shortTime(at)),
  );
}

/**
 * @param {NonNullable<Entry["page"]>} page
 * @param {string} text
 * @param {string} state
 * @param {import("./dom.js").Child} [button]
 */
function pageCard(page, text, state, button) {
  const what = page.selection ? "selected text" : "page";
  const size = `${text.length.toLocaleString()} characters${page.truncated ? ", truncated" : ""}`;
  return h(
    "div",
    { class: "page-card" },
    icon("page"),
    h(
      "div",
      { class: "page-facts" },
      h("p", { class: "page-title" }, page.title),
      h("p", { class: "page-where", title: page.url }, hostOf(page.url)),
      h(
        "details",
        {},
        h("summary", {}, h("span", {}, `${what} ${state} · ${size}`)),
        h("div", { class: "page-text", tabindex: "0", role: "region", "aria-label": "Attached text" }, text),
      ),
    ),
    button,
  );
}

/** @param {string} url */
function hostOf(url) {
  return URL.canParse(url) ? new URL(url).host || url : url;
}

/** @param {Entry} entry */
function toolCall({ tool, kind }) {
  if (!tool) return "";
  const state = tool.error !== undefined ? "failed" : "output" in tool || kind === "result" ? "done" : "running …";
  const lines = [
    "input" in tool && `input: ${asText(tool.input)}`,
    "output" in tool && `output: ${asText(tool.output)}`,
    tool.error !== undefined && `error: ${tool.error}`,
  ].filter((line) => line !== false);
  return h(
    "details",
    {},
    h("summary", {}, icon("tool"), h("span", {}, `${tool.name}: ${state}`)),
    h("pre", { tabindex: "0", "aria-label": `Input and output of ${tool.name}` }, lines.join("\n")),
  );
}

/** @param {unknown} value */
function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
