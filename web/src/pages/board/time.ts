/** Return milliseconds with fractions. The server sends microseconds, which `Date` truncates. */
export function millis(iso: string): number {
  const [whole = iso, fraction] = iso.replace(/Z$/, "").split(".");
  return Date.parse(`${whole}Z`) + (fraction ? Number(`0.${fraction}`) * 1000 : 0);
}
