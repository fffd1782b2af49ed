// Markdown as elements of the panel.

import { parseMarkdown, renderMarkdown } from "../client/index.js";
import { h } from "./dom.js";

/** @type {import("../client/index.js").ElementFactory<Node>} */
const ELEMENTS = {
  element: (tag, attributes, children) => {
    const element = h(tag, attributes);
    for (const child of children) element.append(child); // too many for the arguments of one call
    return element;
  },
  codeBlock: (language, code) =>
    h("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, h("code", {}, code)),
  // A link that must not be followed stays the text that it was.
  unsafeLink: ({ address }, label) => ["[", ...label, `](${address})`],
};

/** @param {string} text */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  for (const element of renderMarkdown(parseMarkdown(text), ELEMENTS)) fragment.append(element);
  return fragment;
}
