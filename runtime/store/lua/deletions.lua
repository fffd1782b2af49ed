#!lua
--[[
Wraps another script (close, create, delete, import, update) and gives it functions for the records of deleted sessions.

The records of an owner in a lane are one sorted set: member = name, score = time of the last deletion of that name. Its
size is limited. The oldest records are dropped, and the member '' (the horizon) keeps the time of the newest dropped
one: a session without a record may have been deleted up to the horizon.

A session that exists does not depend on the horizon. Its field `after` has the time of the last deletion of its name as
it was known when the session began, so records that are dropped later do not change it. Sessions that began before the
field existed have none.

Keys, arguments and replies are those of the other script.
]]
-- The time of the last deletion of a name, 0 = none. `gone`: the record of an older store, false = none.
local function recorded_deletion(deletions, session, gone)
  local recorded = tonumber(redis.call('ZSCORE', deletions, session) or 0)
  return math.max(recorded, tonumber(gone or 0))
end
local function horizon_of(deletions) return tonumber(redis.call('ZSCORE', deletions, '') or 0) end

-- The value of `after` for a session that begins now.
local function deletion_before(deletions, session, gone)
  local recorded = recorded_deletion(deletions, session, gone)
  return string.format('%.0f', recorded > 0 and recorded or horizon_of(deletions))
end

-- Was the session deleted at or after this time? `known`: fields of the present session, false = there is none.
local function deleted_since(at, deletions, session, gone, known)
  if known and known.after then return at <= tonumber(known.after) end
  local recorded = recorded_deletion(deletions, session, gone)
  if recorded > 0 then return at <= recorded end
  return at <= horizon_of(deletions) and not (known and known.began and tonumber(known.began) <= at)
end

-- Record a deletion. `most`: how many records to keep. `seconds`: for how long.
local function record_deletion(deletions, session, now, most, seconds)
  redis.call('ZADD', deletions, string.format('%.0f', now), session)
  redis.call('EXPIRE', deletions, seconds)
  local expired = string.format('(%.0f', now - tonumber(seconds) * 1000000)
  local dropped = redis.call('ZREVRANGEBYSCORE', deletions, expired, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local horizons = redis.call('ZSCORE', deletions, '') and 1 or 0
  local excess = redis.call('ZCARD', deletions) - horizons - tonumber(most)
  if excess > 0 then
    -- The horizon is older than every record, so it has the lowest rank.
    local rank = horizons + excess - 1
    local surplus = redis.call('ZRANGE', deletions, rank, rank, 'WITHSCORES')[2]
    if not dropped or tonumber(surplus) > tonumber(dropped) then dropped = surplus end
  end
  if dropped then
    redis.call('ZREMRANGEBYSCORE', deletions, '-inf', dropped)
    redis.call('ZADD', deletions, dropped, '')
  end
end
-- the other script
