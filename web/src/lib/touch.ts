/** Whether this device has only a touch screen. A device with a touch screen and a mouse or a trackpad is not meant. */
export function isTouchOnly(): boolean {
  return matchMedia("(any-pointer: coarse)").matches && !matchMedia("(any-pointer: fine)").matches;
}

/**
 * Whether a key press in a text field submits its text. On touch-only devices Enter inserts a new line. In Safari the
 * Enter that ends a composition has key code 229 and `isComposing` is already false.
 */
export function submitsText(event: KeyboardEvent): boolean {
  const composing = event.isComposing || event.keyCode === 229;
  const isEnter = event.key === "Enter" && !event.shiftKey && !composing;
  return isEnter && (event.ctrlKey || event.metaKey || !isTouchOnly());
}
