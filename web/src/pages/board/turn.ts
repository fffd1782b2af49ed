/** Everything that follows from a message: its turn, and those of other agents that its answers trigger. */

import { ApiError, type Breadcrumb } from "@breadcrumbs/client";
import { contexts } from "../../lib/contexts";
import { plural } from "../../lib/format";
import { client } from "../../lib/server";
import { gist, itemsIn, kindOf, sessionOf, type Kind } from "./kinds";
import { millis } from "./time";

export interface Step {
  key: string;
  /** Id of the breadcrumb. */
  id: string;
  version?: number;
  kind: Kind;
  text: string;
  /** Milliseconds since 1970, with fractions. Undefined if the breadcrumb was deleted. */
  ms: number | undefined;
  at: string | undefined;
}

/** Steps of one agent after one trigger. */
export interface Branch {
  name: string;
  /** Id of the trigger: the message, or the answer of another agent. */
  trigger: string;
  steps: Step[];
  /** Whether it ended with an answer or an error. */
  ended: boolean;
}

export interface TurnView {
  /** The message. Undefined if it was deleted. */
  origin: Step | undefined;
  originId: string;
  branches: Branch[];
}

const MAX_BREADCRUMBS = 120;
const MAX_OLDER_VERSIONS = 4;

/** Return the id of the message that a breadcrumb follows from. Without a root, that is its trigger. */
export function originOf(crumb: Breadcrumb): string {
  const { root_id: root, trigger_id: trigger } = crumb.context ?? {};
  if (typeof root === "string" && kindOf(crumb.schema_name, crumb.tags) !== "message") return root;
  return typeof trigger === "string" ? trigger : crumb.id;
}

export async function loadTurn(crumb: Breadcrumb, originId: string, signal: AbortSignal): Promise<TurnView> {
  const origin = originId === crumb.id ? crumb : await unlessNotFound(client.breadcrumbs.full(originId, signal));
  const session = sessionOf(crumb.tags);
  // Sorted by time, starting with the message: the turn is then on the first page, even in a long session.
  const { items } = await client.breadcrumbs.list(
    {
      ...(session !== undefined && { session_id: session }),
      updated_since: origin?.created_at ?? crumb.created_at,
      sort: "updated_at",
      include_context: true,
      limit: MAX_BREADCRUMBS,
    },
    signal,
  );
  const around = new Map(items.map((item) => [item.id, item]));
  around.set(crumb.id, crumb);
  const mine = [...around.values()].filter((item) => item.id !== originId && belongsTo(item, originId));
  const requests = new Set(mine.map((item) => item.id));
  const responses = items.filter((item) => !mine.includes(item) && requests.has(String(item.context?.["request_id"])));
  const turn = new Builder();
  for (const item of [...mine, ...responses]) turn.add(item);
  await turn.addContexts(mine, signal);
  if (origin) await turn.searchContext(origin, items, signal);
  return {
    origin: origin && stepOf(origin),
    originId,
    branches: turn.branches(),
  };
}

function belongsTo(crumb: Breadcrumb, originId: string): boolean {
  return crumb.context?.["trigger_id"] === originId || originOf(crumb) === originId;
}

class Builder {
  /** Branches by trigger and agent. */
  readonly #branches = new Map<string, Branch>();
  /** Agent and trigger of each tool request. A tool result contains only the id of its request. */
  readonly #requesters = new Map<string, { agent: string; trigger: string }>();
  /** Tool results, which are assigned to the agents of their requests later. */
  readonly #results: { step: Step; request: string }[] = [];
  /** Errors, which are assigned to agents last. */
  readonly #errors: { step: Step; creator: string; trigger: string }[] = [];

  add(crumb: Breadcrumb): void {
    const context = crumb.context ?? {};
    const kind = kindOf(crumb.schema_name, crumb.tags);
    const trigger = text(context["trigger_id"]);
    if (kind === "context" || kind === "started") return; // the tool call already shows that a tool started
    if (kind === "response") {
      this.#results.push({ step: stepOf(crumb), request: text(context["request_id"]) });
      return;
    }
    if (kind === "error") {
      this.#errors.push({ step: stepOf(crumb), creator: creatorOf(context), trigger });
      return;
    }
    const agent = kind === "request" ? text(context["requestedBy"]) : creatorOf(context) || text(context["agent_id"]);
    if (kind === "request") this.#requesters.set(crumb.id, { agent, trigger });
    this.#put(agent, trigger, stepOf(crumb));
  }

