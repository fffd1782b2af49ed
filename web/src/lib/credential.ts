/** The API key or token of this tab, and the identity behind it. */

import { batch, computed, signal } from "@preact/signals";
import { tokenClaims, type JsonObject } from "@breadcrumbs/client";

const CREDENTIAL_KEY = "crumb.credential";
const IDENTITY_KEY = "crumb.identity";

export type Role = "curator" | "emitter" | "subscriber";

/** The holder of a credential. */
export interface Identity {
  kind: "key" | "token";
  owner: string;
  agent: string;
  roles: readonly string[];
  /** The session or the user that a token is narrowed to. */
  session?: string;
  user?: string;
}

/** API key or token, sent with every request and stored in this tab only. Empty if there is none. */
export const credential = signal(load(CREDENTIAL_KEY));

/** Identity behind the credential. Null if there is no credential or if its identity is not known. */
export const identity = signal<Identity | null>(loadIdentity() ?? identityIn(tokenClaims(credential.peek()), "token"));

/** Owner of the credential, or empty if it is not known. */
export const owner = computed(() => identity.value?.owner ?? "");

/** Number of logins. Each login renders the pages again, because their data may belong to another owner. */
export const logins = signal(0);

/** Reason why the server needs a credential. While this is set, the shell shows a dialog and no page. */
export const credentialWanted = signal<string | null>(null);

export function useCredential(text: string, whose: Identity | null): void {
  batch(() => {
    identity.value = whose;
    credential.value = text;
    credentialWanted.value = null;
    logins.value += 1;
  });
  save(CREDENTIAL_KEY, text);
  save(IDENTITY_KEY, whose ? JSON.stringify(whose) : "");
}

/** Return the identity in the claims of a token, or in the server's reply to a request for a token. */
export function identityIn(facts: JsonObject | null, kind: Identity["kind"]): Identity | null {
  if (facts === null) return null;
  const text = (name: string) => (typeof facts[name] === "string" ? facts[name] : undefined);
  const roles = Array.isArray(facts["roles"]) ? facts["roles"].filter((role) => typeof role === "string") : [];
  const [session, user] = [text("session_id"), text("user_id")];
  return {
    kind,
    owner: text("owner_id") ?? "",
    agent: text("sub") ?? text("agent_id") ?? "",
    roles,
    ...(session !== undefined && { session }),
    ...(user !== undefined && { user }),
  };
}

/** Forget the credential, and the texts that were typed but not sent. The shell then asks for another credential. */
export function signOut(): void {
  try {
    for (const name of Object.keys(localStorage)) if (name.startsWith("crumb.draft.")) localStorage.removeItem(name);
  } catch {
    // Storage can be disabled. Nothing was stored then.
  }
  batch(() => {
    useCredential("", null);
    credentialWanted.value = "";
  });
}

/** Return why the credential may not do something that requires a role, or undefined if it may. */
export function lacking(role: Role): string | undefined {
  const whose = identity.value;
  if (whose === null || whose.roles.includes(role) || whose.roles.includes("curator")) return undefined;
  return `Your ${named(whose)} does not have the role ${role}.`;
}

/** Return why the credential may not use other sessions than one, or undefined if it may. */
export function confined(): string | undefined {
  const whose = identity.value;
  return whose?.session === undefined ? undefined : `Your ${named(whose)} is for one session only.`;
}

/** Return why the credential may not change what applies to all users, or undefined if it may. */
export function narrowed(): string | undefined {
  const whose = identity.value;
  if (whose?.user !== undefined) return `Your ${named(whose)} is for one user only.`;
  return confined();
}

function named(whose: Identity): string {
  return whose.kind === "key" ? "API key" : "token";
}

function loadIdentity(): Identity | null {
  try {
    return JSON.parse(load(IDENTITY_KEY) || "null") as Identity | null;
  } catch {
    return null;
  }
}

function load(name: string): string {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function save(name: string, text: string): void {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch {
    // Storage can be disabled. The value is lost on reload then.
  }
}
