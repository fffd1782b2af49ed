/** Token usage of a context, as a bar with one segment per part of the prompt, and as text. */

import { number } from "../../lib/format";
import type { Share } from "../../lib/contexts";

interface BudgetProps {
  tokens: number;
  budget: number;
  shares: readonly Share[];
  countedBy: string;
  /** Usage with the saved config, in a preview. */
  before?: { tokens: number; budget: number };
}

export function Budget({ tokens, budget, shares, countedBy, before }: BudgetProps) {
  const share = tokens / Math.max(1, budget);
  const percent = share > 0 && share < 0.01 ? "under 1 %" : `${Math.round(share * 100)} %`;
  const whole = Math.max(tokens, budget, 1);
  const inWords = `${number(tokens)} of ${number(budget)} tokens, ${percent}`;
  return (
    <div class="budget">
      <p class="budget-words">
        <strong>
          {before && before.tokens !== tokens && <span class="budget-was">{number(before.tokens)} → </span>}
          {number(tokens)}
        </strong>{" "}
        of {before && before.budget !== budget && <span class="budget-was">{number(before.budget)} → </span>}
        {number(budget)} tokens <span class="soft">({percent})</span>
      </p>
      <div
        class={`budget-bar ${tokens > budget ? "over" : ""}`}
        role="meter"
        aria-label="Token budget"
        aria-valuemin={0}
        aria-valuemax={budget}
        aria-valuenow={Math.min(tokens, budget)}
        aria-valuetext={inWords}
      >
        {shares.map((one) => (
          <span
            key={`${one.place} ${one.name}`}
            class={`budget-part ${colorOf(one)}`}
            style={{ width: `${(one.tokens / whole) * 100}%` }}
            title={`${labelOf(one)}: ${number(one.tokens)} tokens`}
          />
        ))}
      </div>
      <ul class="budget-key">
        {shares.map((one) => (
          <li key={`${one.place} ${one.name}`}>
            <span class={`budget-dot ${colorOf(one)}`} aria-hidden="true" />
            {labelOf(one)} <span class="soft">{number(one.tokens)}</span>
          </li>
        ))}
        <li class="soft">{countedBy === "estimate" ? "estimated" : `counted with ${countedBy}`}</li>
      </ul>
    </div>
  );
}

function colorOf(share: Share): string {
  return share.name === "attachments" && share.place === "conversation" ? "part-attachments" : `part-${share.place}`;
}

function labelOf(share: Share): string {
  if (share.place === "conversation") return share.name === "attachments" ? "Attachments" : "This conversation";
  return share.place === "shared" ? share.name : `${share.name}, other sessions`;
}
