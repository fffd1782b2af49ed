/** Whether this device has only a touch screen. A device with a touch screen and a mouse or a trackpad is not meant. */
export function isTouchOnly(): boolean {
  return matchMedia("(any-pointer: coarse)").matches && !matchMedia("(any-pointer: fine)").matches;
}
