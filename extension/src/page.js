// The page in front of the user, as a breadcrumb: its title, its address, and what is selected or can be read.

import { PAGE } from "./conversation.js";
import { oneLine } from "./text.js";

/** About half of what the context builder gives a model by default. */
export const MOST_LETTERS = 8_000;

/** Chrome has not let us read this page yet. */
export class NotAllowedYet extends Error {}

/** There is nothing to attach, or Chrome lets nobody read it. */
export class NotReadable extends Error {}

/** The tab beside the panel. @returns {Promise<number>} */
export async function currentTab() {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  if (tab?.id === undefined) throw new NotReadable("There is no page in this window");
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
    [found] = await chrome.scripting.executeScript({ target: { tabId }, func: capture, args: [MOST_LETTERS] });
  } catch (error) {
    const reason = String(error);
    if (/must request permission|activeTab/.test(reason)) throw new NotAllowedYet(reason);
    throw new NotReadable("Chrome lets no extension read this page");
  }
  if (!found?.result) throw new NotReadable("There is no text on this page");
  return found.result;
}

/**
 * Runs in the page, so it brings along all that it needs.
 * @param {number} most
 */
function capture(most) {
  const selected = String(getSelection() ?? "").trim();
  // As it is on the screen: what is hidden, and what is in form fields, is not in it.
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
    // A cut may go through the middle of a character.
    text: text.slice(0, most).replace(/[\uD800-\uDBFF]$/, "").toWellFormed(),
    selection: selected !== "",
    truncated: text.length > most,
  };
}
