/** Scrolls to the message that the address names: `#/chat/<session>?message=<id>`. */

import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";
import { route } from "../../lib/router";
import type { Chat } from "./chat";
import type { Conversation } from "./conversation";

/** Older pages that are loaded at most to find the message. */
const MAX_PAGES = 100;
const WAIT_MS = 50;

/** Scroll `frame` to the message. `atEnd` is cleared, so that the view does not return to the newest message. */
export function useJump(
  conversation: Conversation,
  frame: RefObject<HTMLElement | null>,
  atEnd: { current: boolean },
): void {
  const wanted = route.value.query["message"];
  const isReady = conversation.state.value === "ready";
  useEffect(() => {
    if (wanted === undefined || !isReady) return undefined;
    let isClosed = false;
    void loadUntil(conversation, wanted, () => isClosed).then(() => {
      const element = frame.current?.querySelector<HTMLElement>(`[data-id="${CSS.escape(wanted)}"]`);
      if (isClosed || !element) return;
      atEnd.current = false;
      element.scrollIntoView({ block: "center" });
      element.classList.remove("found-message");
      void element.offsetWidth; // so that the animation starts again
      element.classList.add("found-message");
      element.tabIndex = -1;
      element.focus({ preventScroll: true });
    });
    return () => {
      isClosed = true;
    };
  }, [conversation, wanted, isReady]);
}

/**
 * Open the panel that explains the message, if the address asks for it: `#/chat/<session>?message=<id>&why=1`.
 * `why=replay` also scrolls to the section "Replay".
 */
export function useWhy(chat: Chat, conversation: Conversation): void {
  const { message: wanted, why } = route.value.query;
  const isReady = conversation.state.value === "ready";
  useEffect(() => {
    if (wanted === undefined || why === undefined || !isReady) return undefined;
    let isClosed = false;
    void loadUntil(conversation, wanted, () => isClosed).then(() => {
      const answer = conversation.messages.value.find((message) => message.id === wanted);
      if (!isClosed && answer?.role === "assistant") chat.why.value = answer;
    });
    return () => {
      isClosed = true;
    };
  }, [conversation, wanted, why, isReady]);
}

/** Load older messages until a message is loaded, then wait until it is rendered. */
async function loadUntil(conversation: Conversation, id: string, isClosed: () => boolean): Promise<void> {
  const isLoaded = () => conversation.messages.value.some((message) => message.id === id);
  for (let pages = 0; pages < MAX_PAGES && !isLoaded() && conversation.hasOlder.value && !isClosed(); pages += 1) {
    if (conversation.loadingOlder.value) await new Promise((done) => setTimeout(done, WAIT_MS));
    else await conversation.loadOlder();
  }
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}
