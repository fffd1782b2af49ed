/** The shell around all pages: navigation, connection state, theme, shortcuts, API key dialog. */

import { render, type ComponentType } from "preact";
import { computed, effect, signal } from "@preact/signals";
import { Dialog, Questions } from "./components/dialog";
import { IdentityMenu, SignIn } from "./components/identity";
import { Icon, type IconName } from "./components/icons";
import { Toasts } from "./components/toast";
import { credentialWanted, logins } from "./lib/credential";
import { shortcuts, useShortcuts } from "./lib/keys";
import { sendStored } from "./lib/outbox";
import { go, href, route, type Page } from "./lib/router";
import { connection } from "./lib/stream";
import { theme, type Theme } from "./lib/theme";
import icon from "./style/icon.svg";
import "./style/main.css";

interface PageModule {
  default: ComponentType;
}

// Each page is loaded on demand, so that none of them delays the first paint.
const pages: Record<Page, { name: string; icon: IconName; key: string; load: () => Promise<PageModule> }> = {
  chat: { name: "Chat", icon: "chat", key: "g c", load: () => import("./pages/chat") },
  board: { name: "Blackboard", icon: "board", key: "g b", load: () => import("./pages/board") },
  config: { name: "Config", icon: "config", key: "g f", load: () => import("./pages/config") },
  agents: { name: "Agents", icon: "spark", key: "g a", load: () => import("./pages/agents") },
  feedback: { name: "Feedback", icon: "thumbUp", key: "g k", load: () => import("./pages/feedback") },
  usage: { name: "Usage", icon: "usage", key: "g u", load: () => import("./pages/usage") },
  operations: { name: "Operations", icon: "operations", key: "g o", load: () => import("./pages/operations") },
};
const names = Object.keys(pages) as Page[];

/** Keys that are shown as a symbol in the list of shortcuts. */
const SYMBOLS: Record<string, string> = { ArrowUp: "↑", ArrowDown: "↓" };

const loaded = signal<Partial<Record<Page, ComponentType>>>({});
const failed = signal<string | null>(null);
const showKeys = signal(false);

const shownPage = computed(() => route.value.page);

effect(() => {
  const page = shownPage.value;
  document.title = `${pages[page].name} · Breadcrumbs`;
  if (loaded.value[page]) return;
  failed.value = null;
  pages[page].load().then(
    (module) => {
      loaded.value = { ...loaded.peek(), [page]: module.default };
    },
    () => {
      failed.value = "This page could not be loaded. The server may be down or may have been updated. Reload the page.";
    },
  );
});

function Shell() {
  const { page } = route.value;
  const Shown = loaded.value[page];
  // Without a credential, pages would only send requests that the server refuses.
  const wanted = credentialWanted.value;
  useShortcuts(
    [
      ...names.map((name) => ({
        keys: pages[name].key,
        what: pages[name].name,
        group: "Go to",
        run: () => go(href(name)),
      })),
      { keys: "?", what: "Show shortcuts", group: "Everywhere", run: () => (showKeys.value = true) },
    ],
    [],
  );
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault(); // the part after # is the route
          document.getElementById("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="bar">
        <a class="brand" href={href("chat")} aria-label="Breadcrumbs">
          <img src={icon} alt="" width="26" height="26" />
          <span class="name">Breadcrumbs</span>
        </a>
        <nav aria-label="Pages">
          {names.map((name) => (
            <a
              key={name}
              href={href(name)}
              aria-current={name === page ? "page" : undefined}
              aria-label={pages[name].name}
              title={pages[name].name}
            >
              <Icon name={pages[name].icon} />
              <span class="name">{pages[name].name}</span>
            </a>
          ))}
        </nav>
        <span class="grow" />
        <ConnectionState />
        <IdentityMenu />
        <ThemeButton />
        <button
          type="button"
          class="button bare square help-button"
          aria-label="Keyboard shortcuts"
          title="Keyboard shortcuts (?)"
          onClick={() => (showKeys.value = true)}
        >
          <Icon name="help" />
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {wanted !== null ? null : Shown ? (
          <Shown key={logins.value} />
        ) : (
          failed.value && <Failed text={failed.value} />
        )}
      </main>
      {showKeys.value && <Keys />}
      {wanted !== null && <SignIn />}
      <Questions />
      <Toasts />
    </>
  );
}

function Failed({ text }: { text: string }) {
  return (
    <div class="empty" role="alert">
      <Icon name="alert" />
      <p>{text}</p>
      <button type="button" class="button" onClick={() => location.reload()}>
        Reload page
      </button>
    </div>
  );
}

const CONNECTION_TEXTS = { idle: "", connecting: "Connecting …", open: "Live", lost: "Reconnecting …" };

function ConnectionState() {
  const state = connection.value;
  return (
    <span class={`connection ${state}`} role="status" title={CONNECTION_TEXTS[state]}>
      {state !== "idle" && (
        <>
          <span class="dot" />
          <span class="words">{CONNECTION_TEXTS[state]}</span>
        </>
      )}
    </span>
  );
}

const THEMES: Record<Theme, { next: Theme; icon: IconName; name: string }> = {
  system: { next: "light", icon: "system", name: "system" },
  light: { next: "dark", icon: "sun", name: "light" },
  dark: { next: "system", icon: "moon", name: "dark" },
};

function ThemeButton() {
  const { next, icon, name } = THEMES[theme.value];
  const label = `Theme: ${name}. Change to ${THEMES[next].name}`;
  return (
    <button
      type="button"
      class="button bare square theme-button"
      aria-label={label}
      title={label}
      onClick={() => (theme.value = next)}
    >
      <Icon name={icon} />
    </button>
  );
}

function Keys() {
  const groups = [...new Set(shortcuts.value.map((one) => one.group))];
  return (
    <Dialog title="Keyboard shortcuts" onClose={() => (showKeys.value = false)}>
      {groups.map((group) => (
        <section key={group}>
          <h3>{group}</h3>
          <dl class="keys">
            {shortcuts.value
              .filter((one) => one.group === group)
              .map((one) => (
                <>
                  <dt>
                    {one.keys.split(/ |(?<=\w)\+/).map((key) => (
                      <>
                        <kbd>{SYMBOLS[key] ?? key}</kbd>{" "}
                      </>
                    ))}
                  </dt>
                  <dd>{one.what}</dd>
                </>
              ))}
          </dl>
        </section>
      ))}
    </Dialog>
  );
}

sendStored();

const app = document.getElementById("app");
if (app) {
  app.replaceChildren();
  render(<Shell />, app);
}
