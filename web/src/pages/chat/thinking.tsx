/** Shown below a message until its answer begins. Says so if no worker can answer it. */

import { Fragment } from "preact";
import { useEffect } from "preact/hooks";
import { Icon } from "../../components/icons";
import { missingWorkers, watchWorkers, type MissingWorker } from "../../lib/workers";

export function Thinking() {
  useEffect(watchWorkers, []);
  const missing = missingWorkers.value;
  if (missing.length > 0) return <NoWorker missing={missing} />;
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
