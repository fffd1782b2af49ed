// Renders Markdown as DOM elements.

import { parseMarkdown, renderMarkdown } from "../client/index.js";
import { h } from "./dom.js";

/** @type {import("../client/index.js").ElementFactory<Node>} */
const ELEMENTS = {
  element: (tag, attributes, children) => {
    const element = h(tag, attributes);
    for (const child of children) element.append(child); // one by one, because the number of arguments of a call is limited
    return element;
  },
  codeBlock: (language, code) =>
    h("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, h("code", {}, code)),
  // An unsafe link is shown as its source text.
  unsafeLink: ({ address }, label) => ["[", ...label, `](${address})`],
};

/** @param {string} text */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  for (const element of renderMarkdown(parseMarkdown(text), ELEMENTS)) fragment.append(element);
  return fragment;
}
