// What the user did outside of the panel (on the toolbar icon, in the context menu of a page), passed on from
// the service worker to the panel of that window, also to one that is only just opening.

export const OPEN = "open";
export const ATTACH = "attach";

/** @typedef {typeof OPEN | typeof ATTACH} ClickKind */
/**
 * A click on a page: Chrome lets the extension read that page from now on.
 * @typedef {{kind: ClickKind, tabId: number, windowId: number}} Click
 */

const KEY = "click";
const FRESH_MS = 10_000;

/** @param {Click} click */
export async function leaveClick(click) {
  await chrome.storage.session.set({ [KEY]: { ...click, at: Date.now() } });
}

/**
 * Calls `take` for each click in this window, each of them once however many panels there are.
 * @param {number} windowId
 * @param {(click: Click) => boolean} take Whether this panel takes it; if not, another one may.
 */
export function onClick(windowId, take) {
  const look = () =>
    navigator.locks.request("breadcrumbs-click", async () => {
      const { [KEY]: left } = await chrome.storage.session.get(KEY);
      const click = /** @type {(Click & {at: number}) | undefined} */ (left);
      if (!click || click.windowId !== windowId || Date.now() - click.at > FRESH_MS) return;
      if (take(click)) await chrome.storage.session.remove(KEY);
    });
  chrome.storage.session.onChanged.addListener((changes) => {
    if (changes[KEY]?.newValue) look();
  });
  look();
}
