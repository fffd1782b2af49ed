/** What the sources of a context did not fetch: older items beyond a limit, tags that nothing has, schemas without a source. */

import { sourceInWords, type Explanation, type SourceView } from "../../lib/contexts";
import { number } from "../../lib/format";

/**
 * Whether a source found nothing although that is worth a look: its tags may be wrong. Without tags, it only means that
 * there are no such breadcrumbs yet, for example no attached page. The list of sources shows that too.
 */
function isSuspect(source: SourceView): boolean {
  return source.found === 0 && Boolean(source.any_tags?.length || source.all_tags?.length);
}

/** Whether there is something to report. */
export function hasUnfetched(explained: Explanation): boolean {
  return (
    explained.sources.some((source) => source.more || isSuspect(source)) ||
    (explained.unread_schemas?.length ?? 0) > 0
  );
}

export function NotFetched({ explained }: { explained: Explanation }) {
  const cut = explained.sources.filter((source) => source.more);
  const empty = explained.sources.filter(isSuspect);
  const unread = explained.unread_schemas ?? [];
  return (
    <>
      {cut.length > 0 && (
        <div class="why-out">
          <p class="why-reason">
            <span class="badge warn">not fetched</span>{" "}
            <span class="small soft">Older items match, but the source fetches only its newest ones.</span>
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
            <span class="badge">found nothing</span> <span class="small soft">No breadcrumb has the tags of the source.</span>
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
