// Helpers for text and times.

const TEXT_KEYS = ["message", "content", "text", "response_text", "formatted"];
const RUNTIME_KEYS = new Set([
  "session_id", "trigger_id", "creator", "hops", "context_id", "context_version", "answers", "adk", "state_delta",
  "model_reasoning", "model_receipt",
]);

/**
 * Return the text of a context, or its JSON without the keys of the runtime if it has no text.
 * @param {Record<string, any>} context
 */
export function plainText(context) {
  for (const key of TEXT_KEYS) if (typeof context[key] === "string") return context[key];
  const own = Object.entries(context).filter(([key]) => !RUNTIME_KEYS.has(key));
  return own.length ? JSON.stringify(Object.fromEntries(own)) : "";
}

/**
 * Return a text as one line without control characters, shortened to `most` characters.
 * @param {string} text
 * @param {number} most
 */
export function oneLine(text, most) {
  const line = text
    .slice(0, 4 * most)
    .replace(/[\p{Cc}\p{Zl}\p{Zp}\s]+/gu, " ")
    .trim()
    .toWellFormed();
  const letters = [...line];
  return letters.length <= most ? line : `${letters.slice(0, most - 1).join("")}…`;
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });

/**
 * Format a time. The date is added if it is not today.
 * @param {string} iso
 */
export function shortTime(iso) {
  const date = new Date(iso);
  const today = date.toDateString() === new Date().toDateString();
  return today ? TIME.format(date) : `${DAY.format(date)}, ${TIME.format(date)}`;
}

/** @param {string} iso */
export function fullTime(iso) {
  return FULL.format(new Date(iso));
}
