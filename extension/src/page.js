// Reads the active page as a breadcrumb: title, address, and the selected or visible text.

import { PAGE } from "./conversation.js";
import { oneLine } from "./text.js";

/** Limit of the text, about half of the default budget of a context. */
export const MAX_TEXT_LENGTH = 8_000;

/** The extension needs a click on its toolbar icon before it may read this page. */
export class NotAllowedYet extends Error {}

/** There is nothing to attach, or extensions may not read this page. */
export class NotReadable extends Error {}

/** Return the active tab of this window. @returns {Promise<number>} */
export async function currentTab() {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  if (tab?.id === undefined) throw new NotReadable("This window has no page");
  return tab.id;
}

/**
 * @param {number} tabId
 * @param {string} session
 * @returns {Promise<import("./server.js").NewCrumb>}
 */
export async function pageCrumb(tabId, session) {
  const { title, url, text, selection, truncated } = await read(tabId);
  return {
    schema_name: PAGE,
    title: oneLine(title, 200) || oneLine(url, 200),
    tags: ["page:content", "extension:chat", `session:${session}`],
    context: { title: oneLine(title, 200), url, text, selection, truncated },
  };
}

/**
 * @param {number} tabId
 * @returns {Promise<NonNullable<ReturnType<typeof capture>>>}
 */
async function read(tabId) {
  let found;
  try {
    [found] = await chrome.scripting.executeScript({ target: { tabId }, func: capture, args: [MAX_TEXT_LENGTH] });
  } catch (error) {
    const reason = String(error);
    if (/must request permission|activeTab/.test(reason)) throw new NotAllowedYet(reason);
    throw new NotReadable("Chrome does not allow extensions to read this page");
  }
  if (!found?.result) throw new NotReadable("This page has no text");
  return found.result;
}

/**
 * Read the page. This function runs inside the page, so it cannot use anything from this module.
 * @param {number} most
 */
function capture(most) {
  const selected = String(getSelection() ?? "").trim();
  // The visible text only, without hidden text and form fields.
  const text = (selected || document.body?.innerText || "")
    .replace(/[^\S\n]+/g, " ")
    .replace(/ ?\n ?/g, "\n")
    .replace(/\n{3,}/g, "\n\n")
    .trim();
  if (!text) return null;
  const address = new URL(location.href);
  address.username = address.password = address.hash = "";
  return {
    title: document.title,
    url: address.href.slice(0, 2000),
    // The cut can split a surrogate pair.
    text: text.slice(0, most).replace(/[\uD800-\uDBFF]$/, "").toWellFormed(),
    selection: selected !== "",
    truncated: text.length > most,
  };
}
