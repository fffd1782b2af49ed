/** Reads which workers are missing, for messages that get no answer. */

import { signal } from "@preact/signals";
import { client } from "./server";

interface RunningWorkers {
  contexts: boolean;
  agents: boolean;
}

export interface MissingWorker {
  name: string;
  command: string;
}

const CONTEXT_BUILDER: MissingWorker = { name: "context builder", command: "crumb build-contexts" };
export const AGENT_RUNNER: MissingWorker = { name: "agent runner", command: "crumb run-agents" };

/** An answer normally begins earlier than this. */
const FIRST_CHECK_MS = 4_000;
const NEXT_CHECK_MS = 5_000;

/** Workers that are needed for an answer, but are not running. Read only while a message waits for its answer. */
export const missingWorkers = signal<readonly MissingWorker[]>([]);

let watchers = 0;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Check after a few seconds, and then repeatedly, until the returned function is called. */
export function watchWorkers(): () => void {
  watchers += 1;
  timer ??= setTimeout(() => void check(), FIRST_CHECK_MS);
  return () => {
    watchers -= 1;
    if (watchers > 0) return;
    clearTimeout(timer);
    timer = undefined;
    if (missingWorkers.peek().length > 0) missingWorkers.value = [];
  };
}

async function check(): Promise<void> {
  try {
    const running = await client.json<RunningWorkers>("/workers");
    if (watchers > 0) missingWorkers.value = missingIn(running);
  } catch {
    // The connection state shows a server that cannot be reached.
  }
  if (watchers > 0) timer = setTimeout(() => void check(), NEXT_CHECK_MS);
}

function missingIn(running: RunningWorkers): MissingWorker[] {
  return [...(running.contexts ? [] : [CONTEXT_BUILDER]), ...(running.agents ? [] : [AGENT_RUNNER])];
}
