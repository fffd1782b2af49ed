/** Errors of requests, with messages for the user. */

/** An RFC 9457 problem document. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail?: string;
  errors?: { where?: string; message?: string; [more: string]: unknown }[];
  current_version?: number;
  [more: string]: unknown;
}

/** Why a request failed. `describeFailure` turns it into a message. */
export interface Failure {
  /**
   * `unreachable`: no connection. `timeout`: no reply in time. `refused`: the server replied with an error.
   * `malformed`: the reply does not come from a Breadcrumbs server.
   */
  kind: "unreachable" | "timeout" | "refused" | "malformed";
  /** Address of the server, or empty for the origin of the page. */
  server: string;
  /** HTTP status, or 0 without a reply. */
  status: number;
  statusText: string;
  problem?: Problem;
  /** Seconds to wait, from the `Retry-After` header. */
  retryAfter?: number;
}

const MALFORMED_STATUS = 406;

export class ApiError extends Error {
  readonly failure: Failure;

  constructor(message: string, failure: Failure) {
    super(message);
    this.name = "ApiError";
    this.failure = failure;
  }

  /** HTTP status. 0 without a reply, 406 also for a malformed reply. */
  get status(): number {
    return this.failure.kind === "malformed" ? MALFORMED_STATUS : this.failure.status;
  }

  get problem(): Problem | undefined {
    return this.failure.problem;
  }

  /** Seconds to wait, from the `Retry-After` header. */
  get retryAfter(): number | undefined {
    return this.failure.retryAfter;
  }

  /** Whether the same request can succeed later. */
  get isRetryable(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** Describe a failure in one sentence. */
export function describeFailure({ kind, status, problem }: Failure): string {
  switch (kind) {
    case "unreachable":
      return "The server cannot be reached.";
    case "timeout":
      return "The server does not respond.";
    case "malformed":
      return "The reply is not from a Breadcrumbs server.";
    case "refused":
      return sentence(problem?.detail ?? problem?.title ?? `The server replied with status ${status}.`);
  }
}

/** Read the reason why the server refused a request. */
export async function readRefusal(server: string, response: Response): Promise<Failure> {
  const retryAfter = Number(response.headers.get("retry-after")) || undefined;
  const problem = await readProblem(response);
  return {
    kind: "refused",
    server,
    status: response.status,
    statusText: response.statusText,
    ...(problem && { problem }),
    ...(retryAfter && { retryAfter }),
  };
}

async function readProblem(response: Response): Promise<Problem | undefined> {
  try {
    const document: unknown = await response.json();
    return typeof document === "object" && document !== null ? (document as Problem) : undefined;
  } catch {
    return undefined; // not JSON: probably the reply of a proxy
  }
}

/** Return the message of any thrown value. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** A first word that may get a capital letter. URLs, names of fields and model names must stay as they are. */
const PLAIN_WORD = /^\p{Ll}[\p{L}'’-]*[,;:.!?)]*(?=\s|$)/u;

/** Return the text with a capital letter at the start and a full stop at the end. */
export function sentence(text: string): string {
  const first = PLAIN_WORD.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}
