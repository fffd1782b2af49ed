// Service worker. Opens the side panel and passes clicks on to it. It has no state, because Chrome stops it after 30 s
// without events.

import { ATTACH, OPEN, leaveClick } from "./src/clicks.js";

chrome.runtime.onInstalled.addListener(async () => {
  await chrome.contextMenus.removeAll();
  chrome.contextMenus.create({
    id: "attach",
    title: "Attach to Breadcrumbs chat",
    contexts: ["page", "selection"],
  });
});

// `openPanelOnActionClick` is not used: only a click that the extension handles itself grants `activeTab`, which is
// needed to read the page.
chrome.action.onClicked.addListener((tab) => show(tab, OPEN));
chrome.contextMenus.onClicked.addListener((_info, tab) => show(tab, ATTACH));

/**
 * @param {chrome.tabs.Tab | undefined} tab
 * @param {import("./src/clicks.js").ClickKind} kind
 */
function show(tab, kind) {
  if (tab?.id === undefined) return;
  // First, and without an await before it: Chrome opens the panel only while it handles the click.
  chrome.sidePanel.open({ windowId: tab.windowId }).catch((error) => console.warn("side panel not opened:", error));
  leaveClick({ kind, tabId: tab.id, windowId: tab.windowId });
}
