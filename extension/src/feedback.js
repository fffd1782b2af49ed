// Ratings of the answers in a session: the user's own ratings, and their buttons below an answer.

import { ApiError, MAX_NOTE_LENGTH } from "../client/index.js";
import { h, icon } from "./dom.js";

/** @typedef {import("../client/index.js").Feedback} Feedback */
/** @typedef {import("../client/index.js").Rating} Rating */
/**
 * State of the buttons below an answer.
 * @typedef {{rating?: Rating, note?: string, noting: boolean}} RatingState
 */
/**
 * @typedef {object} RatingActions
 * @property {(answer: string, rating: Rating) => void} rate Rates an answer, or withdraws the same rating.
 * @property {(answer: string) => void} editNote
 * @property {(answer: string, note: string) => void} saveNote
 * @property {(answer: string) => void} closeNote
 */

const LABELS = { up: "Good answer", down: "Bad answer" };

export class SessionFeedback {
  /** By the id of the answer. @type {Map<string, Feedback>} */
  #own = new Map();
  #isOffered = false;
  #session;
  #ratings;

  /**
   * @param {import("../client/index.js").Ratings} ratings
   * @param {string} session
   */
  constructor(ratings, session) {
    this.#ratings = ratings;
    this.#session = session;
  }

  /** Load the own ratings. An older server, or one that refuses the token, offers no feedback. @param {AbortSignal} signal */
  async load(signal) {
    try {
      this.#own = await this.#ratings.ownIn(this.#session, signal);
      this.#isOffered = true;
    } catch (error) {
      if (!signal.aborted && !(error instanceof ApiError)) throw error;
    }
  }

  /**
   * Return the state of the buttons of an answer. Undefined: feedback is not offered.
   * @param {string} answer
   * @param {boolean} noting Whether the box for the note is open.
   * @returns {RatingState | undefined}
   */
  stateOf(answer, noting) {
    if (!this.#isOffered) return undefined;
    const own = this.#own.get(answer);
    return { rating: own?.rating, note: own?.note, noting: noting && own !== undefined };
  }

  /**
   * Rate an answer. Withdraws the rating if it is the same.
   * @param {string} answer
   * @param {Rating} rating
   * @returns {Promise<boolean>} Whether the answer is rated now.
   */
  async toggle(answer, rating) {
    const own = this.#own.get(answer);
    if (own?.rating === rating) {
      await this.#ratings.withdraw(answer);
      this.#own.delete(answer);
      return false;
    }
    this.#own.set(answer, await this.#ratings.rate(answer, rating, own?.note));
    return true;
  }

  /**
   * @param {string} answer
   * @param {string} note
   */
  async setNote(answer, note) {
    const own = this.#own.get(answer);
    if (own) this.#own.set(answer, await this.#ratings.rate(answer, own.rating, note.trim()));
  }
}

/**
 * Return the buttons of an answer, and the box for the note if it is open.
 * @param {string} answer
 * @param {RatingState} state
 * @param {RatingActions} actions
 */
export function ratingButtons(answer, state, actions) {
  const button = (/** @type {Rating} */ rating) =>
    h(
      "button",
      {
        type: "button",
        class: `icon-button rating-${rating}`,
        "aria-label": LABELS[rating],
        "aria-pressed": String(state.rating === rating),
        title: state.rating === rating ? "Withdraw feedback" : LABELS[rating],
        click: () => actions.rate(answer, rating),
      },
      icon(`thumb-${rating}`),
    );
  return h(
    "div",
    { class: "feedback" },
    h(
      "div",
      { class: "entry-actions ratings", role: "group", "aria-label": "Feedback" },
      button("up"),
      button("down"),
      state.rating !== undefined &&
        !state.noting &&
        h("button", { type: "button", class: "small-button", click: () => actions.editNote(answer) }, state.note ? "Edit note" : "Add note"),
    ),
    state.noting ? noteBox(answer, state, actions) : state.note && h("p", { class: "entry-note feedback-note" }, `Your note: ${state.note}`),
  );
}

/**
 * @param {string} answer
 * @param {RatingState} state
 * @param {RatingActions} actions
 */
function noteBox(answer, state, actions) {
  const field = /** @type {HTMLTextAreaElement} */ (
    h("textarea", {
      rows: "2",
      maxlength: String(MAX_NOTE_LENGTH),
      "aria-label": "Note on your feedback",
      placeholder: state.rating === "up" ? "What was good? (optional)" : "What was wrong? (optional)",
      keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") {
          event.stopPropagation(); // Escape would also stop an answer in progress
          actions.closeNote(answer);
        } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
          event.preventDefault();
          actions.saveNote(answer, field.value);
        }
      },
    })
  );
  field.value = state.note ?? "";
  return h(
    "div",
    { class: "feedback-box" },
    field,
    h(
      "div",
      { class: "entry-actions" },
      h("button", { type: "button", class: "small-button", click: () => actions.saveNote(answer, field.value) }, "Save note"),
      h("button", { type: "button", class: "small-button", click: () => actions.closeNote(answer) }, "Close"),
    ),
    h("p", { class: "entry-note" }, "Models never see your feedback."),
  );
}
