import { wholeTime } from "../lib/format";

/** A time in short, whole when pointed at. */
export function Time({ iso, children }: { iso: string; children: string }) {
  return (
    <time dateTime={iso} title={wholeTime(iso)}>
      {children}
    </time>
  );
}
