// Options page: address of the server and token, with a connection test.

import { ApiError } from "../client/index.js";
import { byId } from "./dom.js";
import { Server } from "./server.js";
import { hostPattern, isThisMachine, loadSettings, saveSettings, serverAddress, sessionOfToken, tokenText } from "./settings.js";

const server = /** @type {HTMLInputElement} */ (byId("server"));
const token = /** @type {HTMLInputElement} */ (byId("token"));

/** Return the validated content of the form. @returns {import("./settings.js").Settings} */
function typed() {
  return { server: serverAddress(server.value), token: tokenText(token.value) };
}

/**
 * @param {string} text
 * @param {"good" | "bad" | "open"} outcome
 */
function say(text, outcome) {
  byId("result").textContent = text;
  byId("result").dataset.outcome = outcome;
}

/** Run the action of a button and show its error. @param {() => Promise<void>} action */
async function attempt(action) {
  say("", "open");
  try {
    await action();
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), "bad");
  }
}

/**
 * Request access to a server. Without it, requests are still sent, with the restrictions of web pages (CORS).
 * @param {string} address
 */
async function askChromeFor(address) {
  if (isThisMachine(address)) return true;
  // No await before this: Chrome asks the user only while it handles a click.
  return chrome.permissions.request({ origins: [hostPattern(address)] });
}

async function save() {
  const settings = typed();
  const allowed = await askChromeFor(settings.server);
  await saveSettings(settings);
  server.value = settings.server;
  token.value = settings.token;
  say(allowed ? "Saved." : "Saved. Chrome denied the extension access to this server. If it does not connect, save again and allow access.", "good");
}

async function test() {
  const settings = typed();
  await askChromeFor(settings.server);
  say("Testing …", "open");
  const { client } = new Server(settings);
  const { data: ready, response } = await client.request("/ready");
  if (typeof ready?.status !== "string") throw client.malformed(response);
  const session = sessionOfToken(settings.token);
  try {
    await client.breadcrumbs.list({ limit: 1, ...(session === undefined ? {} : { session_id: session }) });
  } catch (error) {
    if (!(error instanceof ApiError) || (error.status !== 401 && error.status !== 403)) throw error;
    throw new Error(`The server is reachable, but access was denied: ${error.message}`);
  }
  const version = typeof ready.version === "string" ? ` ${ready.version}` : "";
  const narrowed = session === undefined ? "" : ` The token is limited to session ${session}.`;
  say(`Connected to Breadcrumbs${version}.${narrowed}`, "good");
}

function warn() {
  let words = "";
  try {
    const settings = typed();
    if (settings.token && settings.server.startsWith("http:") && !isThisMachine(settings.server)) {
      words = "The connection is not encrypted, so others on the network can read the token. Use https:// for remote servers.";
    }
  } catch {
    // Input errors are shown on save, not while the user types.
  }
  byId("warning").hidden = !words;
  if (byId("warning").textContent !== words) byId("warning").textContent = words;
}

byId("options").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(save);
});
byId("test").addEventListener("click", () => attempt(test));
byId("reveal").addEventListener("click", () => {
  const shown = token.type === "password";
  token.type = shown ? "text" : "password";
  byId("reveal").setAttribute("aria-pressed", `${shown}`);
});
server.addEventListener("input", warn);
token.addEventListener("input", warn);

const settings = await loadSettings();
server.value = settings.server;
token.value = settings.token;
warn();
