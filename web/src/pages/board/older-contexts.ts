/**
 * Earlier versions of contexts. Each turn updates the context of its session, so a list contains only its newest
 * version. The earlier ones are read from the history, so that a reload shows one card per turn, as live events do.
 */

import type { Breadcrumb, JsonObject } from "@breadcrumbs/client";
import { client } from "../../lib/server";
import { fromList, type Item } from "./items";
import { kindOf } from "./kinds";
import type { Version } from "./versions";

/** The newest contexts that were updated more than once are completed, up to this number. */
const MAX_CONTEXTS = 12;
const MAX_VERSIONS = 40;

/** Return the earlier versions of the contexts in a list, as far as they are not older than the list itself. */
export async function olderContexts(
  crumbs: readonly Breadcrumb[],
  isComplete: boolean,
  signal?: AbortSignal,
): Promise<Item[]> {
  const oldest = isComplete ? "" : (crumbs.at(-1)?.updated_at ?? "");
  const updated = crumbs.filter((crumb) => crumb.version > 1 && kindOf(crumb.schema_name, crumb.tags) === "context");
  const found = await Promise.all(updated.slice(0, MAX_CONTEXTS).map((crumb) => versionsOf(crumb, signal)));
  return found.flat().filter((item) => item.at >= oldest);
}

async function versionsOf(crumb: Breadcrumb, signal?: AbortSignal): Promise<Item[]> {
  try {
    const path = `/breadcrumbs/${encodeURIComponent(crumb.id)}/history`;
    const query = { limit: MAX_VERSIONS };
    const versions = await client.json<Version[]>(path, { query, signal });
    return versions
      .filter((one) => one.version < crumb.version)
      .map((one) => fromList({ ...one, context: one.context as JsonObject, id: crumb.id, created_at: crumb.created_at }));
  } catch {
    return []; // the context was deleted in the meantime, or has expired
  }
}
