/** Facts about an agent: model, tools, usage and last error. */

import { useEffect, useState } from "preact/hooks";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import type { AgentInForce } from "../../lib/definitions";
import { ago, number } from "../../lib/format";
import { href } from "../../lib/router";
import { costText, usage, type Amounts } from "../../lib/usage";

export function Facts({ agent }: { agent: AgentInForce }) {
  const [spent, setSpent] = useState<Amounts | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    usage.read({ by: "agent", agent_id: agent.agent_id }, abort.signal).then(
      (found) => setSpent(found.total),
      () => setSpent(null), // an addition: without permission, the facts are shown without it
    );
    return () => abort.abort();
  }, [agent.agent_id]);
  const error = agent.last_error;
  return (
    <div class="agents-facts card">
      <h3>Facts</h3>
      {agent.description && <p>{agent.description}</p>}
      <dl>
        <dt>Model</dt>
        <dd class="mono">{agent.model ?? "default of the settings"}</dd>
        <dt>Tools</dt>
        <dd>{agent.tools.length ? agent.tools.map((tool) => <span class="tag">{tool}</span>) : "none"}</dd>
        <dt>Answers users</dt>
        <dd>
          {agent.answers_users ? "yes" : "only messages with certain tags, or other breadcrumbs"}
          {agent.fallback && ", unless another agent answers the message"}
        </dd>
        <dt>Running</dt>
        <dd>{agent.running ? "yes" : "no process runs it now, messages wait"}</dd>
        {spent && (
          <>
            <dt>Last 30 days</dt>
            <dd>
              {number(spent.calls)} model calls, {number(spent.tokens)} tokens, {costText(spent)}
            </dd>
          </>
        )}
      </dl>
      {error && (
        <p class="notice bad">
          <Icon name="alert" />
          <span class="grow">
            Last error, <Time iso={error.created_at}>{ago(error.created_at)}</Time>: {error.error}{" "}
            {error.session_id !== undefined && (
              <a href={href("chat", [error.session_id], { message: error.id })}>Open session</a>
            )}
          </span>
        </p>
      )}
    </div>
  );
}
