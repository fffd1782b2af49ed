/** The API key or token of this tab. */

import { batch, signal } from "@preact/signals";

const CREDENTIAL_KEY = "crumb.credential";
const OWNER_KEY = "crumb.owner";

/** An API key or a token, sent with every request. Kept for this tab only. Empty: none. */
export const credential = signal(load(CREDENTIAL_KEY));

/** The owner of the credential; empty if it is not known. */
export const owner = signal(load(OWNER_KEY));

/** Counts logins: pages are drawn anew, because their data may belong to another owner. */
export const logins = signal(0);

/** Why the server wants a credential; the shell shows a dialog while this is set. */
export const credentialWanted = signal<string | null>(null);

export function useCredential(text: string, whose: string): void {
  batch(() => {
    owner.value = whose;
    credential.value = text;
    credentialWanted.value = null;
    logins.value += 1;
  });
  save(CREDENTIAL_KEY, text);
  save(OWNER_KEY, whose);
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
    // Storage may be forbidden: then the value lasts until the page is loaded again.
  }
}
