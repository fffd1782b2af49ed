// Renders Markdown as DOM elements.

import { parseMarkdown, renderMarkdown } from "../client/index.js";
import { h } from "./dom.js";

const RESULT_MS = 1_500;

/** @type {import("../client/index.js").ElementFactory<Node>} */
const ELEMENTS = {
  element: (tag, attributes, children) => {
    const element = h(tag, attributes);
    for (const child of children) element.append(child); // one by one, because the number of arguments of a call is limited
    return element;
  },
  codeBlock: (language, code) =>
    h(
      "div",
      { class: "code-block" },
      h(
        "div",
        { class: "code-head" },
        h("span", {}, language),
        h("button", { type: "button", class: "copy", click: ({ currentTarget }) => copy(code, currentTarget) }, "Copy"),
      ),
      h("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, h("code", {}, code)),
    ),
  // An unsafe link is shown as its source text.
  unsafeLink: ({ address }, label) => ["[", ...label, `](${address})`],
};

/**
 * Copy code, and show the result on the button for a moment.
 * @param {string} code
 * @param {HTMLElement} button
 */
async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => (button.textContent = "Copy"), RESULT_MS);
}

/** @param {string} text */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  for (const element of renderMarkdown(parseMarkdown(text), ELEMENTS)) fragment.append(element);
  return fragment;
}
