// Clicks outside the panel, on the toolbar icon or in the context menu of a page. The service worker passes them to the
// panel of that window, through storage, so that a panel that is still opening receives them too.

export const OPEN = "open";
export const ATTACH = "attach";

/** @typedef {typeof OPEN | typeof ATTACH} ClickKind */
/**
 * A click on a page. It grants the extension access to that page.
 * @typedef {{kind: ClickKind, tabId: number, windowId: number}} Click
 */

const KEY = "click";
const MAX_AGE_MS = 10_000;

/** Store a click for the panel. @param {Click} click */
export async function leaveClick(click) {
  await chrome.storage.session.set({ [KEY]: { ...click, at: Date.now() } });
}

/**
 * Call `take` for each click in this window. Each click is taken only once, even with several panels.
 * @param {number} windowId
 * @param {(click: Click) => boolean} take Returns whether this panel takes the click.
 */
export function onClick(windowId, take) {
  const look = () =>
    navigator.locks.request("breadcrumbs-click", async () => {
      const { [KEY]: left } = await chrome.storage.session.get(KEY);
      const click = /** @type {(Click & {at: number}) | undefined} */ (left);
      if (!click || click.windowId !== windowId || Date.now() - click.at > MAX_AGE_MS) return;
      if (take(click)) await chrome.storage.session.remove(KEY);
    });
  chrome.storage.session.onChanged.addListener((changes) => {
    if (changes[KEY]?.newValue) look();
  });
  look();
}
