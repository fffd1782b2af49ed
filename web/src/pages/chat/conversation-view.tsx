/** Messages of a session, with answers in progress and unsent messages. */

import type { ComponentChild } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { signal, useSignal } from "@preact/signals";
import { sentence, type Message } from "@breadcrumbs/client";
import { Icon } from "../../components/icons";
import { Markdown } from "../../components/markdown";
import { Menu } from "../../components/menu";
import { Time } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { confined, lacking } from "../../lib/credential";
import { dayName, shortened, time } from "../../lib/format";
import type { Unsent } from "../../lib/outbox";
import { fork, sessionActions, setActive } from "./actions";
import { AgentPicker } from "./agent-picker";
import { EditButton, MessageEditor, RegenerateButton } from "./answer-again";
import { PageChips } from "./attached-pages";
import type { Chat } from "./chat";
import type { Conversation, Draft, Progress } from "./conversation";
import { FeedbackNote, RatingButtons } from "./feedback";
import { ForkNotice } from "./fork-notice";
import { useJump, useWhy } from "./jump";
import { handedOverBy, isTriggeredIn, wasCancelled, type Turn } from "./message";
import { AnswerModel, ModelPicker } from "./model-picker";
import { Reasoning, reasoningOf, RetryView } from "./progress";
import type { SessionFeedback } from "./session-feedback";
import { nameOf } from "./session-list";
import { Stalled, Thinking } from "./thinking";
import { ToolCall } from "./tool-call";
import { Welcome } from "./welcome";

interface Props {
  chat: Chat;
  conversation: Conversation | null;
}

export function ConversationView({ chat, conversation }: Props) {
  return (
    <>
      <Head chat={chat} conversation={conversation} />
      {conversation && <ForkNotice chat={chat} conversation={conversation} />}
      {conversation === null ? <Welcome chat={chat} /> : <Body chat={chat} conversation={conversation} />}
    </>
  );
}

function Head({ chat, conversation }: Props) {
  const session = conversation ? chat.list.get(conversation.id) : undefined;
  return (
    <header class="chat-head">
      <button
        type="button"
        class="button bare square chat-burger"
        aria-label="Show sessions"
        aria-controls="sessions"
        aria-expanded={chat.listShown.value}
        onClick={() => (chat.listShown.value = true)}
      >
        <Icon name="menu" />
      </button>
      <h1 class="chat-title">{nameOf(session)}</h1>
      <AgentPicker chat={chat} id={conversation?.id} session={session} />
      <ModelPicker chat={chat} id={conversation?.id} session={session} />
      {session && <Menu label="Session actions" actions={sessionActions(chat, session)} />}
    </header>
  );
}

/** Within this distance from the end, the view follows new messages. */
const NEAR_END_PX = 80;

