/** Texts of breadcrumbs without a title. A list contains no contexts, so their cards would be empty after a reload. */

import type { Breadcrumb, BreadcrumbQuery } from "@breadcrumbs/client";
import { client } from "../../lib/server";
import { fromList, type Item } from "./items";

/** So many schemas and breadcrumbs per schema are listed again, with their contexts. */
const MAX_SCHEMAS = 3;
const MAX_CRUMBS = 50;

/** Return the items of a list that have no text, with their text. Listing does not count as reading a breadcrumb. */
export async function textsOf(
  crumbs: readonly Breadcrumb[],
  query: BreadcrumbQuery,
  signal?: AbortSignal,
): Promise<Item[]> {
  const untitled = crumbs.filter((crumb) => crumb.schema_name && fromList(crumb).text === "");
  const schemas = [...new Set(untitled.map((crumb) => crumb.schema_name!))].slice(0, MAX_SCHEMAS);
  const limit = Math.min(MAX_CRUMBS, crumbs.length);
  const pages = await Promise.all(
    schemas.map((schema) =>
      client.breadcrumbs.list({ ...query, schema_name: schema, limit, include_context: true }, signal),
    ),
  );
  const wanted = new Set(untitled.map((crumb) => crumb.id));
  return pages
    .flatMap((page) => page.items.filter((crumb) => wanted.has(crumb.id)).map(fromList))
    .filter((item) => item.text !== "");
}
