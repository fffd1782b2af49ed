/** Filters of the board, stored in the address: one schema and any number of tags. All must match. */

import type { BreadcrumbQuery, StreamQuery } from "@breadcrumbs/client";
import type { Item } from "./items";
import { SESSION } from "./kinds";

export interface Filters {
  schema: string;
  tags: readonly string[];
}

/** Read the filters from the hash of the address. `route.query` cannot be used, because `tag` can be repeated. */
export function readFilters(hash: string): Filters {
  const query = new URLSearchParams(hash.split("?")[1] ?? "");
  const session = query.get("session");
  const tags = [...(session ? [SESSION + session] : []), ...query.getAll("tag")];
  return { schema: query.get("schema") ?? "", tags: [...new Set(tags)] };
}

export interface Place extends Filters {
  /** Id of the breadcrumb whose details are open. */
  id?: string | undefined;
  version?: number | undefined;
}

export function boardHref({ id, version, schema, tags }: Place): string {
  const query = new URLSearchParams();
  if (schema) query.set("schema", schema);
  for (const tag of tags) query.append("tag", tag);
  if (version !== undefined) query.set("version", String(version));
  const path = id === undefined ? "board" : `board/${encodeURIComponent(id)}`;
  return `#/${path}${query.size ? `?${query}` : ""}`;
}

export function toggledTag({ schema, tags }: Filters, tag: string): Filters {
  return { schema, tags: tags.includes(tag) ? tags.filter((one) => one !== tag) : [...tags, tag] };
}

export function toggledSchema({ schema, tags }: Filters, wanted: string): Filters {
  return { schema: schema === wanted ? "" : wanted, tags };
}

export function matches(item: Item, { schema, tags }: Filters): boolean {
  return (!schema || item.schema === schema) && tags.every((tag) => item.tags.includes(tag));
}

export function asQuery({ schema, tags }: Filters): BreadcrumbQuery & StreamQuery {
  return {
    ...(schema && { schema_name: schema }),
    // Sent as a JSON list, because the server would parse a plain tag that starts with a bracket as one.
    ...(tags.length > 0 && { all_tags: [JSON.stringify(tags)] }),
  };
}