function Body({ chat, conversation }: { chat: Chat; conversation: Conversation }) {
  const frame = useRef<HTMLDivElement>(null);
  const top = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const height = useRef(0);
  const first = useRef<string | undefined>(undefined);
  const away = useRef(signal(false)).current;

  const messages = conversation.messages.value;
  const unsent = conversation.shownUnsent.value;
  const state = conversation.state.value;
  const session = chat.list.get(conversation.id);

  const toEnd = () => {
    if (frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  };

  // Scroll to a message that the user has just sent.
  useEffect(() => {
    if (unsent.length === 0) return;
    atEnd.current = true;
    toEnd();
  }, [unsent.length]);

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const older = first.current !== undefined && messages[0]?.id !== first.current && !atEnd.current;
    if (atEnd.current) element.scrollTop = element.scrollHeight;
    else if (older) element.scrollTop += element.scrollHeight - height.current; // keep the position
    first.current = messages[0]?.id;
    height.current = element.scrollHeight;
  });

  // Fonts and streamed text change the height without a new message.
  useEffect(() => {
    const element = frame.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => {
      if (atEnd.current) toEnd();
    });
    for (const child of element.children) observer.observe(child);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!top.current || state !== "ready") return undefined;
    const observer = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) void conversation.loadOlder();
      },
      { root: frame.current, rootMargin: "400px 0px 0px" },
    );
    observer.observe(top.current);
    return () => observer.disconnect();
  }, [conversation, state, messages[0]?.id]);

  useJump(conversation, frame, atEnd);
  useWhy(chat, conversation);

  const onScroll = () => {
    const element = frame.current;
    if (!element) return;
    atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    away.value = !atEnd.current;
    height.current = element.scrollHeight;
  };

  return (
    <div class="chat-scroll">
      <div class="chat-frame" ref={frame} onScroll={onScroll} tabIndex={0} role="region" aria-label="Messages">
        <div class="chat-column">
          <div ref={top} class="chat-top">
            {conversation.loadingOlder.value && <span class="spinner" role="status" aria-label="Loading older messages" />}
          </div>
          {state === "loading" && <LoadingMessages />}
          {state === "failed" && (
            <div class="notice bad" role="alert">
              <Icon name="alert" />
              <span class="grow">{conversation.problem.value}</span>
              <button type="button" class="button tiny" onClick={() => void conversation.load()}>
                Retry
              </button>
            </div>
          )}
          {state === "ready" && messages.length === 0 && unsent.length === 0 && (
            <p class="chat-nothing soft">No messages yet.</p>
          )}
          <Turns chat={chat} conversation={conversation} />
          <PageChips pages={conversation.pages.of(undefined, messages)} />
          {unsent.map((one) => (
            <UnsentMessage key={one.key} conversation={conversation} unsent={one} />
          ))}
          {session && !session.active && (
            <div class="notice warn">
              <Icon name="pause" />
              <span class="grow">This session is paused. Agents do not answer.</span>
              <button
                type="button"
                class="button tiny"
                disabled={lacking("emitter") !== undefined}
                title={lacking("emitter")}
                onClick={() => void setActive(chat, session.id, true)}
              >
                Resume
              </button>
            </div>
          )}
        </div>
      </div>
      {away.value && (
        <div class="chat-down">
          <button
            type="button"
            class="button tiny"
            onClick={() => {
              atEnd.current = true;
              toEnd();
            }}
          >
            <Icon name="down" /> Scroll down
          </button>
        </div>
      )}
      <Announcer conversation={conversation} />
    </div>
  );
}

function Turns({ chat, conversation }: { chat: Chat; conversation: Conversation }) {
  const turns = conversation.turns.value;
  const progress = conversation.progress.value;
  const paused = chat.list.get(conversation.id)?.active === false;
  let day = "";
  return (
    <>
      {turns.map((turn) => {
        const begin = turn.message ?? turn.steps.flatMap((step) => (step.kind === "message" ? step.message : []))[0];
        const today = begin ? dayName(begin.created_at) : day;
        const divider = today !== day;
        day = today;
        return (
          <div key={turn.id} class="turn">
            {divider && (
              <p class="day">
                <span>{today}</span>
              </p>
            )}
            <TurnView
              chat={chat}
              conversation={conversation}
              turn={turn}
              progress={paused ? undefined : progress.get(turn.id)}
            />
          </div>
        );
      })}
      <Drafts conversation={conversation} wanted={(draft) => !turns.some((turn) => isTriggeredIn(turn, draft.trigger))} />
    </>
  );
}

interface TurnProps {
  chat: Chat;
  conversation: Conversation;
  turn: Turn;
  progress: Progress | undefined;
}

