/** Replays of answers: API calls and types. */

import type { Json } from "@breadcrumbs/client";
import { contexts } from "./contexts";
import { client } from "./server";

export interface ToolCall {
  step: string;
  name: string;
  arguments: string;
  /** Only of a replay: whether the original turn has a stored response for this call. */
  result?: "stored" | "missing";
}

/** An answer with its figures. A replay that failed has an error instead of a text. */
export interface ShownAnswer {
  model: string;
  text?: string;
  error?: string;
  calls: number;
  duration_ms: number;
  input_tokens?: number;
  output_tokens?: number;
  cached_tokens?: number;
  /** Only if the settings of the server have the price of the model. */
  cost?: number;
  same?: boolean;
  same_request?: boolean;
  tool_calls?: ToolCall[];
}

export interface Replay {
  original: ShownAnswer;
  replays: ShownAnswer[];
  notes: string[];
}

export interface ReplayRequest {
  model?: string;
  config?: Json;
  times?: number;
}

export interface OfferedModel {
  name: string;
  model: string;
  problem?: string;
}

export interface Offer {
  models: OfferedModel[];
  /** Whether the credential has the role that also a replay requires. */
  may_choose: boolean;
}

/** The server ends a replay after 300 s. */
const TIMEOUT_MS = 310_000;

export const replays = {
  run: (answer: string, body: ReplayRequest, signal: AbortSignal) =>
    client.json<Replay>(`/breadcrumbs/${encodeURIComponent(answer)}/replay`, {
      body,
      signal,
      timeoutMs: TIMEOUT_MS,
    }),
  models: () => client.json<Offer>("/models"),
  /** Return the text of the config that is in force for a consumer, or an empty string. */
  async configText(consumer: string): Promise<string> {
    const found = (await contexts.configs())?.configs;
    const inForce = found?.in_force.find((one) => one.consumer_id === consumer);
    if (found === undefined || inForce === undefined) return "";
    if (inForce.origin === "file") return found.file?.in_force_text ?? found.file?.text ?? "";
    const own = found.breadcrumbs.find((one) => one.id === inForce.id);
    return own === undefined ? "" : (own.text ?? JSON.stringify(own.config, null, 2));
  },
};
