/** Titles of forks. */

const MAX_LENGTH = 200;
const SUFFIX = / \(fork(?: \d+)?\)$/;

/** Return a title for a fork: the name of its origin with "(fork)", or "(fork 2)" if `taken` contains that title. */
export function forkTitle(name: string, taken: Iterable<string>): string {
  const used = new Set(taken);
  const base = name.replace(SUFFIX, "");
  for (let count = 1; ; count++) {
    const suffix = count === 1 ? " (fork)" : ` (fork ${count})`;
    const letters = [...base];
    const room = MAX_LENGTH - suffix.length;
    const title = (letters.length > room ? `${letters.slice(0, room - 1).join("").trimEnd()}…` : base) + suffix;
    if (!used.has(title)) return title;
  }
}