function TurnView({ chat, conversation, turn, progress }: TurnProps) {
  const answered = turn.steps.findLast((step) => step.kind === "message" && step.message.role === "assistant");
  return (
    <>
      {turn.message && <PageChips pages={conversation.pages.of(turn.message, conversation.messages.value)} />}
      {turn.message && <UserMessage chat={chat} message={turn.message} queued={progress === "queued"} />}
      {turn.steps.map((step) =>
        step.kind === "tool" ? (
          <ToolCall key={step.id} use={step} running={progress === "answering"} />
        ) : step.message.role === "error" ? (
          <ErrorMessage
            key={step.message.id}
            conversation={conversation}
            message={step.message}
            over={answered !== undefined || progress !== undefined}
          />
        ) : (
          <>
            <HandOver turn={turn} message={step.message} />
            <Answer
              key={step.message.id}
              chat={chat}
              feedback={conversation.feedback}
              message={step.message}
              question={turn.message}
            />
          </>
        ),
      )}
      <Drafts
        conversation={conversation}
        wanted={(draft) => isTriggeredIn(turn, draft.trigger)}
        fallback={progress === "answering" ? <Thinking agent={chat.list.get(conversation.id)?.agent} /> : null}
      />
    </>
  );
}

/** Tells that the answer of one agent was passed on to another one. */
function HandOver({ turn, message }: { turn: Turn; message: Message }) {
  const before = handedOverBy(turn, message);
  if (!before) return null;
  return (
    <p class="handover small soft">
      <Icon name="fork" /> {before.agent_id ?? "The agent"} handed over to {message.agent_id ?? "another agent"}
    </p>
  );
}

interface DraftsProps {
  conversation: Conversation;
  wanted: (draft: Draft) => boolean;
  fallback?: ComponentChild;
}

/** Answers in progress. A separate component, so that a delta does not render the whole conversation again. */
function Drafts({ conversation, wanted, fallback = null }: DraftsProps) {
  const drafts = conversation.drafts.value.filter(wanted);
  return drafts.length ? (
    <>
      {drafts.map((draft) => (
        <DraftView key={draft.id} draft={draft} />
      ))}
    </>
  ) : (
    <>{fallback}</>
  );
}

function UserMessage({ chat, message, queued }: { chat: Chat; message: Message; queued: boolean }) {
  const editing = useSignal(false);
  return (
    <article class="said user" aria-label="You" data-id={message.id}>
      {editing.value ? (
        <MessageEditor chat={chat} message={message} onClose={() => (editing.value = false)} />
      ) : (
        <div class="bubble">{message.text}</div>
      )}
      <footer>
        {queued && (
          <span class="badge info" title="The agent will answer after the previous message.">
            Queued
          </span>
        )}
        <CopyButton text={message.text} />
        <EditButton editing={editing} />
        <ForkButton chat={chat} message={message} />
        <span class="facts">
          <Time iso={message.created_at}>{time(message.created_at)}</Time>
        </span>
      </footer>
    </article>
  );
}

interface AnswerProps {
  chat: Chat;
  feedback: SessionFeedback;
  message: Message;
  question: Message | undefined;
}

function Answer({ chat, feedback, message, question }: AnswerProps) {
  const noting = useSignal(false);
  return (
    <article class="said agent" aria-label="Answer" data-id={message.id}>
      <Reasoning text={reasoningOf(message.context)} />
      <Markdown text={message.text} />
      <footer>
        <button
          type="button"
          class="button bare tiny"
          aria-pressed={chat.why.value?.id === message.id}
          onClick={() => (chat.why.value = chat.why.value?.id === message.id ? null : message)}
        >
          <Icon name="why" /> Why this answer?
        </button>
        <CopyButton text={message.text} />
        {question && <RegenerateButton chat={chat} question={question} />}
        <ForkButton chat={chat} message={message} />
        <RatingButtons feedback={feedback} message={message} noting={noting} />
        <span class="facts">
          {message.agent_id && <span>{message.agent_id}</span>}
          <AnswerModel message={message} />
          <Time iso={message.created_at}>{time(message.created_at)}</Time>
        </span>
      </footer>
      <FeedbackNote feedback={feedback} message={message} noting={noting} />
    </article>
  );
}