  async addContexts(mine: readonly Breadcrumb[], signal: AbortSignal): Promise<void> {
    const done = new Set<string>();
    const wanted: Promise<void>[] = [];
    for (const crumb of mine) {
      const { context_id: id, context_version: version } = crumb.context ?? {};
      const agent = creatorOf(crumb.context ?? {});
      const trigger = text(crumb.context?.["trigger_id"]);
      if (typeof id !== "string" || typeof version !== "number" || done.has(`${agent} ${id}:${version}`)) continue;
      done.add(`${agent} ${id}:${version}`);
      done.add(id);
      wanted.push(this.#addContext(agent, trigger, id, version, signal));
    }
    await Promise.all(wanted);
    // A context without an answer is still the newest version of its breadcrumb.
    for (const crumb of mine) {
      if (kindOf(crumb.schema_name, crumb.tags) !== "context" || done.has(crumb.id)) continue;
      this.#put(text(crumb.context?.["consumer_id"]), text(crumb.context?.["trigger_id"]), stepOf(crumb));
    }
  }

  /**
   * Find the context of a failed turn, which no breadcrumb refers to. It is one of the versions just before the one
   * that the next answer of the session used.
   */
  async searchContext(origin: Breadcrumb, items: readonly Breadcrumb[], signal: AbortSignal): Promise<void> {
    if (this.#errors.length === 0 || this.#hasContext()) return;
    const later = items.flatMap((item) => {
      const { context_id: id, context_version: version } = item.context ?? {};
      if (typeof id === "string" && typeof version === "number") return [{ id, version }];
      return kindOf(item.schema_name, item.tags) === "context" ? [{ id: item.id, version: item.version }] : [];
    })[0];
    if (!later) return;
    for (let version = later.version - 1; version >= Math.max(1, later.version - MAX_OLDER_VERSIONS); version -= 1) {
      const explained = await this.#explained(later.id, version, signal);
      if (!explained || explained.made_at < origin.created_at) return;
      if (explained.trigger_id === origin.id) {
        this.#put(explained.consumer_id, origin.id, contextStep(later.id, version, explained));
        return;
      }
    }
  }

  #hasContext(): boolean {
    return [...this.#branches.values()].some(({ steps }) => steps.some((step) => step.kind === "context"));
  }

  #explained(id: string, version: number, signal: AbortSignal): Promise<Explained | undefined> {
    return unlessNotFound(contexts.explain(id, version, signal, false) as Promise<Explained>);
  }

  async #addContext(agent: string, trigger: string, id: string, version: number, signal: AbortSignal): Promise<void> {
    this.#put(agent, trigger, contextStep(id, version, await this.#explained(id, version, signal)));
  }

  #put(name: string, trigger: string, step: Step): void {
    const key = `${trigger} ${name}`;
    const branch = this.#branches.get(key);
    if (branch) branch.steps.push(step);
    else this.#branches.set(key, { name, trigger, steps: [step], ended: false });
  }

  /** Return the only agent in progress at the time of an error, or undefined if there are none or several. */
  #agentInProgress(error: Step, trigger: string): string | undefined {
    const found = [...this.#branches.values()].flatMap((branch) => {
      const before = branch.steps.filter((step) => order(step) <= order(error)).sort((a, b) => order(a) - order(b));
      const last = before.at(-1)?.kind;
      return branch.trigger !== trigger || last === undefined || last === "answer" ? [] : [branch.name];
    });
    return found.length === 1 ? found[0] : undefined;
  }

  branches(): Branch[] {
    for (const { step, request } of this.#results) {
      const { agent, trigger } = this.#requesters.get(request) ?? { agent: "tool", trigger: "" };
      this.#put(agent, trigger, step);
    }
    for (const { step, creator, trigger } of this.#errors) {
      this.#put(this.#agentInProgress(step, trigger) ?? (creator || "error"), trigger, step);
    }
    return [...this.#branches.values()]
      .map(({ name, trigger, steps }) => {
        const ordered = steps.sort((a, b) => order(a) - order(b));
        const last = ordered.at(-1)?.kind;
        return { name, trigger, steps: ordered, ended: last === "answer" || last === "error" };
      })
      .sort((a, b) => firstTime(a) - firstTime(b));
  }
}

/** Time of the first step of a branch that has one. The agent of an answer comes before the agents that it triggers. */
function firstTime(branch: Branch): number {
  return branch.steps.find((step) => step.ms !== undefined)?.ms ?? Number.NEGATIVE_INFINITY;
}

interface Explained {
  consumer_id: string;
  trigger_id: string;
  made_at: string;
  tokens: number;
  items: unknown[];
}

function contextStep(id: string, version: number, explained: Explained | undefined): Step {
  return {
    key: `${id}:${version}`,
    id,
    version,
    kind: "context",
    text: explained ? `${plural(explained.items.length, "item")} · ${plural(explained.tokens, "token")}` : "no longer stored",
    at: explained?.made_at,
    ms: explained && millis(explained.made_at),
  };
}

/** Sort key of a step. Only contexts can have an unknown time, and they come first. */
const order = (step: Step) => step.ms ?? Number.NEGATIVE_INFINITY;

export function stepOf(crumb: Breadcrumb): Step {
  const kind = kindOf(crumb.schema_name, crumb.tags);
  // A context is updated for each message. Other breadcrumbs belong to the turn in which they were created.
  const at = kind === "context" ? crumb.updated_at : crumb.created_at;
  const context = crumb.context ?? {};
  const items = kind === "context" ? itemsIn(context) : undefined;
  return {
    key: `${crumb.id}:${crumb.version}`,
    id: crumb.id,
    version: crumb.version,
    kind,
    text: (items === undefined ? gist(kind, context) : plural(items, "item")) || crumb.title || crumb.schema_name || "",
    at,
    ms: millis(at),
  };
}

function creatorOf(context: Record<string, unknown>): string {
  const creator = context["creator"];
  if (typeof creator === "string") return creator;
  return creator !== null && typeof creator === "object" ? text((creator as Record<string, unknown>)["agent_id"]) : "";
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

async function unlessNotFound<T>(request: Promise<T>): Promise<T | undefined> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 403)) return undefined;
    throw error;
  }
}
