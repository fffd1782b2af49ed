/** Icons on a 24 × 24 grid. They are decorative, so each needs a text or a label next to it. */

const PATHS = {
  chat: "M4 5h16v11H9l-5 4z",
  board: "M4 5h7v6H4zM13 5h7v10h-7zM4 13h7v6H4zM13 17h7v2h-7z",
  config: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  usage: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  operations: "M3 12h4l3-8 4 16 3-8h4",
  plus: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4 4",
  more: "M5 12.01V12M12 12.01V12M19 12.01V12",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  retry: "M4 12a8 8 0 1 0 2.5-5.8M4 4v4h4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  help: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.2 9.5a3 3 0 1 1 4.2 2.6c-.9.4-1.4.9-1.4 1.8M12 17h.01",
  menu: "M4 7h16M4 12h16M4 17h16",
  tool: "M14.5 6.5a4 4 0 0 0-5.3 5.1L4 16.8 7.2 20l5.2-5.2a4 4 0 0 0 5.1-5.3l-2.5 2.5-2.5-.5-.5-2.5z",
  alert: "M12 4l9 16H3zM12 10v4M12 17h.01",
  check: "M5 12.5l4.5 4.5L19 7.5",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4l3 2",
  fork: "M6 3.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 3.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM12 16.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM6 7.5V9a3 3 0 0 0 3 3h6a3 3 0 0 0 3-3V7.5M12 12v4.5",
  pencil: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  down: "M12 5v14M6 13l6 6 6-6",
  chevron: "M9 6l6 6-6 6",
  why: "M12 3a6.5 6.5 0 0 0-4 11.6V17h8v-2.4A6.5 6.5 0 0 0 12 3zM9 20h6",
  pause: "M8 6v12M16 6v12",
  play: "M8 5l11 7-11 7z",
  filter: "M4 5h16l-6 8v6l-4-2v-4z",
  key: "M14 10a4 4 0 1 0-3.5 4L4 20.5V21h3v-2h2v-2l2.5-2.6A4 4 0 0 0 14 10z",
  person: "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM4 20.5a8 8 0 0 1 16 0",
  layers: "M12 4l9 4.5-9 4.5-9-4.5zM3 12.5l9 4.5 9-4.5M3 16.5l9 4.5 9-4.5",
  spark: "M12 3l2.2 6.8L21 12l-6.8 2.2L12 21l-2.2-6.8L3 12l6.8-2.2z",
  crumb: "M12 6a6 6 0 1 0 0 12 6 6 0 0 0 0-12z",
  diff: "M12 4v10M7 9h10M7 19h10",
  minus: "M5 12h14",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  page: "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  thumbUp: "M4 11h4v9H4zM8 11l4-8a2.4 2.4 0 0 1 2.2 3.2L13.5 9H19a1.8 1.8 0 0 1 1.8 2.2l-1.5 7A2.2 2.2 0 0 1 17.2 20H8z",
  thumbDown: "M4 13h4V4H4zM8 13l4 8a2.4 2.4 0 0 0 2.2-3.2L13.5 15H19a1.8 1.8 0 0 0 1.8-2.2l-1.5-7A2.2 2.2 0 0 0 17.2 4H8z",
} as const;

const FILLED: ReadonlySet<string> = new Set(["stop", "play"]);

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} class={FILLED.has(name) ? "filled" : undefined} />
    </svg>
  );
}
