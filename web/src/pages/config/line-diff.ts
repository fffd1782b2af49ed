/** Difference of two texts, line by line. */

export interface DiffLine {
  kind: "same" | "added" | "removed" | "skipped";
  text: string;
}

const CONTEXT_LINES = 3;
const MAX_LINES = 2000;

/** Return the lines of both texts in order. Unchanged lines far from a change are one line of the kind `skipped`. */
export function diffLines(before: string, after: string): DiffLine[] {
  const old = before.split("\n").slice(0, MAX_LINES);
  const now = after.split("\n").slice(0, MAX_LINES);
  const lengths = commonLengths(old, now);
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ kind: "same", text: old[i]! });
      i++;
      j++;
    } else if (j >= now.length || (i < old.length && lengths[i + 1]![j]! >= lengths[i]![j + 1]!)) {
      lines.push({ kind: "removed", text: old[i++]! });
    } else {
      lines.push({ kind: "added", text: now[j++]! });
    }
  }
  return collapse(lines);
}

/** Return the length of the longest common subsequence of each pair of line suffixes. */
function commonLengths(old: readonly string[], now: readonly string[]): Uint16Array[] {
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      lengths[i]![j] =
        old[i] === now[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
    }
  }
  return lengths;
}

function collapse(lines: readonly DiffLine[]): DiffLine[] {
  const near = lines.map((_, at) =>
    lines.slice(Math.max(0, at - CONTEXT_LINES), at + CONTEXT_LINES + 1).some((line) => line.kind !== "same"),
  );
  const found: DiffLine[] = [];
  lines.forEach((line, at) => {
    if (near[at]) found.push(line);
    else if (found[found.length - 1]?.kind !== "skipped") found.push({ kind: "skipped", text: "⋯" });
  });
  return found;
}
