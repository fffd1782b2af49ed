/** Agents that answer users' messages, for the picker, the composer and messages that get no answer. */

import { signal } from "@preact/signals";
import { client } from "./server";

export interface AnsweringAgent {
  agent_id: string;
  description?: string;
  model?: string;
  consumer?: string;
  /** Leaves messages to other agents that match. */
  fallback?: boolean;
}

interface AnsweringAgents {
  agents: AnsweringAgent[];
  answering: "all" | "first" | "by_tag";
  may_choose: boolean;
}

/** Null until the list is loaded, and if the credential may not read it. */
export const answeringAgents = signal<AnsweringAgents | null>(null);

const WAITING_CHECK_MS = 4_000;

export async function loadAgents(): Promise<void> {
  try {
    answeringAgents.value = await client.json<AnsweringAgents>("/agents/answering");
  } catch {
    answeringAgents.value = null; // the picker is an addition: the conversation works without it
  }
}

/** Load the list repeatedly while a message waits for the chosen agent, until the returned function is called. */
export function watchAgents(): () => void {
  const timer = setInterval(() => void loadAgents(), WAITING_CHECK_MS);
  return () => clearInterval(timer);
}

/** Return the names of the agents that answer a message in a session without a chosen agent. */
export function answeringNames({ agents, answering }: AnsweringAgents): string[] {
  const own = agents.filter((agent) => !agent.fallback);
  const names = (own.length ? own : agents).map((agent) => agent.agent_id).sort();
  return answering === "all" ? names : names.slice(0, 1); // messages of the page have no tag that names an agent
}

/** Whether the agent of a session is known not to answer now. */
export function isUnavailable(agent: string | undefined): boolean {
  const listed = answeringAgents.value;
  return agent !== undefined && listed !== null && !listed.agents.some((one) => one.agent_id === agent);
}
