import { wholeTime } from "../lib/format";

/** A short time. The tooltip shows the full date and time. */
export function Time({ iso, children }: { iso: string; children: string }) {
  return (
    <time dateTime={iso} title={wholeTime(iso)}>
      {children}
    </time>
  );
}