function ErrorMessage({
  conversation,
  message,
  over,
}: {
  conversation: Conversation;
  message: Message;
  over: boolean;
}) {
  const stopped = wasCancelled(message);
  const busy = useRef(signal(false)).current;
  const again = async () => {
    busy.value = true;
    await attempt("Retry failed", () => conversation.retry(message));
    busy.value = false;
  };
  return (
    <article class="said agent" aria-label={stopped ? "Stopped" : "Error"} data-id={message.id}>
      <div class={`notice ${stopped || over ? "" : "bad"}`}>
        <Icon name={stopped ? "stop" : "alert"} />
        <span class="grow">
          <strong>{stopped ? "Stopped." : "No answer."}</strong> {!stopped && sentence(message.text)}
        </span>
        {!over && (
          <button
            type="button"
            class="button tiny"
            disabled={busy.value || lacking("emitter") !== undefined}
            title={lacking("emitter")}
            onClick={() => void again()}
          >
            <Icon name="retry" /> Retry
          </button>
        )}
      </div>
    </article>
  );
}

function DraftView({ draft }: { draft: Draft }) {
  return (
    <article class="said agent draft" aria-label="Answer in progress" aria-busy="true">
      <Reasoning text={draft.reasoning} running={!draft.text} />
      {draft.text && <Markdown text={draft.text} />}
      {draft.notice ? <RetryView notice={draft.notice} /> : !draft.text && <Thinking />}
      {(draft.notice || draft.text) && <Stalled draft={draft} />}
    </article>
  );
}

function UnsentMessage({ conversation, unsent }: { conversation: Conversation; unsent: Unsent }) {
  return (
    <article class={`said user unsent ${unsent.state}`} aria-label="Your unsent message">
      <div class="bubble">{unsent.text}</div>
      <footer>
        {unsent.state === "sending" && <span>Sending …</span>}
        {unsent.state === "waiting" && <span class="problem">{unsent.problem} Retrying automatically.</span>}
        {unsent.state === "refused" && (
          <>
            <span class="problem" role="alert">
              Not sent. {unsent.problem}
            </span>
            <button type="button" class="button tiny" onClick={() => conversation.resend(unsent.key)}>
              <Icon name="retry" /> Retry
            </button>
            <button type="button" class="button tiny bare" onClick={() => conversation.discard(unsent.key)}>
              Discard
            </button>
          </>
        )}
      </footer>
    </article>
  );
}

function CopyButton({ text }: { text: string }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("Copying failed: the browser denied access to the clipboard.", true);
    }
  };
  return (
    <button type="button" class="button bare tiny square quiet" aria-label="Copy" title="Copy" onClick={() => void copy()}>
      <Icon name="copy" />
    </button>
  );
}

function ForkButton({ chat, message }: { chat: Chat; message: Message }) {
  const label = "Fork from here";
  const id = chat.open.value?.id;
  const refused = lacking("emitter") ?? confined();
  return (
    <button
      type="button"
      class="button bare tiny square quiet"
      aria-label={label}
      title={refused ?? label}
      disabled={refused !== undefined}
      onClick={() => id !== undefined && void fork(chat, id, message.id)}
    >
      <Icon name="fork" />
    </button>
  );
}

/** Announces finished answers to screen readers. Deltas are not announced, because they would be read in pieces. */
function Announcer({ conversation }: { conversation: Conversation }) {
  const news = conversation.news.value;
  return (
    <p class="unseen" aria-live="polite">
      {/* A new element for each answer, so that the same text twice in a row is read twice. */}
      {news && <span key={news.id}>{`${news.role === "error" ? "Error" : "Answer"}: ${shortened(news.text, 300)}`}</span>}
    </p>
  );
}

function LoadingMessages() {
  return (
    <div class="chat-ghosts" aria-busy="true">
      <span class="unseen" role="status">
        Loading messages
      </span>
      <div class="ghost right" style={{ width: "40%" }} />
      <div class="ghost" style={{ width: "75%" }} />
      <div class="ghost" style={{ width: "60%" }} />
    </div>
  );
}
