// The service worker: opens the side panel, and tells it where the user clicked. It holds no state, because
// Chrome stops it after half a minute.

import { ATTACH, OPEN, leaveClick } from "./src/clicks.js";

chrome.runtime.onInstalled.addListener(async () => {
  await chrome.contextMenus.removeAll();
  chrome.contextMenus.create({
    id: "attach",
    title: "Attach to the Breadcrumbs chat",
    contexts: ["page", "selection"],
  });
});

// Not `openPanelOnActionClick`: a click that the extension handles itself also lets it read the page
// (activeTab), and that is what attaching needs.
chrome.action.onClicked.addListener((tab) => show(tab, OPEN));
chrome.contextMenus.onClicked.addListener((_info, tab) => show(tab, ATTACH));

/**
 * @param {chrome.tabs.Tab | undefined} tab
 * @param {import("./src/clicks.js").ClickKind} kind
 */
function show(tab, kind) {
  if (tab?.id === undefined) return;
  // First of all, and without waiting for anything: Chrome opens it only while the click is being handled.
  chrome.sidePanel.open({ windowId: tab.windowId }).catch((error) => console.warn("no side panel:", error));
  leaveClick({ kind, tabId: tab.id, windowId: tab.windowId });
}
