/** Shown below a message until its answer begins, and below an answer that stalls. Says so if no worker is running. */

import { Fragment } from "preact";
import { useEffect } from "preact/hooks";
import { Icon } from "../../components/icons";
import { isUnavailable, watchAgents } from "../../lib/agents";
import { AGENT_RUNNER, missingWorkers, watchWorkers, type MissingWorker } from "../../lib/workers";
import type { Draft } from "./conversation";

/** `agent` is the agent that was chosen for the session. */
export function Thinking({ agent }: { agent?: string | undefined }) {
  useEffect(watchWorkers, []);
  useEffect(() => (agent === undefined ? undefined : watchAgents()), [agent]);
  const missing = missingWorkers.value;
  if (missing.length > 0) return <NoWorker missing={missing} />;
  if (agent !== undefined && isUnavailable(agent)) return <NoAgent agent={agent} />;
  return (
    <div class="thinking" role="status">
      <span class="unseen">The agent is answering</span>
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
    </div>
  );
}

/** Below an answer in progress: says so if it stalls because its agent runner has ended. */
export function Stalled({ draft }: { draft: Draft }) {
  // Each piece of text restarts the wait, so that nothing is requested while the answer makes progress.
  useEffect(watchWorkers, [draft]);
  const isGone = missingWorkers.value.includes(AGENT_RUNNER);
  return isGone ? <NoWorker missing={[AGENT_RUNNER]} /> : null;
}

function NoAgent({ agent }: { agent: string }) {
  return (
    <div class="notice warn no-worker" role="status">
      <Icon name="alert" />
      <span>
        <strong>The agent {agent} is not running.</strong> Your message is stored, and will be answered when its program
        runs again. To ask another agent, choose it and send the message again.
      </span>
    </div>
  );
}

function NoWorker({ missing }: { missing: readonly MissingWorker[] }) {
  const names = missing.map((worker) => worker.name).join(" and no ");
  return (
    <div class="notice warn no-worker" role="status">
      <Icon name="alert" />
      <span>
        <strong>No {names} is running.</strong> Your message is stored, and will be answered when you start{" "}
        {missing.map((worker, index) => (
          <Fragment key={worker.command}>
            {index > 0 && " and "}
            <code>{worker.command}</code>
          </Fragment>
        ))}
        .
      </span>
    </div>
  );
}
