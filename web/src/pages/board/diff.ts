/** Line diff of two texts (Myers' algorithm). */

export interface Line {
  sign: " " | "-" | "+";
  text: string;
}

/** Above this number of changes the diff shows all lines as replaced: a longer one is not readable. */
const MAX_CHANGES = 600;

export function diffLines(before: string, after: string): Line[] {
  const a = before.split("\n");
  const b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const kept = (lines: string[]): Line[] => lines.map((text) => ({ sign: " ", text }));
  return [
    ...kept(a.slice(0, start)),
    ...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)),
    ...kept(a.slice(a.length - end)),
  ];
}

function middle(a: string[], b: string[]): Line[] {
  const removed = a.map<Line>((text) => ({ sign: "-", text }));
  const added = b.map<Line>((text) => ({ sign: "+", text }));
  if (a.length === 0 || b.length === 0) return [...removed, ...added];
  const trace: Map<number, number>[] = [];
  let reach = new Map<number, number>([[1, 0]]);
  const most = Math.min(a.length + b.length, MAX_CHANGES);
  for (let changes = 0; changes <= most; changes += 1) {
    trace.push(reach);
    reach = new Map(reach);
    for (let diagonal = -changes; diagonal <= changes; diagonal += 2) {
      const left = reach.get(diagonal - 1) ?? -1;
      const right = reach.get(diagonal + 1) ?? -1;
      let x = diagonal === -changes || (diagonal !== changes && left < right) ? right : left + 1;
      while (x < a.length && x - diagonal < b.length && a[x] === b[x - diagonal]) x += 1;
      reach.set(diagonal, x);
      if (x >= a.length && x - diagonal >= b.length) return walkBack(a, b, trace);
    }
  }
  return [...removed, ...added];
}

function walkBack(a: string[], b: string[], trace: Map<number, number>[]): Line[] {
  const lines: Line[] = [];
  let x = a.length;
  let y = b.length;
  for (let changes = trace.length - 1; changes >= 0; changes -= 1) {
    const reach = trace[changes] ?? new Map<number, number>();
    const diagonal = x - y;
    const left = reach.get(diagonal - 1) ?? -1;
    const right = reach.get(diagonal + 1) ?? -1;
    const down = diagonal === -changes || (diagonal !== changes && left < right);
    const fromDiagonal = down ? diagonal + 1 : diagonal - 1;
    const fromX = reach.get(fromDiagonal) ?? 0;
    const fromY = fromX - fromDiagonal;
    while (x > fromX && y > fromY) {
      x -= 1;
      y -= 1;
      lines.push({ sign: " ", text: a[x] ?? "" });
    }
    if (changes === 0) break;
    if (down) {
      y -= 1;
      lines.push({ sign: "+", text: b[y] ?? "" });
    } else {
      x -= 1;
      lines.push({ sign: "-", text: a[x] ?? "" });
    }
  }
  return lines.reverse();
}

export type Piece = { lines: Line[] } | { skipped: number };

/** Return the changes with a few lines of context. Other lines are only counted. */
export function folded(lines: readonly Line[], around = 3): Piece[] {
  const near = new Array<boolean>(lines.length).fill(false);
  lines.forEach((line, at) => {
    if (line.sign === " ") return;
    for (let other = Math.max(0, at - around); other <= Math.min(lines.length - 1, at + around); other += 1) near[other] = true;
  });
  const pieces: Piece[] = [];
  lines.forEach((line, at) => {
    const last = pieces.at(-1);
    if (near[at]) {
      if (last && "lines" in last) last.lines.push(line);
      else pieces.push({ lines: [line] });
    } else if (last && "skipped" in last) {
      last.skipped += 1;
    } else {
      pieces.push({ skipped: 1 });
    }
  });
  return pieces;
}
