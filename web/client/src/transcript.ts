/** Complete conversations as Markdown or JSON. */

import { ApiError } from "./errors.ts";
import type { Json } from "./json.ts";
import type { Message, Session, Sessions } from "./sessions.ts";

const PAGE = 200;
const RETRIES = 5;

/** Return all messages of a session, oldest first. Reads as many pages as needed. */
export async function readAllMessages(sessions: Sessions, id: string, signal?: AbortSignal): Promise<Message[]> {
  const pages: Message[][] = [];
  let before: string | undefined;
  do {
    const query = before === undefined ? { limit: PAGE } : { limit: PAGE, before };
    const page = await patiently(() => sessions.messages(id, query, signal));
    pages.push(page.messages);
    before = page.has_more ? page.before : undefined;
  } while (before !== undefined);
  return pages.reverse().flat();
}

/** Repeat a request that failed for a moment, such as one that exceeds the rate limit. */
async function patiently<T>(request: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await request();
    } catch (error) {
      if (!(error instanceof ApiError) || !error.isRetryable || attempt > RETRIES) throw error;
      const seconds = error.retryAfter ?? attempt;
      await new Promise((done) => setTimeout(done, seconds * 1000));
    }
  }
}

/** Return a conversation as a JSON document. */
export function transcriptAsJson(session: Session, messages: readonly Message[]): string {
  return `${JSON.stringify({ session, messages }, null, 2)}\n`;
}

/** Return a conversation as a Markdown document. */
export function transcriptAsMarkdown(session: Session, messages: readonly Message[]): string {
  const title = oneLine(session.title || session.summary || session.id);
  const facts = [`Session: ${inCode(session.id)}`, `Created: ${session.created_at}`];
  const head = [`# ${title}`, facts.map((fact) => `- ${fact}`).join("\n")];
  return `${[...head, ...messages.map(section)].join("\n\n")}\n`;
}

function section(message: Message): string {
  return `## ${speakerOf(message)} · ${message.created_at}\n\n${bodyOf(message)}`;
}

function speakerOf(message: Message): string {
  switch (message.role) {
    case "user":
      return "User";
    case "assistant":
      return message.agent_id ? `Agent ${inCode(message.agent_id)}` : "Agent";
    case "error":
      return "Error";
    case "tool": {
      const step = message.schema_name === "tool.request.v1" ? "Tool request" : "Tool response";
      const name = message.context["tool"];
      return typeof name === "string" ? `${step} ${inCode(name)}` : step;
    }
  }
}

function bodyOf(message: Message): string {
  if (message.role !== "tool") return message.text.trim();
  const { input, output, error } = message.context;
  const shown: Json = input ?? output ?? error ?? message.text;
  return typeof shown === "string" ? fenced(shown, "") : fenced(JSON.stringify(shown, null, 2), "json");
}

/** Return a code block whose fence is longer than any in the text. */
function fenced(text: string, language: string): string {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

const oneLine = (text: string): string => text.replace(/\s+/g, " ").trim();
const inCode = (text: string): string => `\`${oneLine(text).replaceAll("`", "'")}\``;

const MAX_NAME_LENGTH = 80;

/** Return a file name for a session that all systems accept. */
export function transcriptName(session: Session, extension: string): string {
  const name = (session.title || session.summary || session.id)
    .replace(/[\u0000-\u001f\u007f<>:"/\\|?*]+/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  const short = [...name].slice(0, MAX_NAME_LENGTH).join("").replace(/^\.+|[. ]+$/g, "");
  return `${short || "session"}.${extension}`;
}
