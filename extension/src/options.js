// The options: which server, which token; tried out before they are needed.

import { ApiError } from "../client/index.js";
import { byId } from "./dom.js";
import { Server } from "./server.js";
import { hostPattern, isThisMachine, loadSettings, saveSettings, serverAddress, sessionOfToken, tokenText } from "./settings.js";

const server = /** @type {HTMLInputElement} */ (byId("server"));
const token = /** @type {HTMLInputElement} */ (byId("token"));

/** What is in the form, checked. @returns {import("./settings.js").Settings} */
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

/** Runs what a button does, and shows what is wrong. @param {() => Promise<void>} action */
async function attempt(action) {
  say("", "open");
  try {
    await action();
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), "bad");
  }
}

/**
 * Ask Chrome for this server. Without it requests still go out, under the rules for web pages.
 * @param {string} address
 */
async function askChromeFor(address) {
  if (isThisMachine(address)) return true;
  // Nothing may be awaited before this: Chrome asks the user only in answer to a click.
  return chrome.permissions.request({ origins: [hostPattern(address)] });
}

async function save() {
  const settings = typed();
  const allowed = await askChromeFor(settings.server);
  await saveSettings(settings);
  server.value = settings.server;
  token.value = settings.token;
  say(allowed ? "Saved." : "Saved. Chrome was not allowed to reach this server for the extension: if it does not connect, save again and allow it.", "good");
}

async function test() {
  const settings = typed();
  await askChromeFor(settings.server);
  say("Trying …", "open");
  const { client } = new Server(settings);
  const { data: ready, response } = await client.request("/ready");
  if (typeof ready?.status !== "string") throw client.malformed(response);
  const session = sessionOfToken(settings.token);
  try {
    await client.breadcrumbs.list({ limit: 1, ...(session === undefined ? {} : { session_id: session }) });
  } catch (error) {
    if (!(error instanceof ApiError) || (error.status !== 401 && error.status !== 403)) throw error;
    throw new Error(`The server is there, but does not let you in: ${error.message}`);
  }
  const version = typeof ready.version === "string" ? ` ${ready.version}` : "";
  const narrowed = session === undefined ? "" : ` The token is good for the session ${session} only.`;
  say(`It works: Breadcrumbs${version} answers and lets you in.${narrowed}`, "good");
}

function warn() {
  let words = "";
  try {
    const settings = typed();
    if (settings.token && settings.server.startsWith("http:") && !isThisMachine(settings.server)) {
      words = "This address is not encrypted: whoever can listen on the way reads the token. Use https:// for servers elsewhere.";
    }
  } catch {
    // It is said when it is saved; nobody wants to be corrected while typing.
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
