/** Receipts of answers: the model calls and the complete prompt. */

import { type JsonObject } from "@breadcrumbs/client";
import type { Place } from "./contexts";
import { client } from "./server";

export interface ReceiptCall {
  request: string;
  attempts: number;
  response_id?: string;
  /** Name in the response, if it differs from the request. */
  model?: string;
  finish_reason?: string;
  input_tokens?: number;
  output_tokens?: number;
  cached_tokens?: number;
  reasoning_tokens?: number;
  first_token_ms?: number;
  duration_ms?: number;
}

export interface PromptItem {
  source: string;
  place: Place;
  tokens: number;
  id?: string;
  schema_name?: string;
  content?: JsonObject;
  gone?: boolean;
  hidden?: boolean;
}

export interface Missing {
  kind: string;
  reason: string;
}

export interface Verification {
  outcome: "equal" | "different" | "not rebuildable";
  requests: number;
  /** The text of the answer was edited since. The proof is about its first version. */
  edited?: boolean;
  difference?: { where: string; cause: string };
  missing?: Missing[];
}

export interface Receipt {
  answer_id: string;
  agent_id?: string;
  kind?: "model" | "function" | "adk";
  model?: string;
  provider?: string;
  calls: ReceiptCall[];
  duration_ms: number;
  attempt: number;
  prompt?: {
    items: PromptItem[];
    system_prompt?: string;
    tools?: { function: { name: string; description: string } }[];
    /** This token may not see the system prompt and the tools. */
    setup_hidden?: boolean;
  };
  tokens?: {
    system_prompt: number;
    tools: number;
    items: number;
    total: number;
    counted_by: string;
    budget?: number;
    /** Missing if the window of the model is unknown. */
    window?: number;
  };
  missing?: Missing[];
  verification?: Verification;
}

export const receipts = {
  get: (answer: string, verify: boolean, signal?: AbortSignal) =>
    client.json<Receipt>(`/breadcrumbs/${encodeURIComponent(answer)}/receipt`, {
      query: { verify },
      ...(signal && { signal }),
    }),
};
