/** The dialog that asks for an API key, and the menu that shows whose key is used. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, messageOf, tokenClaims } from "@breadcrumbs/client";
import { credential, identity, signOut, useCredential } from "../lib/credential";
import { client, identityOf } from "../lib/server";
import { Dialog } from "./dialog";
import { Icon } from "./icons";
import { Menu } from "./menu";

export function SignIn() {
  const field = useRef<HTMLInputElement>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const hadOne = credential.value !== "";
  useEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    const given = field.current?.value.trim() ?? "";
    if (!given) return;
    setBusy(true);
    try {
      await client.json("/workers", { quiet: true, token: given }); // every role may read it
      useCredential(given, await identityOf(given));
    } catch (error) {
      setProblem(refusalOf(error, given));
      field.current?.select();
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title="Enter your API key" onClose={() => {}} closable={false}>
      <form class="sign-in" onSubmit={submit}>
        {hadOne && <p class="soft small">The server no longer accepts your previous key or token.</p>}
        <label class="label" for="credential">
          API key or token
        </label>
        <input
          ref={field}
          id="credential"
          class="field mono"
          type="password"
          autoComplete="off"
          spellcheck={false}
          aria-invalid={problem !== ""}
          aria-describedby="credential-note"
        />
        <p id="credential-note" class="soft small">
          The person who runs this server can give you a key. It is stored in this tab only, and deleted when you close
          the tab or sign out.
        </p>
        {problem && (
          <p class="notice bad" role="alert">
            <Icon name="alert" /> {problem}
          </p>
        )}
        <div class="actions">
          <button type="submit" class="button main" disabled={busy}>
            Sign in
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function refusalOf(error: unknown, given: string): string {
  if (!(error instanceof ApiError) || error.status !== 401) return messageOf(error);
  return tokenClaims(given)
    ? "This token has expired, or another server issued it. Enter an API key or a new token."
    : "This server has no such API key. Check that you copied the whole key.";
}

/** Shows owner and roles of the credential. Not shown in development mode, which needs no credential. */
export function IdentityMenu() {
  const whose = identity.value;
  if (!credential.value) return null;
  return (
    <Menu
      label="Signed in"
      icon="person"
      look="identity-button"
      actions={[{ name: "Sign out", icon: "close", run: signOut }]}
    >
      <dl class="identity">
        <dt>{whose?.kind === "token" ? "Token" : "API key"}</dt>
        <dd class="mono">…{credential.value.slice(-4)}</dd>
        {whose && (
          <>
            <dt>Roles</dt>
            <dd>{whose.roles.length ? [...whose.roles].sort().join(", ") : "none"}</dd>
            <dt>Owner</dt>
            <dd class="mono">{whose.owner}</dd>
          </>
        )}
        {whose?.session !== undefined && (
          <>
            <dt>Session</dt>
            <dd class="mono">{whose.session}</dd>
          </>
        )}
        {whose?.user !== undefined && (
          <>
            <dt>User</dt>
            <dd class="mono">{whose.user}</dd>
          </>
        )}
      </dl>
    </Menu>
  );
}
