/** Breadcrumbs: list, read, create, update, delete. */

import type { Client, Query } from "./client.ts";
import { newId } from "./ids.ts";
import type { JsonObject } from "./json.ts";

export interface Breadcrumb {
  id: string;
  title?: string;
  schema_name?: string;
  tags: string[];
  version: number;
  created_at: string;
  updated_at: string;
  context?: JsonObject;
  [more: string]: unknown;
}

export interface NewBreadcrumb {
  schema_name: string;
  title?: string;
  tags?: string[];
  context?: JsonObject;
  [more: string]: unknown;
}

/** Reply of the server to a new breadcrumb. */
export interface CreatedBreadcrumb {
  id: string;
  version: number;
  created_at: string;
  updated_at: string;
}

export type BreadcrumbVersion = Omit<Breadcrumb, "id" | "created_at">;

export interface BreadcrumbQuery extends Query {
  tag?: string;
  any_tags?: readonly string[];
  all_tags?: readonly string[];
  schema_name?: string;
  session_id?: string;
  updated_since?: string;
  limit?: number;
  cursor?: string | undefined;
  sort?: "created_at" | "-created_at" | "updated_at" | "-updated_at";
  include_context?: boolean;
}

export class Breadcrumbs {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Return one page, and the cursor of the next page if there is one. */
  async list(query: BreadcrumbQuery, signal?: AbortSignal): Promise<{ items: Breadcrumb[]; next?: string }> {
    const { data, response } = await this.#client.request<Breadcrumb[]>("/breadcrumbs", { query, signal });
    if (!Array.isArray(data)) throw this.#client.malformed(response);
    const next = nextCursor(response);
    return next === undefined ? { items: data } : { items: data, next };
  }

  /** Return a breadcrumb as it is stored, without hints applied. */
  full(id: string, signal?: AbortSignal): Promise<Breadcrumb> {
    return this.#client.json(`${pathOf(id)}/full`, { signal });
  }

  /** Return all versions. Reads as many pages as needed. */
  async history(id: string, signal?: AbortSignal): Promise<BreadcrumbVersion[]> {
    const versions: BreadcrumbVersion[] = [];
    let cursor: string | undefined;
    do {
      const { data, response } = await this.#client.request<BreadcrumbVersion[]>(`${pathOf(id)}/history`, {
        query: { cursor },
        signal,
      });
      versions.push(...data);
      cursor = nextCursor(response);
    } while (cursor !== undefined);
    return versions;
  }

  /** Create a breadcrumb. A second call with the same key does not create a second one. */
  async create(crumb: NewBreadcrumb, idempotencyKey = newId(), signal?: AbortSignal): Promise<CreatedBreadcrumb> {
    const { data, response } = await this.#client.request<CreatedBreadcrumb>("/breadcrumbs", {
      body: crumb,
      headers: { "idempotency-key": idempotencyKey },
      signal,
    });
    if (typeof data?.id !== "string") throw this.#client.malformed(response);
    return data;
  }

  /** Replace fields. With a `version`, fails if it is not the current one. */
  update(
    id: string,
    changes: Partial<NewBreadcrumb>,
    version?: number,
  ): Promise<{ id: string; version: number; updated_at: string }> {
    return this.#client.json(pathOf(id), {
      method: "PATCH",
      body: changes,
      headers: version === undefined ? {} : { "if-match": String(version) },
    });
  }

  remove(id: string): Promise<{ ok: true }> {
    return this.#client.json(pathOf(id), { method: "DELETE" });
  }
}

function pathOf(id: string): string {
  return `/breadcrumbs/${encodeURIComponent(id)}`;
}

/** Return the cursor of the next page, from the Link header. */
function nextCursor(response: Response): string | undefined {
  const target = /<([^>]*)>\s*;\s*rel="?next"?/.exec(response.headers.get("link") ?? "")?.[1];
  const cursor = /[?&]cursor=([^&]+)/.exec(target ?? "")?.[1];
  return cursor === undefined ? undefined : decodeURIComponent(cursor);
}
