/** Shows the model that answers in a session, and lets a curator choose another one. */

import { useEffect, useId } from "preact/hooks";
import { signal } from "@preact/signals";
import type { Message, Session } from "@breadcrumbs/client";
import { attempt } from "../../components/toast";
import { logins } from "../../lib/credential";
import { go, href } from "../../lib/router";
import { client } from "../../lib/server";
import type { Chat } from "./chat";
import { moveDraftTo } from "./drafts";
import "./model-picker.css";

interface Model {
  name: string;
  /** The model itself, if the name is an alias. */
  model: string;
  /** Reason why it cannot be used now. */
  problem?: string;
}

interface Models {
  default?: string;
  models: Model[];
  may_choose: boolean;
}

/** Models that the agent runners offer. Null until they are loaded, and if the credential may not read them. */
const offered = signal<Models | null>(null);

async function load(): Promise<void> {
  try {
    offered.value = await client.json<Models>("/models");
  } catch {
    offered.value = null; // the picker is an addition: the conversation works without it
  }
}

/** Return the offered models, and load them when the page opens and after each login. */
function useModels(): Models | null {
  const login = logins.value;
  useEffect(() => void load(), [login]);
  return offered.value;
}

function described(model: Model): string {
  return model.model === model.name ? model.name : `${model.name} (${model.model})`;
}

/** Return why the model of a session cannot be chosen, or an empty string if it can. */
function obstacle(models: Models, loading: boolean): string {
  if (!models.may_choose) return "Choosing a model requires the role curator.";
  if (models.models.length < 2) return "The server offers one model. Add others to [models] in crumb.toml.";
  return loading ? "The session is being loaded." : "";
}

interface Props {
  chat: Chat;
  /** The open session, even if it is not loaded yet. Undefined for a new session. */
  id: string | undefined;
  session: Session | undefined;
}

export function ModelPicker({ chat, id, session }: Props) {
  const models = useModels();
  const reasonId = useId();
  if (models?.default === undefined) return null;
  const standard = models.models.find((model) => model.name === models.default);
  const reason = obstacle(models, id !== undefined && session === undefined);
  const chosen = session?.model ?? "";
  const choose = async (select: HTMLSelectElement) => {
    const model = select.value || null;
    const changed = await attempt("Choosing the model failed", async () => {
      const target = session ?? (await client.sessions.create());
      return client.sessions.change(target.id, { model });
    });
    if (!changed) {
      select.value = chosen;
      return;
    }
    chat.list.put(changed);
    if (session) return;
    moveDraftTo(changed.id);
    go(href("chat", [changed.id]), true);
  };
  return (
    <span class="model-picker" title={reason || "Model of this session, from the next message on"}>
      <span class="model-label soft" aria-hidden="true">
        Model
      </span>
      <select
        class="field"
        aria-label="Model"
        aria-describedby={reason ? reasonId : undefined}
        disabled={reason !== ""}
        value={chosen}
        onChange={(event) => void choose(event.currentTarget)}
      >
        <option value="">{standard ? described(standard) : models.default}</option>
        {models.models
          .filter((model) => model.name !== models.default || model.name === chosen)
          .map((model) => (
            <option key={model.name} value={model.name} disabled={model.problem !== undefined} title={model.problem}>
              {described(model)}
              {model.problem !== undefined && " – not usable"}
            </option>
          ))}
        {chosen && !models.models.some((model) => model.name === chosen) && (
          <option value={chosen}>{chosen} – no longer offered</option>
        )}
      </select>
      {reason && (
        <span id={reasonId} class="unseen">
          {reason}
        </span>
      )}
    </span>
  );
}

/** Tells users of the offline model how to get a real one. */
export function OfflineHint() {
  const models = offered.value; // the picker, which is always on the page, loads them
  const standard = models?.models.find((model) => model.name === models.default);
  if (standard?.model !== "offline") return null;
  return (
    <p class="offline-hint">
      The <b>offline</b> model answers. It is for tests and repeats your messages. For a real model, start the server
      with
      <code class="offline-command">crumb up --model ollama:llama3.2</code>
      <code>crumb model list</code> shows all forms: OpenAI, OpenRouter, Anthropic, vLLM and any compatible server.
    </p>
  );
}

/** The model that produced an answer. */
export function AnswerModel({ message }: { message: Message }) {
  const creator = message.context["creator"];
  const model = creator && typeof creator === "object" && !Array.isArray(creator) ? creator["model"] : undefined;
  if (typeof model !== "string") return null;
  return (
    <span class="answer-model" title={`Answered by ${model}`}>
      {model}
    </span>
  );
}
