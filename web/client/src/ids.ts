/** Return a random unique id. */
export function newId(): string {
  // `randomUUID` is missing on pages loaded over plain HTTP from another machine.
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
