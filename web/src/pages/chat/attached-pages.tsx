/**
 * Web pages that were attached to a session, such as by the browser extension. A page belongs to the first message of
 * the user that was sent after it.
 */

import { computed, signal } from "@preact/signals";
import { safeAddress, type Breadcrumb, type BreadcrumbEvent, type Message } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { plural } from "../../lib/format";
import { client } from "../../lib/server";

const SCHEMA = "page.content.v1";
const MAX_PAGES = 50;

export class AttachedPages {
  readonly #session: string;
  readonly #pages = signal<ReadonlyMap<string, Breadcrumb>>(new Map());

  constructor(session: string) {
    this.#session = session;
  }

  async load(signal: AbortSignal): Promise<void> {
    try {
      const query = { session_id: this.#session, schema_name: SCHEMA, include_context: true, limit: MAX_PAGES };
      const { items } = await client.breadcrumbs.list(query, signal);
      this.#put(items);
    } catch {
      // The pages are an extra: the messages are shown without them.
    }
  }

  onEvent(event: BreadcrumbEvent): void {
    const id = event.breadcrumb_id;
    if (event.operation === "deleted") {
      const left = new Map(this.#pages.value);
      if (left.delete(id)) this.#pages.value = left;
    } else if (event.schema_name === SCHEMA) {
      const { title, context, tags, version, updated_at } = event;
      const created_at = this.#pages.value.get(id)?.created_at ?? updated_at;
      this.#put([{ id, tags, version, updated_at, created_at, title: title ?? "", context: context ?? {} }]);
    }
  }

  #put(pages: readonly Breadcrumb[]): void {
    if (pages.length === 0) return;
    this.#pages.value = new Map([...this.#pages.value, ...pages.map((page) => [page.id, page] as const)]);
  }

  /** All pages, oldest first. */
  readonly #sorted = computed(() =>
    [...this.#pages.value.values()].sort((a, b) => (a.created_at < b.created_at ? -1 : 1)),
  );

  #grouped: Grouped | undefined;

  /** Return the pages of a message, or those after the last message. */
  of(message: Message | undefined, messages: readonly Message[]): readonly Breadcrumb[] {
    const pages = this.#sorted.value;
    if (pages.length === 0) return [];
    if (this.#grouped?.pages !== pages || this.#grouped.messages !== messages) {
      this.#grouped = { pages, messages, byMessage: groupByMessage(pages, messages) };
    }
    return this.#grouped.byMessage.get(message?.id) ?? [];
  }
}

/** The pages of each message. Kept, because every message of a conversation asks for its pages. */
interface Grouped {
  pages: readonly Breadcrumb[];
  messages: readonly Message[];
  byMessage: ReadonlyMap<string | undefined, readonly Breadcrumb[]>;
}

/** Group pages by the id of their message. Pages after the last message have the key undefined. */
function groupByMessage(
  pages: readonly Breadcrumb[],
  messages: readonly Message[],
): ReadonlyMap<string | undefined, readonly Breadcrumb[]> {
  const sent = messages.filter((message) => message.role === "user");
  const groups = new Map<string | undefined, Breadcrumb[]>();
  let next = 0;
  for (const page of pages) {
    while (next < sent.length && (sent[next]?.created_at ?? "") < page.created_at) next += 1;
    const id = sent[next]?.id;
    groups.set(id, [...(groups.get(id) ?? []), page]);
  }
  return groups;
}

export function PageChips({ pages }: { pages: readonly Breadcrumb[] }) {
  return pages.length === 0 ? null : (
    <div class="attached-pages">
      {pages.map((page) => (
        <PageChip key={page.id} page={page} />
      ))}
    </div>
  );
}

function PageChip({ page }: { page: Breadcrumb }) {
  const { url, text, selection, truncated } = page.context ?? {};
  const address = typeof url === "string" ? safeAddress(url) : null;
  const content = typeof text === "string" ? text : "";
  const host = address === null ? "" : new URL(address).host;
  const facts = [
    selection === true && "selected text",
    content && plural([...content].length, "character"),
    truncated === true && "shortened",
  ].filter(Boolean);
  return (
    <details class="attached-page" data-id={page.id}>
      <summary aria-label={`Attached page: ${page.title || host}`}>
        <Icon name="page" />
        <span class="page-title">{page.title || host || "Page"}</span>
        {host && <span class="soft">{host}</span>}
      </summary>
      <p class="small soft">
        {address !== null && (
          <a href={address} target="_blank" rel="noopener noreferrer nofollow">
            {address}
          </a>
        )}{" "}
        {facts.join(", ")}
      </p>
      {content && (
        <pre tabIndex={0} role="region" aria-label="Text of the page">
          {content}
        </pre>
      )}
    </details>
  );
}
