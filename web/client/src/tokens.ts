import type { JsonObject } from "./json.ts";

/** Return the claims of a token without checking its signature. Returns null for an API key. */
export function tokenClaims(token: string): JsonObject | null {
  const payload = /^[\w-]+\.([\w-]+)\.[\w-]+$/.exec(token)?.[1];
  if (payload === undefined) return null;
  try {
    const binary = atob(payload.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)) as JsonObject;
  } catch {
    return null;
  }
}
