/** Groups of the session list by the day of the last activity. */

const DAY_MS = 86_400_000;
const month = new Intl.DateTimeFormat(undefined, { month: "long" });
const monthAndYear = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });

export interface DateGroup<T> {
  name: string;
  items: T[];
}

/** Group items that are sorted by time, newest first. */
export function groupByDate<T>(items: readonly T[], timeOf: (item: T) => string, now: number): DateGroup<T>[] {
  const groups: DateGroup<T>[] = [];
  for (const item of items) {
    const name = groupName(Date.parse(timeOf(item)), now);
    const last = groups.at(-1);
    if (last?.name === name) last.items.push(item);
    else groups.push({ name, items: [item] });
  }
  return groups;
}

function groupName(time: number, now: number): string {
  const days = Math.round((midnight(now) - midnight(time)) / DAY_MS);
  if (days <= 0) return "Today"; // also a time that is slightly in the future
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last 7 days";
  if (days <= 30) return "Last 30 days";
  const isThisYear = new Date(time).getFullYear() === new Date(now).getFullYear();
  return (isThisYear ? month : monthAndYear).format(time);
}

function midnight(time: number): number {
  const date = new Date(time);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}
