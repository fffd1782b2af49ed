/** Agents in force and their definitions: API calls and types. */

import type { JsonObject } from "@breadcrumbs/client";
import type { Finding, Findings } from "../components/json-editor/findings";
import { client } from "./server";

export const DEFINITION_SCHEMA = "agent.def.v1";

export interface AgentError {
  id: string;
  error: string;
  created_at: string;
  session_id?: string;
}

export interface AgentInForce {
  agent_id: string;
  source: "file" | "breadcrumb" | "program";
  description?: string;
  model?: string;
  tools: string[];
  answers_users: boolean;
  /** Leaves messages to other agents that match. */
  fallback: boolean;
  running: boolean;
  breadcrumb_id?: string;
  definition?: JsonObject;
  /** Reason why the newest version of its breadcrumb is not used. */
  problem?: string;
  last_error?: AgentError;
}

export interface UnusableDefinition {
  breadcrumb_id: string;
  title: string;
  problem: string;
}

export interface AgentList {
  agents: AgentInForce[];
  unusable: UnusableDefinition[];
  answering: string;
}

export interface TriedToolCall {
  name: string;
  arguments: string;
  ran: boolean;
  output?: unknown;
  error?: string;
}

export interface Trial {
  model: string;
  answer?: string;
  error?: string;
  calls: number;
  duration_ms: number;
  input_tokens?: number;
  output_tokens?: number;
  cost?: number;
  tool_calls: TriedToolCall[];
}

interface CheckedDefinition {
  ok: boolean;
  agent_id?: string;
  errors: Partial<Finding>[];
  warnings: Partial<Finding>[];
}

export interface DefinitionFindings extends Findings {
  agent?: string;
}

export const definitions = {
  list: (signal?: AbortSignal) => client.json<AgentList>("/agents/in-force", { ...(signal && { signal }) }),
  schema: () => client.json<JsonObject>("/agents/definition/schema"),
  check: async (text: string, signal?: AbortSignal): Promise<DefinitionFindings> => {
    const checked = await client.json<CheckedDefinition>("/agents/check", { body: { text }, ...(signal && { signal }) });
    return {
      text,
      complaints: checked.errors.map(positioned),
      warnings: checked.warnings.map(positioned),
      ...(checked.agent_id !== undefined && { agent: checked.agent_id }),
    };
  },
  /** Call the model of a definition with a message. Nothing is stored. */
  try: (text: string, message: string, signal?: AbortSignal) =>
    client.json<Trial>("/agents/try", { body: { text, message }, ...(signal && { signal }) }),
};

/** A missing position is the start of the text. */
function positioned({ line = 1, column = 1, where = "", message = "" }: Partial<Finding>): Finding {
  return { line, column, where, message };
}
