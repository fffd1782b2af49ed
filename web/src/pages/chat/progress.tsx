/** Parts of an answer in progress: the folded reasoning of the model, and the notice while it is called again. */

import { sentence, type JsonObject, type RetryNotice } from "@breadcrumbs/client";
import { useEffect, useState } from "preact/hooks";
import { Icon } from "../../components/icons";
import "./progress.css";

/** The reasoning of a model, folded. It is not part of the answer. */
export function Reasoning({ text, running = false }: { text: string | undefined; running?: boolean }) {
  if (!text) return null;
  return (
    <details class="reasoning">
      <summary>
        <Icon name="chevron" />
        {running ? "Thinking …" : "Reasoning"}
      </summary>
      <div class="reasoning-text">{text}</div>
    </details>
  );
}

/** Return the reasoning that is stored with an answer. */
export function reasoningOf(context: JsonObject): string | undefined {
  const text = context["model_reasoning"];
  return typeof text === "string" ? text : undefined;
}

/** Why the model has not answered yet, and when it is called again. */
export function RetryView({ notice }: { notice: RetryNotice }) {
  const seconds = useCountdown(notice);
  return (
    <div class="notice retrying" role="status">
      <Icon name="alert" />
      <span class="grow">
        {sentence(notice.reason)}{" "}
        <strong>
          {seconds > 0 ? `Attempt ${notice.attempt} in ${seconds}\u00a0s.` : `Attempt ${notice.attempt} is running.`}
        </strong>
      </span>
    </div>
  );
}

/** Return the seconds until the next attempt. They count from the arrival of the notice, because clocks differ. */
function useCountdown(notice: RetryNotice): number {
  const [seconds, setSeconds] = useState(Math.ceil(notice.retry_in));
  useEffect(() => {
    const end = performance.now() + notice.retry_in * 1000;
    const update = () => setSeconds(Math.max(0, Math.ceil((end - performance.now()) / 1000)));
    update();
    const timer = setInterval(update, 250);
    return () => clearInterval(timer);
  }, [notice.retry_at]);
  return seconds;
}
