/** History of the context configs: list, difference from the config in force, and rollback. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { messageOf } from "@breadcrumbs/client";
import { confirmed } from "../../components/dialog";
import { Icon } from "../../components/icons";
import { Time } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { contexts, formatJson, type ConfigLogEntry, type PastConfig } from "../../lib/contexts";
import { lacking, narrowed } from "../../lib/credential";
import { dayName, timeWithSeconds } from "../../lib/format";
import { go, href, route } from "../../lib/router";
import { diffLines } from "./line-diff";
import { load } from "./state";
import "./history.css";

/** The part of the address that shows the history. Keys of configs are other names. */
export const HISTORY = "history";

const SHOWN = 200;
const MIN_DIGEST = 4;

export function History() {
  const [log, setLog] = useState<ConfigLogEntry[]>();
  const [failed, setFailed] = useState("");
  const [chosen, setChosen] = useState<ConfigLogEntry>();
  const read = async () => {
    try {
      setFailed("");
      setLog(await contexts.log());
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  useEffect(() => void read(), []);
  // Other pages link to a config by its digest. A choice in the list replaces the address.
  const { query } = route.value;
  const linked = query["digest"];
  const found = linked === undefined ? undefined : log?.find((one) => isSame(one.digest, linked));
  const entry = chosen ?? found ?? log?.find((one) => !one.in_force) ?? log?.[0];
  const choose = (one: ConfigLogEntry) => {
    setChosen(one);
    go(href("config", [HISTORY], { ...query, digest: one.digest }), true);
  };
  useEffect(() => {
    setChosen((one) => (one && linked !== undefined && isSame(one.digest, linked) ? one : undefined));
  }, [linked]);
  return (
    <section class="history" aria-labelledby="history-title" tabIndex={-1}>
      <header class="history-head">
        <h2 id="history-title">History</h2>
        <p class="small soft">
          The configs that were in force. A config is listed after the first message that used it.
        </p>
      </header>
      {log !== undefined && linked !== undefined && !found && (
        <p class="notice warn" role="alert">
          <Icon name="alert" /> The history has no config with the digest {linked.slice(0, 16)}.
        </p>
      )}
      {failed ? (
        <p class="notice bad" role="alert">
          <Icon name="alert" /> {failed}{" "}
          <button type="button" class="button tiny" onClick={() => void read()}>
            Retry
          </button>
        </p>
      ) : log === undefined ? (
        <div aria-busy="true" />
      ) : entry === undefined ? (
        <p class="history-none soft">No config was used yet. Send a message first.</p>
      ) : (
        <div class="history-body">
          <ol class="history-list" aria-label="Configs, the newest first">
            {log.slice(0, SHOWN).map((one) => (
              <li key={`${one.at} ${one.consumer_id}`}>
                <button type="button" aria-pressed={one === entry} onClick={() => choose(one)}>
                  <span class="history-line">
                    <Time iso={one.at}>{`${dayName(one.at)}, ${timeWithSeconds(one.at)}`}</Time>
                    {one.in_force && <span class="badge good">in force</span>}
                  </span>
                  <span class="history-line">
                    <span class="history-consumer">{one.consumer_id}</span>
                    <span class="mono soft">{one.digest.slice(0, 8)}</span>
                  </span>
                  <span class="history-source soft">{sourceInWords(one.source)}</span>
                </button>
              </li>
            ))}
            {log.length > SHOWN && <li class="small soft">{log.length - SHOWN} older entries are not shown.</li>}
          </ol>
          <Difference
            entry={entry}
            current={log.find((one) => one.in_force && one.consumer_id === entry.consumer_id)}
            onRolledBack={() => {
              setChosen(undefined);
              void read();
            }}
          />
        </div>
      )}
    </section>
  );
}

/** Return whether two digests are equal. One of them can be shortened. */
function isSame(one: string, other: string): boolean {
  return other.length >= MIN_DIGEST && (one.startsWith(other) || other.startsWith(one));
}

/** Shorten `breadcrumb <id> version <n>`. Other sources are paths. */
function sourceInWords(source: string): string {
  const found = /^breadcrumb ([0-9a-f]{8})[0-9a-f-]* version (\d+)$/.exec(source);
  return found ? `Breadcrumb ${found[1]}…, version ${found[2]}` : source;
}

interface Compared {
  digest: string;
  past: PastConfig;
  current: PastConfig | undefined;
}

function Difference(props: {
  entry: ConfigLogEntry;
  current: ConfigLogEntry | undefined;
  onRolledBack: () => void;
}) {
  const { entry, current } = props;
  const [compared, setCompared] = useState<Compared>();
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    let ignored = false;
    const read = async () => {
      try {
        const [past, now] = await Promise.all([
          contexts.past(entry.digest),
          current ? contexts.past(current.digest) : Promise.resolve(undefined),
        ]);
        if (!ignored) {
          setCompared({ digest: entry.digest, past, current: now });
          setFailed("");
        }
      } catch (error) {
        if (!ignored) setFailed(messageOf(error));
      }
    };
    void read();
    return () => {
      ignored = true;
    };
  }, [entry.digest, current?.digest]);
  const shown = compared?.digest === entry.digest ? compared : undefined;
  const isCurrent = entry.digest === current?.digest;
  const lines = useMemo(
    () => (shown?.current && !isCurrent ? diffLines(formatJson(shown.current.config), formatJson(shown.past.config)) : []),
    [shown, isCurrent],
  );
  const refused = narrowed() ?? lacking("curator");

  const rollBack = async () => {
    const sure = await confirmed({
      title: "Roll back?",
      text: `The config of ${entry.consumer_id} will be ${entry.digest.slice(0, 8)} again, from the next message.`,
      action: "Roll back",
    });
    if (!sure) return;
    setBusy(true);
    await attempt("The rollback failed", async () => {
      await contexts.rollBack(entry.digest);
      await load();
      toast("Rolled back. It applies from the next message.");
      props.onRolledBack();
    });
    setBusy(false);
  };

  return (
    <div class="history-diff" role="region" aria-label="Selected config">
      <div class="history-actions">
        <h3>
          <span class="mono">{entry.digest.slice(0, 8)}</span>{" "}
          {isCurrent ? "is in force" : current ? "compared with the config in force" : ""}
        </h3>
        {!isCurrent && (
          <button
            type="button"
            class="button main"
            disabled={busy || refused !== undefined || !shown?.past.valid}
            title={refused}
            onClick={() => void rollBack()}
          >
            {busy && <span class="spinner" />} Roll back
          </button>
        )}
      </div>
      {refused !== undefined && !isCurrent && <p class="small soft">{refused}</p>}
      {failed && (
        <p class="notice bad" role="alert">
          <Icon name="alert" /> {failed}
        </p>
      )}
      {!current && !isCurrent && (
        <p class="small soft">The config in force was not used by a message yet, so there is nothing to compare with.</p>
      )}
      {shown && lines.length > 0 && (
        <>
          <p class="small soft">
            A rollback removes the lines with − and adds the lines with +.
          </p>
          <pre class="history-lines" tabIndex={0} aria-label="Difference">
            {lines.map((line, at) => (
              <span key={at} class={`history-${line.kind}`}>
                <span aria-hidden="true">{MARKS[line.kind]} </span>
                {line.kind === "added" && <span class="unseen">added: </span>}
                {line.kind === "removed" && <span class="unseen">removed: </span>}
                {line.text}
                {"\n"}
              </span>
            ))}
          </pre>
        </>
      )}
      {shown && (
        <details class="history-whole" open={lines.length === 0}>
          <summary>The whole config</summary>
          <pre tabIndex={0} aria-label="The whole config">
            {formatJson(shown.past.config)}
          </pre>
        </details>
      )}
    </div>
  );
}

const MARKS = { same: " ", added: "+", removed: "−", skipped: " " };
