/** A tag such as `namespace:value`. It is a button if it has an action. */

interface TagProps {
  tag: string;
  onClick?: (tag: string) => void;
  on?: boolean;
}

export function Tag({ tag, onClick, on = false }: TagProps) {
  const colon = tag.indexOf(":");
  const text =
    colon < 0 ? (
      tag
    ) : (
      <>
        <span class="space">{tag.slice(0, colon + 1)}</span>
        {tag.slice(colon + 1)}
      </>
    );
  if (!onClick) return <span class={`tag ${on ? "on" : ""}`}>{text}</span>;
  return (
    <button type="button" class={`tag ${on ? "on" : ""}`} aria-pressed={on} onClick={() => onClick(tag)}>
      <span>{text}</span>
    </button>
  );
}
