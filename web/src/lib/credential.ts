/** The API key or token of this tab. */

import { batch, signal } from "@preact/signals";

const CREDENTIAL_KEY = "crumb.credential";
const OWNER_KEY = "crumb.owner";

/** API key or token, sent with every request and stored in this tab only. Empty if there is none. */
export const credential = signal(load(CREDENTIAL_KEY));

/** Owner of the credential, or empty if it is not known. */
export const owner = signal(load(OWNER_KEY));

/** Number of logins. Each login renders the pages again, because their data may belong to another owner. */
export const logins = signal(0);

/** Reason why the server needs a credential. The shell shows a dialog while this is set. */
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
    // Storage can be disabled. The value is lost on reload then.
  }
}
