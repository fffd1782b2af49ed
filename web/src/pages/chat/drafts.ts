/** Unsent texts of the composer. They are stored per session and survive a reload. */

/** Move the draft of the start page into a session that was created without a message. */
export function moveDraftTo(session: string): void {
  keepDraft(session, draft(""));
  keepDraft("", "");
}

const key = (place: string) => `crumb.draft.${place}`;

export function draft(place: string): string {
  try {
    return localStorage.getItem(key(place)) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(place: string, text: string): void {
  try {
    if (text) localStorage.setItem(key(place), text);
    else localStorage.removeItem(key(place));
  } catch {
    // Storage can be disabled or full. The draft is lost on reload then.
  }
}
