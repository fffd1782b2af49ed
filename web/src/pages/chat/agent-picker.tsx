/** Shows the agent that answers in a session, and lets a curator choose one. */

import { useEffect, useId } from "preact/hooks";
import type { Session } from "@breadcrumbs/client";
import { attempt } from "../../components/toast";
import { answeringAgents, answeringNames, isUnavailable, loadAgents } from "../../lib/agents";
import { logins } from "../../lib/credential";
import { go, href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import { moveDraftTo } from "./drafts";
import "./agent-picker.css";

interface Props {
  chat: Chat;
  /** The open session, even if it is not loaded yet. Undefined for a new session. */
  id: string | undefined;
  session: Session | undefined;
}

/**
 * The agents, loaded when a session opens, after each error and each login, when an agent answers that is not in the
 * list, and when the window gets the focus.
 */
function useAgents(chat: Chat, id: string | undefined, errors: number | undefined) {
  const login = logins.value;
  // Several agents can answer at once, so the newest answer is not always that of the new agent.
  const unlisted = chat.open.value?.messages.value.findLast((message) => isUnavailable(message.agent_id))?.agent_id;
  useEffect(() => void loadAgents(), [login, id, errors, unlisted]);
  useEffect(() => {
    const load = () => void loadAgents();
    window.addEventListener("focus", load);
    return () => window.removeEventListener("focus", load);
  }, []);
  return answeringAgents.value;
}

export function AgentPicker({ chat, id, session }: Props) {
  const listed = useAgents(chat, id, session?.counts.errors);
  const reasonId = useId();
  const chosen = session?.agent ?? "";
  if (listed === null || (listed.agents.length < 2 && !chosen)) return null;
  const reason = !listed.may_choose
    ? "Choosing an agent requires the role curator."
    : id !== undefined && session === undefined
      ? "The session is being loaded."
      : "";
  const choose = async (select: HTMLSelectElement) => {
    const agent = select.value || null;
    const changed = await attempt("Choosing the agent failed", async () => {
      const target = session ?? (await client.sessions.create());
      return client.sessions.change(target.id, { agent });
    });
    if (!changed) {
      select.value = chosen;
      void loadAgents();
      return;
    }
    chat.list.put(changed);
    if (session) return;
    moveDraftTo(changed.id);
    go(href("chat", [changed.id]), true);
  };
  const description = listed.agents.find((agent) => agent.agent_id === chosen)?.description;
  return (
    <span class="agent-picker" title={reason || description || "Agent that answers, from the next message on"}>
      <span class="agent-label soft" aria-hidden="true">
        Agent
      </span>
      <select
        class="field"
        aria-label="Agent"
        aria-describedby={reason ? reasonId : undefined}
        disabled={reason !== ""}
        value={chosen}
        onPointerDown={() => void loadAgents()}
        onChange={(event) => void choose(event.currentTarget)}
      >
        <option value="">All agents</option>
        {listed.agents.map((agent) => (
          <option key={agent.agent_id} value={agent.agent_id} title={agent.description}>
            {agent.agent_id}
          </option>
        ))}
        {isUnavailable(session?.agent) && <option value={chosen}>{chosen} – not available</option>}
      </select>
      {reason && (
        <span id={reasonId} class="unseen">
          {reason}
        </span>
      )}
    </span>
  );
}

/** Below the composer: which agent answers, if there is a choice. */
export function AnsweredBy({ session }: { session: Session | undefined }) {
  const listed = answeringAgents.value; // the picker, which is always on the page, loads them
  const chosen = session?.agent;
  if (listed === null) return null;
  if (isUnavailable(chosen)) {
    return (
      <p class="answered-by missing" role="status">
        <b>{chosen}</b> is not available. It was deleted, or its program is not running.{" "}
        {listed.may_choose ? "Choose another agent." : "A curator can choose another agent."}
      </p>
    );
  }
  if (chosen !== undefined) {
    return (
      <p class="answered-by">
        <b>{chosen}</b> answers.
      </p>
    );
  }
  if (listed.agents.length < 2) return null;
  const names = answeringNames(listed);
  if (names.length === 1) {
    return (
      <p class="answered-by">
        <b>{names[0]}</b> answers.
      </p>
    );
  }
  return (
    <p class="answered-by" title={names.join(", ")}>
      {names.length} agents answer: {names.join(", ")}
    </p>
  );
}
