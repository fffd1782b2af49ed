/** How much of a context repeats the previous one, and the item at which they differ. */

import type { BreakItem, Reuse } from "../../lib/contexts";
import { number } from "../../lib/format";

export function PrefixReuse({ reuse }: { reuse: Reuse }) {
  const { broken } = reuse;
  return (
    <p class="why-reuse small soft">
      <strong>{number(Math.round(reuse.percent))} %</strong> repeats the previous context ({number(reuse.bytes)} of{" "}
      {number(reuse.of_bytes)} bytes). Providers can cache this part.
      {broken !== undefined && (
        <>
          {" "}
          Item {number(reuse.items + 1)} differs: {nameOf(broken.item)} instead of {nameOf(broken.before)}.
        </>
      )}
    </p>
  );
}

function nameOf(item: BreakItem): string {
  if (item.source === undefined) return "the end";
  if (item.hidden) return `a hidden item of ${item.source}`;
  if (item.gone) return `a deleted item of ${item.source}`;
  return item.title ? `“${item.title}”` : (item.schema_name ?? item.source);
}
