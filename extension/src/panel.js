// The side panel. Connects the server, the outbox, the conversation and the view.

import { ApiError, EventStream } from "../client/index.js";
import { ATTACH, onClick } from "./clicks.js";
import { CANCEL, Conversation, MESSAGE } from "./conversation.js";
import { byId } from "./dom.js";
import { SessionFeedback } from "./feedback.js";
import { PanelOutbox, onParcels, parcels } from "./outbox.js";
import { NotAllowedYet, NotReadable, currentTab, pageCrumb } from "./page.js";
import { Server } from "./server.js";
import { SessionsDialog } from "./sessions.js";
import { loadSettings, onSettingsChanged, sessionOfToken, targetOf } from "./settings.js";
import { oneLine } from "./text.js";
import { EntryList, draftItem, entryItem, parcelItem, thinkingItem } from "./view.js";

const PAGE_SIZE = 60;
/** After this time, an unanswered message is shown as "No answer yet". */
const ANSWER_TIMEOUT_MS = 120_000;
const DRAW_MS = 40;
const RELOAD_MS = 2_000;
const NEAR_END_PX = 80;

const log = byId("log");
const text = /** @type {HTMLTextAreaElement} */ (byId("text"));

class Panel {
  /** @type {Server} */
  #server;
  /** The server that was last checked for GET /sessions. @type {Server | undefined} */
  #asked;
  #target = "";
  /** The session that the token is limited to, if any. @type {string | undefined} */
  #onlySession;
  #session = "";
  /** Name of the session in the list. @type {string | undefined} */
  #name;
  #conversation = new Conversation();
  /** @type {SessionFeedback} */
  #feedback;
  /** Answer whose box for a note is open. @type {string | undefined} */
  #noting;
  /** @type {EventStream | undefined} */
  #stream;
  /** @type {PanelOutbox} */
  #outbox;
  /** @type {import("../client/index.js").StreamState} */
  #streamState = { status: "connecting" };
  /** Reason why the history could not be loaded. @type {string | undefined} */
  #loadProblem;
  /** @type {import("./outbox.js").Parcel[]} */
  #parcels = [];
  /** Ids of entries with the same text that existed before a parcel was sent. @type {Map<string, Set<string>>} */
  #before = new Map();
  /** Aborts the requests of the session when the panel leaves it. */
  #leave = new AbortController();
  #loaded = false;
  /** Cursor of older entries. Undefined if there are none. @type {string | undefined} */
  #older;
  #entries = new EntryList();
  #sessions = new SessionsDialog((session) => this.go(session.id, session.name));
  /** Whether attaching waits for a click on the toolbar icon. */
  #wantsPage = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #drawing;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #growingLate;
  /** Milliseconds that the clock of the server is ahead of the local clock. */
  #ahead = 0;
  /** Entries that need no announcement to screen readers. @type {Set<string>} */
  #announced = new Set();

  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    this.#server = new Server(settings);
    this.#feedback = new SessionFeedback(this.#server.client.feedback, "");
    this.#outbox = new PanelOutbox(this.#server.client, this.#target);
    this.#listen();
  }

  /** @param {import("./settings.js").Settings} settings */
  async connect(settings) {
    const server = new Server(settings);
    this.#outbox.stop();
    this.#server = server;
    const [target, known, { session }] = await Promise.all([
      targetOf(settings),
      parcels(),
      chrome.storage.local.get("session"),
    ]);
    if (server !== this.#server) return; // the settings have changed again
    this.#target = target;
    this.#parcels = known;
    this.#onlySession = sessionOfToken(settings.token);
    this.#outbox = new PanelOutbox(server.client, target);
    this.#outbox.start();
    byId("new-button").hidden = this.#onlySession !== undefined;
    const last = sessionInAddress() ?? (typeof session === "string" ? session : undefined);
    this.go(this.#onlySession ?? last ?? newSession());
  }

  /**
   * Show a session.
   * @param {string} session
   * @param {string} [name]
   */
  go(session, name) {
    this.#stream?.stop();
    this.#leave.abort();
    this.#leave = new AbortController();
    this.#keepDraft();
    this.#session = session;
    this.#name = name;
    this.#conversation = new Conversation();
    this.#feedback = new SessionFeedback(this.#server.client.feedback, session);
    this.#noting = undefined;
    this.#announced.clear();
    this.#fresh();
    this.#wantsPage = false;
    this.#advise(undefined);
    history.replaceState(null, "", `#${new URLSearchParams({ session })}`);
    chrome.storage.local.set({ session });
    this.#restoreDraft();
    const conversation = this.#conversation;
    const take = (/** @type {any} */ event) => {
      conversation.take(event);
      this.draw();
    };
    // The stream sends all events from now on. Everything earlier has to be listed.
    const reload = () => {
      this.#fresh();
      this.#load();
    };
    this.#stream = new EventStream(this.#server.client, { session_id: session }, {
      onEvent: take,
      onDelta: take,
      onOpen: (resumed) => resumed || reload(),
      onGap: reload,
      onState: (state) => {
        this.#streamState = state;
        if (state.status === "open") this.#outbox.retryNow();
        this.#connection();
      },
      onTime: (iso) => {
        this.#ahead = Date.parse(iso) - Date.now() || 0;
        this.draw();
      },
    });
    this.#stream.start();
    this.#drawNow();
    this.#toEnd();
    text.focus();
  }

  // History

  #fresh() {
    this.#conversation.forget();
    this.#loaded = false;
    this.#loadProblem = undefined;
    this.#older = undefined;
  }

  /** Load the newest entries of the session. Later changes arrive as events. */
  async #load() {
    const { signal } = this.#leave;
    const conversation = this.#conversation;
    try {
      /** @type {string | undefined} */
      let cursor;
      let shown = 0;
      do {
        const page = await this.#server.crumbsOf(this.#session, { limit: PAGE_SIZE, cursor, signal });
        shown = page.crumbs.filter((crumb) => conversation.add(crumb)).length;
        cursor = page.cursor;
      } while (cursor !== undefined && !shown);
      this.#older = cursor;
      if (shown) this.#name ??= await this.#server.titleOf(this.#session, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      this.#loadProblem = error.message;
      this.#connection();
      setTimeout(() => signal.aborted || this.#load(), RELOAD_MS);
      return;
    }
    if (signal.aborted) return;
    void this.#feedback.load(signal).then(() => this.draw());
    for (const entry of conversation.entries()) this.#announced.add(entry.id);
    this.#loaded = true;
    this.#loadProblem = undefined;
    this.#connection();
    this.#drawNow();
    this.#toEnd();
  }

  /** Check whether this server can retry failed turns. */
  async #ask() {
    const server = this.#server;
    if (this.#asked === server) return;
    this.#asked = server;
    try {
      await server.titleOf(this.#session);
      this.draw();
    } catch (error) {
      this.#asked = undefined; // check again at the next rendering
      if (!(error instanceof ApiError)) throw error;
    }
  }

  async #loadOlder() {
    const { signal } = this.#leave;
    const conversation = this.#conversation;
    const button = /** @type {HTMLButtonElement} */ (byId("earlier"));
    button.disabled = true;
    try {
      for (let shown = 0; this.#older !== undefined && !shown; ) {
        const page = await this.#server.crumbsOf(this.#session, { limit: PAGE_SIZE, cursor: this.#older, signal });
        if (signal.aborted) return;
        shown = page.crumbs.filter((crumb) => conversation.add(crumb)).length;
        for (const crumb of page.crumbs) this.#announced.add(crumb.id);
        this.#older = page.cursor;
      }
      const fromEnd = log.scrollHeight - log.scrollTop;
      this.#drawNow();
      log.scrollTop = log.scrollHeight - fromEnd; // keep the visible position
    } catch (error) {
      if (!signal.aborted) this.#complain(error);
    } finally {
      button.disabled = false;
    }
  }

  // Actions of the user

  /** @param {string} said */
  async say(said) {
    const message = said.trim().toWellFormed();
    if (!message) return;
    await this.#put({
      schema_name: MESSAGE,
      title: oneLine(message, 80),
      tags: ["user:message", "extension:chat", `session:${this.#session}`],
      context: { message },
    });
    this.#toEnd();
  }

  /** @param {import("./server.js").NewCrumb} crumb */
  async #put(crumb) {
    await this.#outbox.add({ session: this.#session, crumb });
    this.#parcels = await parcels();
    this.#outbox.retryNow();
    this.#drawNow();
  }

  /** Attach a page. @param {number} [tabId] Default: the active tab. */
  async attach(tabId) {
    const session = this.#session;
    this.#advise(undefined);
    try {
      const crumb = await pageCrumb(tabId ?? (await currentTab()), session);
      this.#wantsPage = false;
      if (session === this.#session) await this.#put(crumb);
      this.#toEnd();
      text.focus();
    } catch (error) {
      this.#wantsPage = error instanceof NotAllowedYet;
      if (error instanceof NotAllowedYet) {
        this.#advise("Chrome needs your permission to read this page. Click the Breadcrumbs icon in the toolbar to attach the page.");
      } else if (error instanceof NotReadable) {
        this.#advise(`${error.message}.`);
      } else {
        throw error;
      }
    }
  }

  async #stop() {
    try {
      await this.#server.client.breadcrumbs.create({
        schema_name: CANCEL,
        title: "Stop",
        tags: ["agent:cancel", "extension:chat", `session:${this.#session}`],
        context: { reason: "stopped by the user" },
      });
    } catch (error) {
      this.#complain(error);
    }
  }

  /** @type {import("./view.js").Actions} */
  #actions = {
    retry: async (error) => {
      try {
        this.#conversation.retrying(error);
        this.draw();
        for (const message of error.answers) await this.#server.client.sessions.retry(this.#session, message);
      } catch (problem) {
        this.#conversation.notRetrying(error);
        this.#complain(problem);
        this.draw();
      }
    },
    detach: async (page) => {
      try {
        await this.#server.client.breadcrumbs.remove(page.id);
        this.#conversation.drop(page.id);
        this.draw();
        text.focus();
      } catch (problem) {
        this.#complain(problem);
      }
    },
    sendAgain: async (parcel) => {
      await this.#outbox.resend(parcel.key);
    },
    takeBack: async (parcel) => {
      await this.#outbox.remove(parcel.key);
      if (parcel.crumb.schema_name === MESSAGE && !text.value) {
        text.value = parcel.crumb.context.message;
        this.#typed();
      }
      text.focus();
    },
    feedback: {
      rate: async (answer, rating) => {
        try {
          const isRated = await this.#feedback.toggle(answer, rating);
          this.#showNote(answer, isRated, `.rating-${rating}`);
        } catch (problem) {
          this.#complain(problem);
        }
      },
      editNote: (answer) => this.#showNote(answer, true),
      saveNote: async (answer, note) => {
        try {
          await this.#feedback.setNote(answer, note);
          this.#showNote(answer, false);
        } catch (problem) {
          this.#complain(problem);
        }
      },
      closeNote: (answer) => this.#showNote(answer, false),
    },
  };

  /**
   * Open or close the box for a note, and move the focus, because the buttons are rendered again.
   * @param {string} answer
   * @param {boolean} isOpen
   * @param {string} [next] Selector of the element that gets the focus when the box closes.
   */
  #showNote(answer, isOpen, next = ".ratings [aria-pressed=true]") {
    this.#noting = isOpen ? answer : undefined;
    this.#drawNow();
    const entry = byId("entries").querySelector(`[data-id="${CSS.escape(answer)}"]`);
    const target = /** @type {HTMLElement | null | undefined} */ (entry?.querySelector(isOpen ? "textarea" : next));
    target?.focus();
    target?.scrollIntoView({ block: "nearest" });
  }

  // Rendering

  /** Schedule a rendering. Several calls are combined. */
  draw() {
    this.#drawing ??= setTimeout(() => this.#drawNow(), DRAW_MS);
  }

  #drawNow() {
    clearTimeout(this.#drawing);
    this.#drawing = undefined;
    const atEnd = this.#isAtEnd();
    const conversation = this.#conversation;
    const entries = conversation.entries();
    const unanswered = conversation.unanswered();
    const drafts = conversation.drafts();
    const now = Date.now() + this.#ahead; // the clock of the server, like the times of messages
    const isFresh = (/** @type {import("./conversation.js").Entry} */ message) => now - Date.parse(message.at) < ANSWER_TIMEOUT_MS;
    const fresh = unanswered.filter(isFresh);
    const busy = fresh.length > 0 || drafts.length > 0 || unanswered.some((message) => conversation.isRetried(message));
    const queued = unanswered.slice(1);
    const noteOn = (/** @type {import("./conversation.js").Entry} */ entry) => {
      if (busy) return queued.includes(entry) ? "Queued" : undefined;
      return unanswered.includes(entry) ? "No answer yet" : undefined;
    };
    const items = entries.map((entry) =>
      entryItem(
        entry,
        {
          note: noteOn(entry),
          canRetry: this.#server.hasSessions === true && conversation.canRetry(entry),
          canDetach: entry.kind === "page",
          feedback: entry.kind === "answer" ? this.#feedback.stateOf(entry.id, this.#noting === entry.id) : undefined,
        },
        this.#actions,
      ),
    );
    items.push(...drafts.map(draftItem));
    if (busy && !drafts.length) items.push(thinkingItem());
    items.push(...this.#waiting(entries));
    this.#entries.show(items);
    if (this.#server.hasSessions === undefined && entries.some((entry) => conversation.canRetry(entry))) this.#ask();
    byId("stop").hidden = !busy;
    byId("earlier").hidden = this.#older === undefined;
    byId("loading").hidden = this.#loaded || items.length > 0 || this.#shownState().status !== "open";
    byId("empty").hidden = !this.#loaded || items.length > 0;
    this.#drawName(entries);
    this.#announce(entries);
    if (atEnd) this.#toEnd();
    byId("to-end").hidden = this.#isAtEnd();
    clearTimeout(this.#growingLate);
    if (fresh.length) {
      const left = Math.max(...fresh.map((message) => ANSWER_TIMEOUT_MS - (now - Date.parse(message.at))));
      this.#growingLate = setTimeout(() => this.draw(), Math.max(1_000, left));
    }
  }

  /**
   * Return the items for unsent messages and pages of this session.
   * @param {import("./conversation.js").Entry[]} entries
   */
  #waiting(entries) {
    const mine = this.#parcels.filter((parcel) => parcel.session === this.#session && !parcel.sent);
    return mine
      .filter((parcel) => !this.#hasArrived(parcel, entries))
      .map((parcel) => {
        const foreign = parcel.target !== this.#target;
        const failed = parcel.failed ?? (foreign ? "Written for another server or token" : undefined);
        const note = failed ?? (this.#streamState.status === "open" ? "Sending …" : "Waiting for connection");
        return parcelItem(parcel, { note, failed: failed !== undefined }, this.#actions);
      });
  }

  /**
   * Whether the event of a parcel has arrived. It can arrive before the reply, and must not be shown twice.
   * @param {import("./outbox.js").Parcel} parcel
   * @param {import("./conversation.js").Entry[]} entries
   */
  #hasArrived({ key, failed, crumb }, entries) {
    const words = crumb.context.message ?? crumb.context.text;
    const same = entries.filter(({ kind, text }) => (kind === "user" || kind === "page") && text === words);
    const before = this.#before.get(key) ?? new Set(same.map((entry) => entry.id));
    this.#before.set(key, before);
    return !failed && same.some((entry) => !before.has(entry.id));
  }

  /** @param {import("./conversation.js").Entry[]} entries */
  #drawName(entries) {
    const first = this.#older === undefined ? entries.find((entry) => entry.kind === "user") : undefined;
    const fallback = this.#loaded && !entries.length ? "New chat" : this.#session;
    const name = this.#name ?? (first ? oneLine(first.text, 80) : fallback);
    byId("session-name").textContent = name;
    byId("sessions-button").title = `Sessions (Alt+S). Current session: ${this.#session}`;
    document.title = `${name} – Breadcrumbs chat`;
  }

  /** Announce new entries to screen readers. @param {import("./conversation.js").Entry[]} entries */
  #announce(entries) {
    if (!this.#loaded) return;
    for (const entry of entries) {
      if (this.#announced.has(entry.id)) continue;
      this.#announced.add(entry.id);
      if (entry.kind === "answer") byId("announcer").textContent = `${entry.agent ?? "Agent"}: ${entry.text}`;
      if (entry.kind === "error") byId("announcer").textContent = entry.cancelled ? "Stopped" : `No answer: ${entry.text}`;
      if (entry.kind === "page") byId("announcer").textContent = `Attached: ${entry.page?.title}`;
    }
  }

  /** @returns {import("../client/index.js").StreamState} */
  #shownState() {
    if (this.#streamState.status !== "open" || this.#loadProblem === undefined) return this.#streamState;
    return { status: "lost", detail: this.#loadProblem };
  }

  #connection() {
    const { status, detail } = this.#shownState();
    const dot = byId("dot");
    dot.dataset.status = status;
    dot.title = { connecting: "Connecting", open: "Connected", lost: "Not connected", refused: "Refused" }[status];
    const broken = status === "lost" || status === "refused";
    byId("connection").hidden = !broken;
    const reason = /[.!?]$/.test(detail ?? "") ? detail : `${detail}.`;
    const words = status === "refused" ? reason : `${reason} Retrying …`;
    // Set only if it changes, because screen readers read every change.
    if (broken && byId("connection-text").textContent !== words) byId("connection-text").textContent = words ?? "";
    this.draw();
  }

  /** @param {string | undefined} advice */
  #advise(advice) {
    byId("advice").hidden = advice === undefined;
    byId("advice-text").textContent = advice ?? "";
  }

  /** @param {unknown} error */
  #complain(error) {
    if (!(error instanceof ApiError)) throw error;
    this.#advise(error.message);
  }

  #isAtEnd() {
    return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  }

  #toEnd() {
    log.scrollTop = log.scrollHeight;
  }

  // Drafts, stored per session until the browser is closed

  #keepDraft() {
    if (this.#session) chrome.storage.session.set({ [`draft ${this.#session}`]: text.value });
  }

  async #restoreDraft() {
    const key = `draft ${this.#session}`;
    text.value = "";
    const { [key]: draft } = await chrome.storage.session.get(key);
    if (key === `draft ${this.#session}` && typeof draft === "string" && !text.value) text.value = draft;
    this.#typed();
  }

  #typed() {
    const send = /** @type {HTMLButtonElement} */ (byId("send"));
    send.disabled = !text.value.trim();
  }

  async #submit() {
    const said = text.value;
    if (!said.trim()) return;
    text.value = "";
    this.#typed();
    this.#keepDraft();
    try {
      await this.say(said);
    } catch (error) {
      // The storage is full. Put the text back into the field.
      if (!text.value) text.value = said;
      this.#typed();
      this.#keepDraft();
      this.#advise(`The message could not be stored for sending: ${error instanceof Error ? error.message : error}`);
    }
  }

  #listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    text.addEventListener("input", () => {
      this.#typed();
      this.#keepDraft();
    });
    text.addEventListener("keydown", (event) => {
      // During a composition, Enter belongs to the input method.
      if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
      event.preventDefault();
      this.#submit();
    });
    for (const chip of document.querySelectorAll("[data-say]")) {
      chip.addEventListener("click", () => this.say(chip.getAttribute("data-say") ?? ""));
    }
    const options = () => chrome.runtime.openOptionsPage();
    const tryNow = () => {
      this.#stream?.retryNow();
      this.#outbox.retryNow();
    };
    byId("sessions-button").addEventListener("click", () => this.#sessions.open(this.#server, this.#session));
    byId("new-button").addEventListener("click", () => this.go(newSession()));
    byId("options-button").addEventListener("click", options);
    byId("connection-options").addEventListener("click", options);
    byId("connection-again").addEventListener("click", tryNow);
    byId("attach").addEventListener("click", () => this.attach());
    byId("stop").addEventListener("click", () => this.#stop());
    byId("earlier").addEventListener("click", () => this.#loadOlder());
    byId("to-end").addEventListener("click", () => this.#toEnd());
    byId("advice-close").addEventListener("click", () => {
      this.#wantsPage = false;
      this.#advise(undefined);
    });
    log.addEventListener("scroll", () => (byId("to-end").hidden = this.#isAtEnd()));
    document.addEventListener("keydown", (event) => this.#shortcut(event));
    window.addEventListener("online", tryNow);
    document.addEventListener("visibilitychange", () => document.hidden || tryNow());
    onParcels((all) => {
      for (const { sent, session, crumb } of all) {
        if (sent && session === this.#session) this.#conversation.add({ ...crumb, ...sent });
      }
      this.#parcels = all;
      this.draw();
    });
  }

  /** @param {KeyboardEvent} event */
  #shortcut(event) {
    if (isComposing(event)) return; // Escape belongs to the input method
    if (event.key === "Escape" && !byId("stop").hidden && !document.querySelector("dialog[open]")) {
      this.#stop();
      return;
    }
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    // `code` instead of `key`, because Alt changes the letter on a Mac.
    const button = { KeyN: "new-button", KeyS: "sessions-button", KeyA: "attach" }[event.code];
    if (!button || byId(button).hidden || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    byId(button).click();
  }

  /** @param {import("./clicks.js").Click} click */
  takeClick(click) {
    if (click.kind !== ATTACH && !this.#wantsPage) return false;
    this.attach(click.tabId);
    return true;
  }
}

/** Whether an input method is composing a character. @param {KeyboardEvent} event */
function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

function newSession() {
  return `chat-${crypto.randomUUID()}`;
}

function sessionInAddress() {
  return new URLSearchParams(location.hash.slice(1)).get("session") ?? undefined;
}

const settings = await loadSettings();
const panel = new Panel(settings);
await panel.connect(settings);
onSettingsChanged((changed) => panel.connect(changed));
const { id: windowId } = await chrome.windows.getCurrent();
if (windowId !== undefined) onClick(windowId, (click) => panel.takeClick(click));
