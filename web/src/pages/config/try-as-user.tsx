/** Starts a session of a user in development mode, so that sources with the scope `user` can be tried. */

import { ask } from "../../components/dialog";
import { attempt } from "../../components/toast";
import { credential } from "../../lib/credential";
import { go, href } from "../../lib/router";
import { client } from "../../lib/server";

export function TryAsUser() {
  // Without a credential the server runs in development mode. There, a person can act as any user.
  if (credential.value) return null;
  return (
    <button
      type="button"
      class="button preview-user"
      title="Start a session of a user, to try sources with the scope user"
      onClick={() => void start()}
    >
      Try as user
    </button>
  );
}

async function start(): Promise<void> {
  const given = await ask({
    title: "Try as user",
    text: "Starts a session that belongs to this user. Sources with the scope user find the breadcrumbs of all sessions of the user.",
    label: "User",
    value: "ann",
    action: "Start session",
  });
  const user = given?.trim();
  if (!user) return;
  await attempt("The session could not be started", async () => {
    const session = await client.sessions.create({ user_id: user, title: `As ${user}` });
    go(href("chat", [session.id]));
  });
}
