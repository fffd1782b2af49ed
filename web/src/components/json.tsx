/** JSON with syntax colours. Never renders HTML. */

import type { ComponentChildren } from "preact";

const PIECES = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

export function JsonView({ value, label }: { value: unknown; label?: string }) {
  const text = JSON.stringify(value, null, 2) ?? "";
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const found of text.matchAll(PIECES)) {
    if (found.index > end) parts.push(text.slice(end, found.index));
    const [whole, quoted, colon, digits] = found;
    if (quoted !== undefined) {
      parts.push(<span class={colon ? "key" : "text"}>{quoted}</span>, colon ?? "");
    } else {
      parts.push(<span class={digits !== undefined ? "number" : "word"}>{whole}</span>);
    }
    end = found.index + whole.length;
  }
  parts.push(text.slice(end));
  return (
    <pre class="json" tabIndex={0} aria-label={label ?? "JSON"} role="region">
      {parts}
    </pre>
  );
}
