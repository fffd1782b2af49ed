/** Versions of a breadcrumb, and the changes between two of them. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { Time } from "../../components/time";
import { dayName, plural, timeWithSeconds } from "../../lib/format";
import { client } from "../../lib/server";
import { diffLines, folded } from "./diff";

export interface Version {
  version: number;
  title: string;
  schema_name?: string;
  tags: string[];
  context?: Record<string, unknown>;
  updated_at: string;
}

/** Load all versions. Loads them again when `newest` changes. */
export function useHistory(id: string, newest: number): { versions: Version[] | undefined; problem: string } {
  const [found, setFound] = useState<{ id: string; versions: Version[] }>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    setProblem("");
    client.breadcrumbs.history(id, abort.signal).then(
      (versions) => setFound({ id, versions: versions as unknown as Version[] }),
      (error: unknown) => !abort.signal.aborted && setProblem(messageOf(error)),
    );
    return () => abort.abort();
  }, [id, newest]);
  return { versions: found?.id === id ? found.versions : undefined, problem };
}

export function Versions({ id, newest, wanted }: { id: string; newest: number; wanted: number | undefined }) {
  const { versions, problem } = useHistory(id, newest);
  const [chosen, setChosen] = useState<number | undefined>(wanted);
  const [base, setBase] = useState<number>();
  useEffect(() => {
    setChosen(wanted);
    setBase(undefined);
  }, [id, wanted]);
  if (problem) return <p class="notice bad">{problem}</p>;
  if (!versions) return <p class="soft">Loading …</p>;
  const after = versions.find((one) => one.version === chosen) ?? versions[0];
  const earlier = versions.filter((one) => after && one.version < after.version);
  const before = earlier.find((one) => one.version === base) ?? earlier[0];
  return (
    <div class="board-versions">
      {versions.length === 1 && <p class="soft small">This breadcrumb was never changed.</p>}
      <fieldset class="board-version-list">
        <legend class="label">{plural(versions.length, "version")}</legend>
        {versions.map((one) => (
          <label key={one.version} class={one === after ? "on" : ""}>
            <input
              type="radio"
              name="board-version"
              checked={one === after}
              onChange={() => {
                setChosen(one.version);
                setBase(undefined);
              }}
            />
            <span class="mono">v{one.version}</span>
            <span class="soft small grow">
              <Time iso={one.updated_at}>{`${dayName(one.updated_at)}, ${timeWithSeconds(one.updated_at)}`}</Time>
            </span>
          </label>
        ))}
      </fieldset>
      {after && before && (
        <>
          <div class="board-compare">
            <span>
              Changes in <span class="mono">v{after.version}</span>, compared with
            </span>
            <select
              class="field"
              aria-label="Compare with version"
              value={String(before.version)}
              onChange={(event) => setBase(Number(event.currentTarget.value))}
            >
              {earlier.map((one) => (
                <option key={one.version} value={String(one.version)}>
                  v{one.version}
                </option>
              ))}
            </select>
          </div>
          {onlyReferences(before) !== onlyReferences(after) && (
            <p class="notice">
              Only the newest version of a context contains the text that the model got. Older versions contain
              references, from which the text can be rebuilt.
            </p>
          )}
          <Diff before={before} after={after} />
        </>
      )}
    </div>
  );
}

function onlyReferences(version: Version): boolean {
  const { context } = version;
  return context !== undefined && "as_of" in context && !("parts" in context);
}

/** Return the editable fields as JSON, in a fixed order. */
function written(version: Version): string {
  const { title, schema_name, tags, context } = version;
  return JSON.stringify({ title, schema_name, tags, context }, null, 2);
}

function Diff({ before, after }: { before: Version; after: Version }) {
  const pieces = useMemo(() => folded(diffLines(written(before), written(after))), [before, after]);
  const counted = pieces.flatMap((piece) => ("lines" in piece ? piece.lines : []));
  const added = counted.filter((line) => line.sign === "+").length;
  const removed = counted.filter((line) => line.sign === "-").length;
  if (added + removed === 0) return <p class="soft small">No changes except the time.</p>;
  return (
    <>
      <p class="small">
        <span class="board-added">+{plural(added, "line")}</span> <span class="board-removed">−{plural(removed, "line")}</span>
      </p>
      <div class="board-diff" role="region" tabIndex={0} aria-label={`Changes from version ${before.version} to ${after.version}`}>
        {pieces.map((piece, at) =>
          "skipped" in piece ? (
            <div key={at} class="board-skipped">
              {plural(piece.skipped, "unchanged line")}
            </div>
          ) : (
            piece.lines.map((line, place) => (
              <div key={`${at}.${place}`} class={line.sign === "+" ? "plus" : line.sign === "-" ? "minus" : "same"}>
                <span class="board-sign">{line.sign === "-" ? "−" : line.sign}</span>
                {line.sign !== " " && <span class="unseen">{line.sign === "+" ? "added: " : "removed: "}</span>}
                <span>{line.text}</span>
              </div>
            ))
          ),
        )}
      </div>
    </>
  );
}
