// Dialog to search and select a session.

import { ApiError } from "../client/index.js";
import { byId, h } from "./dom.js";
import { shortTime } from "./text.js";

export class SessionsDialog {
  #dialog = /** @type {HTMLDialogElement} */ (byId("sessions"));
  #filter = /** @type {HTMLInputElement} */ (byId("sessions-filter"));
  #status = byId("sessions-status");
  #list = byId("sessions-list");
  #more = /** @type {HTMLButtonElement} */ (byId("sessions-more"));
  /** @type {import("./server.js").SessionInfo[]} */
  #known = [];
  /** @type {ReturnType<import("./server.js").Server["sessions"]> | undefined} */
  #pages = undefined;
  #current = "";
  #choose;

  /** @param {(session: import("./server.js").SessionInfo) => void} choose */
  constructor(choose) {
    this.#choose = choose;
    byId("sessions-close").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close(); // a click on the backdrop
    });
    this.#filter.addEventListener("input", () => this.#draw());
    this.#more.addEventListener("click", () => this.#load());
    this.#dialog.addEventListener("keydown", (event) => this.#move(event));
  }

  /**
   * @param {import("./server.js").Server} server
   * @param {string} current
   */
  async open(server, current) {
    if (this.#dialog.open) return;
    this.#current = current;
    this.#known = [];
    this.#filter.value = "";
    this.#pages = server.sessions();
    this.#draw();
    this.#dialog.showModal();
    await this.#load();
  }

  async #load() {
    const pages = this.#pages;
    this.#status.textContent = "Loading …";
    this.#more.hidden = true;
    try {
      const page = await pages?.next();
      if (pages !== this.#pages) return;
      if (page && !page.done) {
        this.#known.push(...page.value.sessions);
        this.#more.hidden = !page.value.more;
      }
      this.#draw();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#status.textContent = error.message;
    }
  }

  #draw() {
    const wanted = this.#filter.value.trim().toLocaleLowerCase();
    const found = this.#known.filter(({ id, name }) => `${name}\n${id}`.toLocaleLowerCase().includes(wanted));
    this.#list.replaceChildren(...found.map((session) => this.#item(session)));
    if (found.length) this.#status.textContent = "";
    else if (wanted) this.#status.textContent = "No matching sessions";
    else this.#status.textContent = "No sessions yet";
  }

  /** @param {import("./server.js").SessionInfo} session */
  #item(session) {
    const { id, name, activeAt, messages } = session;
    const facts = [
      shortTime(activeAt),
      messages !== undefined && `${messages} ${messages === 1 ? "message" : "messages"}`,
      name !== id && id,
    ];
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          class: "session-item",
          "aria-current": id === this.#current ? "true" : undefined,
          "data-session": id,
          click: () => {
            this.#dialog.close();
            this.#choose(session);
          },
        },
        h("span", { class: "name" }, name),
        h("span", { class: "facts" }, facts.filter((fact) => fact !== false).join(" · ")),
      ),
    );
  }

  /** Move the focus with the arrow keys. @param {KeyboardEvent} event */
  #move(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const items = [...this.#list.querySelectorAll("button")];
    const place = items.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const next = event.key === "ArrowDown" ? place + 1 : place - 1;
    const target = next < 0 ? this.#filter : items[Math.min(next, items.length - 1)];
    if (target) {
      target.focus();
      event.preventDefault();
    }
  }
}
