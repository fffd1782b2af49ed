/** An error or a warning about a JSON text, with its position. */
export interface Finding {
  line: number;
  column: number;
  /** Path of the value, such as `sources[0].key`. */
  where: string;
  message: string;
}

/** Result of a check of a JSON text. */
export interface Findings {
  /** The checked text. Empty before the first check. */
  text: string;
  complaints: readonly Finding[];
  warnings: readonly Finding[];
  /** Reason why the check failed, for example without a connection. */
  unknown?: string;
}

/** Values that exist in the store and the agents, offered as completions. */
export interface KnownValues {
  schemas: string[];
  tags: string[];
  consumers: string[];
}
