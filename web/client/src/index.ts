/** Client for a Breadcrumbs server. Needs `fetch` and web streams, but no framework. */

// Requests
export { Client, withQuery, type ClientOptions, type Query, type RequestOptions } from "./client.ts";
export { ApiError, describeFailure, messageOf, sentence, type Failure, type Problem } from "./errors.ts";
export { newId } from "./ids.ts";
export type { Json, JsonObject } from "./json.ts";
export { tokenClaims } from "./tokens.ts";

// Resources
export {
  Breadcrumbs,
  type Breadcrumb,
  type BreadcrumbQuery,
  type BreadcrumbVersion,
  type CreatedBreadcrumb,
  type NewBreadcrumb,
} from "./breadcrumbs.ts";
export {
  MAX_NOTE_LENGTH,
  Ratings,
  type Feedback,
  type FeedbackCounts,
  type FeedbackPage,
  type FeedbackQuery,
  type Rating,
  type RatingCount,
} from "./feedback.ts";
export { Sessions, type ForkRequest, type Message, type MessageMatch, type MessagePage, type SearchPage, type Session, type SessionPage } from "./sessions.ts";
export {
  readAllMessages,
  transcriptAsJson,
  transcriptAsMarkdown,
  transcriptName,
} from "./transcript.ts";

// Event stream
export { SseParser, type ServerSentEvent } from "./sse.ts";
export {
  EventStream,
  type AnswerDelta,
  type BreadcrumbEvent,
  type RetryNotice,
  type StreamHandlers,
  type StreamOptions,
  type StreamQuery,
  type StreamState,
  type StreamStatus,
} from "./stream.ts";
export { retryDelay, type Backoff } from "./retries.ts";

// Outbox
export {
  isKeyExpired,
  Outbox,
  type OutboxEntry,
  type OutboxMarks,
  type OutboxOptions,
  type OutboxStorage,
} from "./outbox.ts";

// Markdown
export {
  parseMarkdown,
  safeAddress,
  splitMarkdown,
  type Alignment,
  type Block,
  type Inline,
  type Item,
  type Link,
} from "./markdown.ts";
export { renderMarkdown, type ElementFactory } from "./markdown-elements.ts";
export { highlight, MAX_HIGHLIGHTED_LENGTH, type Token, type TokenKind } from "./highlight.ts";
export { parseTex, type MathElement } from "./tex.ts";
