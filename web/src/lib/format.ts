/** Formatting of times, numbers and names. */

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dayAndYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "long" });
const counted = new Intl.NumberFormat();

export const time = (iso: string): string => clock.format(new Date(iso));
export const timeWithSeconds = (iso: string): string => seconds.format(new Date(iso));
export const wholeTime = (iso: string): string => whole.format(new Date(iso));
export const number = (value: number): string => counted.format(value);

const DAY = 86_400_000;

/** Format a day: `Today`, `Yesterday`, `Tuesday`, `3 Mar`, `3 Mar 2025`. */
export function dayName(iso: string, now = new Date()): string {
  const then = new Date(iso);
  const days = Math.round((midnight(now) - midnight(then)) / DAY);
  if (days === 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days > 1 && days < 7) return weekday.format(then);
  return (then.getFullYear() === now.getFullYear() ? day : dayAndYear).format(then);
}

/** Format a time for lists: `now`, `5 min`, `14:03`, `Tuesday`, `3 Mar`. */
export function ago(iso: string, now = Date.now()): string {
  const minutes = (now - Date.parse(iso)) / 60_000;
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  const name = dayName(iso, new Date(now));
  return name === "Today" ? time(iso) : name;
}

function midnight(date: Date): number {
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** Format a duration: `340 µs`, `12 ms`, `1.4 s`, `2 min 5 s`. */
export function duration(ms: number): string {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  const total = Math.round(ms / 1000);
  return total < 3600
    ? `${Math.floor(total / 60)} min ${total % 60} s`
    : `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  if (count < 1024 ** 2) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 ** 2).toFixed(1)} MiB`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function shortened(text: string, length: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= length ? line : `${line.slice(0, length - 1).trimEnd()}…`;
}

/** Return the last 8 characters of a long id. */
export const shortId = (id: string): string => (id.length > 12 ? id.slice(-8) : id);

/** Format a rough duration: `42 s`, `7 min`, `5 h`, `3 d`. */
export function roughly(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 2 * 86_400 ? `${Math.floor(seconds / 3_600)} h` : `${Math.floor(seconds / 86_400)} d`;
}
