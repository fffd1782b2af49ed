/** Client of the server that serves this page. */

import { ApiError, Client, tokenClaims, type JsonObject } from "@breadcrumbs/client";
import { credential, credentialWanted, identityIn, type Identity } from "./credential";

export const client = new Client({
  token: () => credential.value,
  onUnauthorized: (error, token) => {
    // Ignored if the credential was replaced during the request.
    if (token === credential.value) credentialWanted.value = error.message;
  },
});

const STREAM_TOKEN_SECONDS = 3600;

/** Return the identity behind a credential, or null if it cannot be determined. */
export async function identityOf(given: string): Promise<Identity | null> {
  const claims = tokenClaims(given);
  if (claims) return identityIn(claims, "token");
  try {
    return identityIn(await requestToken({ ttl_sec: 1 }, given), "key");
  } catch {
    return null;
  }
}

/**
 * Return a token for the address of an event stream, read-only and valid for an hour. The API key itself must not
 * appear in an address, because addresses are logged.
 */
export async function streamToken(): Promise<string> {
  const given = credential.value;
  if (!given || tokenClaims(given)) return given; // the server issues tokens for API keys only
  try {
    return (await requestToken({ roles: ["subscriber"], ttl_sec: STREAM_TOKEN_SECONDS }, given)).token;
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 403)) throw error;
    return (await requestToken({ ttl_sec: STREAM_TOKEN_SECONDS }, given)).token; // the key lacks the role subscriber
  }
}

function requestToken(wanted: { roles?: string[]; ttl_sec: number }, given: string) {
  return client.json<JsonObject & { token: string }>("/auth/token", { body: wanted, token: given });
}
