// Address of the server and token. Stored on this device only, because a token must not be synced to an account.

import { tokenClaims } from "../client/index.js";

export const DEFAULT_SERVER = "http://127.0.0.1:8081";

/** @typedef {{server: string, token: string}} Settings */

/** @returns {Promise<Settings>} */
export async function loadSettings() {
  const { server, token } = await chrome.storage.local.get({ server: DEFAULT_SERVER, token: "" });
  return { server: String(server), token: String(token) };
}

/** @param {Settings} settings */
export async function saveSettings({ server, token }) {
  await chrome.storage.local.set({ server, token });
}

/** @param {(settings: Settings) => void} changed */
export function onSettingsChanged(changed) {
  chrome.storage.local.onChanged.addListener(async (changes) => {
    if (changes.server || changes.token) changed(await loadSettings());
  });
}

/**
 * Return the normalized address: with a scheme, without a slash at the end.
 * @param {string} text
 */
export function serverAddress(text) {
  const typed = text.trim() || DEFAULT_SERVER;
  let url;
  try {
    url = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(typed) ? typed : `http://${typed}`);
  } catch {
    throw new Error(`“${typed}” is not an address. Use one such as ${DEFAULT_SERVER}`);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new Error("The address must start with http:// or https://");
  }
  if (url.username || url.password) {
    throw new Error("The address must not contain a user name or password. Use the token field instead");
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}

/**
 * Return the token without spaces and a "Bearer" prefix, which are often copied along.
 * @param {string} text
 */
export function tokenText(text) {
  const token = text.trim().replace(/^bearer\s+/i, "");
  if (/[^\x21-\x7e]/.test(token)) {
    throw new Error("The token contains an invalid character. Copy it again");
  }
  return token;
}

/** @param {string} server */
export function isThisMachine(server) {
  const { hostname } = new URL(server);
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

/**
 * Return the match pattern of the host permission for a server. Match patterns have no port.
 * @param {string} server
 */
export function hostPattern(server) {
  const { protocol, hostname } = new URL(server);
  return `${protocol}//${hostname}/*`;
}

/**
 * Return the session that a token is limited to, or undefined. The server enforces the limit.
 * @param {string} token
 * @returns {string | undefined}
 */
export function sessionOfToken(token) {
  const session = tokenClaims(token)?.session_id;
  return typeof session === "string" ? session : undefined;
}

/**
 * Return an id for this combination of server and token. It is a hash, so it does not reveal the token.
 * @param {Settings} settings
 */
export async function targetOf({ server, token }) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${server}\n${token}`));
  return [...new Uint8Array(digest, 0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
