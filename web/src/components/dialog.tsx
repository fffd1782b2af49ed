/** Dialogs, built on the `dialog` element, which handles focus, Escape and the page behind it. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import { Icon } from "./icons";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  /** False if the user has to answer. */
  closable?: boolean;
}

export function Dialog({ title, onClose, children, closable = true }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const label = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={label}
      onCancel={(event) => {
        event.preventDefault();
        if (closable) onClose();
      }}
      // Browsers close the dialog at the second Escape even if `cancel` was prevented.
      onClose={() => (closable ? onClose() : element.current?.showModal())}
      onClick={(event) => {
        if (closable && event.target === element.current) onClose(); // a click on the backdrop
      }}
    >
      <div class="head">
        <h2 id={label}>{title}</h2>
        {closable && (
          <button type="button" class="button bare square" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        )}
      </div>
      <div class="body">{children}</div>
    </dialog>
  );
}

interface Question {
  title: string;
  text?: string;
  /** Label of the confirming button. */
  action: string;
  danger?: boolean;
  /** Initial text of the input field. Without it, there is no field. */
  value?: string;
  label?: string;
  answer: (given: string | null) => void;
}

const question = signal<Question | null>(null);

/** Ask for a confirmation. Return whether the user confirmed. */
export async function confirmed(asked: { title: string; text?: string; action: string; danger?: boolean }): Promise<boolean> {
  return (await ask(asked)) !== null;
}

/** Ask for a line of text. Return null if the user cancelled. */
export function ask(asked: Omit<Question, "answer">): Promise<string | null> {
  return new Promise((resolve) => {
    question.value?.answer(null);
    question.value = {
      ...asked,
      answer: (given) => {
        question.value = null;
        resolve(given);
      },
    };
  });
}

/** Shows the current question. Rendered once, in the shell. */
export function Questions() {
  const asked = question.value;
  const field = useRef<HTMLInputElement>(null);
  const id = useId();
  useEffect(() => {
    field.current?.select();
  }, [asked]);
  if (asked === null) return null;
  return (
    <Dialog title={asked.title} onClose={() => asked.answer(null)}>
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          asked.answer(field.current?.value.trim() ?? "");
        }}
      >
        {asked.text && <p class="soft">{asked.text}</p>}
        {asked.value !== undefined && (
          <>
            <label class="label" for={id}>
              {asked.label ?? asked.title}
            </label>
            <input ref={field} id={id} class="field" defaultValue={asked.value} maxLength={200} autoComplete="off" />
          </>
        )}
        <div class="actions">
          <button type="button" class="button" onClick={() => asked.answer(null)}>
            Cancel
          </button>
          <button type="submit" class={`button main ${asked.danger ? "danger" : ""}`}>
            {asked.action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
