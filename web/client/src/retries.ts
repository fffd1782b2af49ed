/** Delays between retries, and pauses that can be ended early. */

export interface Backoff {
  firstMs: number;
  longestMs: number;
  /** Share of the delay that is random, so that clients do not retry at the same moment. Default: 0.25 (±25 %). */
  jitter?: number;
}

/** Return the delay before the next retry: doubled with each failure, up to the longest. */
export function retryDelay({ firstMs, longestMs, jitter = 0.25 }: Backoff, failures: number): number {
  return Math.min(longestMs, firstMs * 2 ** failures) * (1 - jitter + 2 * jitter * Math.random());
}

/** Waits for a time, or until it is ended. */
export class Pause {
  #end: () => void = () => {};

  /** Wait for `ms`. Without it: until `end` is called. */
  wait(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#end = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  end(): void {
    this.#end();
  }
}
