/** Errors of requests. Each has a message that can be shown to people. */

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

/** Why a request failed, for the code that words the message. */
export interface Failure {
  /**
   * `unreachable`: there is no connection. `timeout`: there was no answer in time. `refused`: the server answered
   * with an error. `malformed`: the answer is not one of a Breadcrumbs server.
   */
  kind: "unreachable" | "timeout" | "refused" | "malformed";
  /** Address of the server; empty for the origin of the page. */
  server: string;
  /** HTTP status; 0 where there was no answer. */
  status: number;
  statusText: string;
  problem?: Problem;
  /** Seconds that the server asked to wait. */
  retryAfter?: number;
}

const STATUS_OF_MALFORMED = 406;

export class ApiError extends Error {
  readonly failure: Failure;

  constructor(message: string, failure: Failure) {
    super(message);
    this.name = "ApiError";
    this.failure = failure;
  }

  /** HTTP status. 0: there was no answer. 406 also stands for an answer that makes no sense. */
  get status(): number {
    return this.failure.kind === "malformed" ? STATUS_OF_MALFORMED : this.failure.status;
  }

  get problem(): Problem | undefined {
    return this.failure.problem;
  }

  /** Seconds that the server asked to wait. */
  get retryAfter(): number | undefined {
    return this.failure.retryAfter;
  }

  /** Whether the same request may succeed later. */
  get isRetryable(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** Word a failure in one sentence. */
export function describeFailure({ kind, status, problem }: Failure): string {
  switch (kind) {
    case "unreachable":
      return "The server cannot be reached.";
    case "timeout":
      return "The server does not answer.";
    case "malformed":
      return "The answer is not from a Breadcrumbs server.";
    case "refused":
      return sentence(problem?.detail ?? problem?.title ?? `The server answered ${status}.`);
  }
}

/** Read why the server refused a request. */
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
    return undefined; // an answer of a proxy
  }
}

/** Return the text to show for anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Begin with a capital letter and end with a full stop. */
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}
