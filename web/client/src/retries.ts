/** Delays between retries, and waits that can be ended early. */

export interface Backoff {
  firstMs: number;
  longestMs: number;
  /** Random share of the delay, so that clients do not all retry at once. Default: 0.25 (±25 %). */
  jitter?: number;
}

/** Return the delay before the next retry. It doubles with each failure, up to `longestMs`. */
export function retryDelay({ firstMs, longestMs, jitter = 0.25 }: Backoff, failures: number): number {
  return Math.min(longestMs, firstMs * 2 ** failures) * (1 - jitter + 2 * jitter * Math.random());
}

/** A wait that ends after some time or when `end` is called. */
export class Pause {
  #end: () => void = () => {};

  /** Wait for `ms`, or until `end` is called. */
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
