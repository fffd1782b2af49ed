/** A button that opens a menu of actions. The menu is a popover, so that no parent element clips it. */

import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icons";

export interface Action {
  name: string;
  icon: IconName;
  run: () => void;
  danger?: boolean;
  /** Reason why the action is disabled. */
  disabled?: string | undefined;
}

interface MenuProps {
  label: string;
  actions: readonly Action[];
  icon?: IconName;
  /** Classes of the button. */
  look?: string;
  /** Text above the actions. */
  children?: ComponentChildren;
}

export function Menu({ label, actions, icon = "more", look = "tiny", children }: MenuProps) {
  const button = useRef<HTMLButtonElement>(null);
  const sheet = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);
  const id = useId();

  useLayoutEffect(() => {
    if (!open || !button.current || !sheet.current) return;
    const from = button.current.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = sheet.current;
    const below = from.bottom + 4 + offsetHeight < window.innerHeight;
    const left = Math.max(8, Math.min(from.right - offsetWidth, window.innerWidth - offsetWidth - 8));
    sheet.current.style.left = `${left}px`;
    sheet.current.style.top = `${Math.max(8, below ? from.bottom + 4 : from.top - offsetHeight - 4)}px`;
    items()[0]?.focus();
  }, [open]);

  const items = () => [...(sheet.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];

  const onKeyDown = (event: KeyboardEvent) => {
    const all = items();
    const here = all.indexOf(document.activeElement as HTMLElement);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) {
      if (event.key === "Tab") sheet.current?.hidePopover();
      return;
    }
    event.preventDefault();
    all[(to + all.length) % all.length]?.focus();
  };

  return (
    <span class="menu">
      <button
        ref={button}
        type="button"
        class={`button bare square ${look}`}
        aria-label={label}
        title={label}
        aria-haspopup="menu"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        onClick={(event) => {
          event.preventDefault();
          event.stopPropagation();
          sheet.current?.togglePopover();
        }}
      >
        <Icon name={icon} />
      </button>
      <div
        ref={sheet}
        id={id}
        class="sheet"
        popover="auto"
        onKeyDown={onKeyDown}
        onToggle={(event) => {
          setOpen(event.newState === "open");
        }}
      >
        {open && children && <div class="sheet-text">{children}</div>}
        {open && (
          <div class="sheet-items" role="menu" aria-label={label}>
            {actions.map((action) => (
              <button
                key={action.name}
                type="button"
                role="menuitem"
                tabIndex={-1}
                class={`button bare ${action.danger ? "danger" : ""}`}
                aria-disabled={action.disabled !== undefined}
                title={action.disabled}
                onClick={() => {
                  if (action.disabled !== undefined) return;
                  sheet.current?.hidePopover();
                  button.current?.focus();
                  action.run();
                }}
              >
                <Icon name={action.icon} /> {action.name}
              </button>
            ))}
          </div>
        )}
      </div>
    </span>
  );
}
