/** Usage of models and budgets: API call, types and texts. */

import type { Query } from "@breadcrumbs/client";
import { number } from "./format";
import { client } from "./server";

export interface Amounts {
  calls: number;
  input_tokens: number;
  output_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  tokens: number;
  cost: number;
  /** Calls of models without a price. They are not part of `cost`. */
  unpriced_calls: number;
  unreported_calls: number;
}

export interface UsageRow extends Amounts {
  day?: string;
  agent_id?: string;
  model?: string;
  user_id?: string;
}

export interface Budget {
  scope: "session" | "user" | "owner";
  period: "day" | "month" | "total";
  tokens?: number;
  cost?: number;
  user_id?: string;
  session_id?: string;
  source: "settings" | "breadcrumb";
  id?: string;
  used_tokens?: number;
  used_cost?: number;
  used_up?: boolean;
}

export interface Usage {
  from?: string;
  to?: string;
  total: Amounts;
  rows: UsageRow[];
  next_cursor?: string;
  budgets: Budget[];
  budget_problems?: { id: string; problem: string }[];
}

export type UsageBy = "day" | "agent" | "model" | "user";

export interface UsageQuery extends Query {
  by?: UsageBy;
  from?: string | undefined;
  agent_id?: string;
  limit?: number;
  cursor?: string | undefined;
}

export const usage = {
  read: (query: UsageQuery, signal?: AbortSignal) =>
    client.json<Usage>("/usage", { query, ...(signal && { signal }) }),
};

/** Format a cost, in the currency of the price table. */
export function money(cost: number): string {
  if (cost === 0) return "0";
  return cost < 0.01 ? cost.toPrecision(2) : number(Math.round(cost * 100) / 100);
}

/** Format the cost of some calls. Calls without a price are named, because the sum does not contain them. */
export function costText({ calls, cost, unpriced_calls: unpriced }: Amounts): string {
  if (calls > 0 && unpriced === calls) return "cost unknown (no price)";
  return `cost ${money(cost)}${unpriced ? ` and ${number(unpriced)} calls without a price` : ""}`;
}
