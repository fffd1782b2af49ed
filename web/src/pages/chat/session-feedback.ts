/** The user's own ratings of the answers in a session. */

import { signal } from "@preact/signals";
import type { BreadcrumbEvent, Feedback, Rating } from "@breadcrumbs/client";
import { client } from "../../lib/server";

const SCHEMA = "feedback.v1";

export class SessionFeedback {
  /** By the id of the answer. */
  readonly own = signal<ReadonlyMap<string, Feedback>>(new Map());
  readonly #session: string;
  #isLoading = false;
  #isOutdated = false;

  constructor(session: string) {
    this.#session = session;
  }

  async load(signal?: AbortSignal): Promise<void> {
    if (this.#isLoading) {
      this.#isOutdated = true; // load again afterwards
      return;
    }
    this.#isLoading = true;
    try {
      do {
        this.#isOutdated = false;
        this.own.value = await client.feedback.ownIn(this.#session, signal);
      } while (this.#isOutdated);
    } catch {
      // Ratings are an extra: the messages are shown without them.
    } finally {
      this.#isLoading = false;
    }
  }

  /** Load the ratings again if another device changed one. */
  onEvent(event: BreadcrumbEvent): void {
    const known = [...this.own.value.values()].find((one) => one.id === event.breadcrumb_id);
    if (event.operation === "deleted") {
      if (known) this.#put(known.answer_id, undefined);
    } else if (event.schema_name === SCHEMA && (known?.version ?? 0) < event.version) {
      void this.load();
    }
  }

  async rate(answer: string, rating: Rating, note?: string): Promise<void> {
    this.#put(answer, await client.feedback.rate(answer, rating, note));
  }

  async withdraw(answer: string): Promise<void> {
    await client.feedback.withdraw(answer);
    this.#put(answer, undefined);
  }

  #put(answer: string, feedback: Feedback | undefined): void {
    const own = new Map(this.own.value);
    if (feedback) own.set(answer, feedback);
    else own.delete(answer);
    this.own.value = own;
  }
}
