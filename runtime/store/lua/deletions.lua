#!lua
--[[
Wraps another script (close, create, delete, import, update) and gives it functions for the records of deleted sessions
and of unindexed tags.

The records of an owner in a lane are one sorted set: member = name, score = time of the last deletion of that name. Its
size is limited. The oldest records are dropped, and the member '' (the horizon) keeps the time of the newest dropped
one. A session without a record can have been deleted at any time up to the horizon.

A session that exists does not depend on the horizon. Its field `after` has the time of the last deletion of its name,
as recorded when the session began. Records that are dropped later do not change it. Sessions that began before the
field existed do not have it.

Keys, arguments and replies are those of the other script.
]]
-- Return the time of the last deletion of a name, 0 = none. `gone`: the record of an older store, false = none.
local function recorded_deletion(deletions, session, gone)
  local recorded = tonumber(redis.call('ZSCORE', deletions, session) or 0)
  return math.max(recorded, tonumber(gone or 0))
end
local function horizon_of(deletions) return tonumber(redis.call('ZSCORE', deletions, '') or 0) end

-- Return the value of `after` for a session that begins now.
local function deletion_before(deletions, session, gone)
  local recorded = recorded_deletion(deletions, session, gone)
  return string.format('%.0f', recorded > 0 and recorded or horizon_of(deletions))
end

-- Return whether the session was deleted at or after a time. `current`: fields of the session, false = none exists.
local function deleted_since(at, deletions, session, gone, current)
  if current and current.after then return at <= tonumber(current.after) end
  local recorded = recorded_deletion(deletions, session, gone)
  if recorded > 0 then return at <= recorded end
  return at <= horizon_of(deletions) and not (current and current.began and tonumber(current.began) <= at)
end

-- Record a deletion. `max_records`: how many records to keep. `seconds`: for how long.
local function record_deletion(deletions, session, now, max_records, seconds)
  redis.call('ZADD', deletions, string.format('%.0f', now), session)
  redis.call('EXPIRE', deletions, seconds)
  local expired = string.format('(%.0f', now - tonumber(seconds) * 1000000)
  local dropped = redis.call('ZREVRANGEBYSCORE', deletions, expired, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local horizon_entries = redis.call('ZSCORE', deletions, '') and 1 or 0
  local excess = redis.call('ZCARD', deletions) - horizon_entries - tonumber(max_records)
  if excess > 0 then
    -- The horizon is older than every record, so it has the lowest rank.
    local rank = horizon_entries + excess - 1
    local surplus = redis.call('ZRANGE', deletions, rank, rank, 'WITHSCORES')[2]
    if not dropped or tonumber(surplus) > tonumber(dropped) then dropped = surplus end
  end
  if dropped then
    redis.call('ZREMRANGEBYSCORE', deletions, '-inf', dropped)
    redis.call('ZADD', deletions, dropped, '')
  end
end

-- Return the members of a schema in the sorted set of unindexed tags (tag_index.py).
local function unindexed_tags_of(key, schema)
  local found, ending = {}, '\0' .. schema
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if string.sub(member, -#ending) == ending then found[#found + 1] = member end
  end
  return found
end
-- the other script
