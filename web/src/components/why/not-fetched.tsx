/** What the sources of a context did not fetch: older items beyond a limit, empty sources, schemas without a source. */

import { sourceInWords, type Explanation } from "../../lib/contexts";
import { number } from "../../lib/format";

/** Whether there is something to report. */
export function hasUnfetched(explained: Explanation): boolean {
  return (
    explained.sources.some((source) => source.more || source.found === 0) ||
    (explained.unread_schemas?.length ?? 0) > 0
  );
}

export function NotFetched({ explained }: { explained: Explanation }) {
  const cut = explained.sources.filter((source) => source.more);
  const empty = explained.sources.filter((source) => source.found === 0);
  const unread = explained.unread_schemas ?? [];
  return (
    <>
      {cut.length > 0 && (
        <div class="why-out">
          <p class="why-reason">
            <span class="badge warn">over limit</span>{" "}
            <span class="small soft">Older items match, but only the newest ones are fetched.</span>
          </p>
          <ul>
            {cut.map((source, place) => (
              <li key={place}>
                <span class="why-what">
                  More than {number(source.found)} of <span class="mono">{source.schema_name ?? source.key}</span>
                </span>
                <span class="small soft">
                  <span class="mono">{source.key}</span>
                  {source.key_limit !== undefined ? (
                    <> · limit {number(source.key_limit)} for this key</>
                  ) : (
                    source.limit !== undefined && <> · limit {number(source.limit)}</>
                  )}
                </span>
              </li>
            ))}
          </ul>
        </div>
      )}
      {empty.length > 0 && (
        <div class="why-out">
          <p class="why-reason">
            <span class="badge">found nothing</span> <span class="small soft">No breadcrumb matches the source.</span>
          </p>
          <ul>
            {empty.map((source, place) => (
              <li key={place}>
                <span class="why-what mono">{source.key}</span>
                <span class="small soft">{sourceInWords(source)}</span>
              </li>
            ))}
          </ul>
        </div>
      )}
      {unread.length > 0 && (
        <div class="why-out">
          <p class="why-reason">
            <span class="badge">no source</span>{" "}
            <span class="small soft">This session has breadcrumbs that no source of the config reads.</span>
          </p>
          <ul>
            {unread.map((schema) => (
              <li key={schema}>
                <span class="why-what mono">{schema}</span>
              </li>
            ))}
          </ul>
        </div>
      )}
    </>
  );
}
