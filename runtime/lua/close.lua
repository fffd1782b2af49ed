#!lua flags=allow-oom
--[[
Begin to delete a session: from here on nothing can be written into it, and workers let go of it.

The deletion is recorded here, so that nothing that began before it can be written after it. An owner has at most
ARGV 5 records in a lane. The oldest ones are dropped, and the member '' (the horizon) keeps the time of the newest
dropped one: a check of anything older than the horizon must assume a deletion.

KEYS  1 session   2 sessions   3 closing   4 events   5 clock   6 deletions
ARGV  1 owner (16 bytes)    2 session
      3 event: what follows owner, id and version
      4 the version that the session must have, '' = any
      5 how many records of deletions to keep
      6 how many seconds to keep them
Reply {0, version, since}   closed, or it was being deleted already; since names this deletion
      {1, version}          it has another version
      {2}                   there is no such session
]]
local known = redis.call('HMGET', KEYS[1], 'version', 'closing')
if not known[1] then return {2} end
if known[2] then return {0, known[1], known[2]} end
if ARGV[4] ~= '' and ARGV[4] ~= known[1] then return {1, known[1]} end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[5]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
redis.call('XADD', KEYS[4], stamp .. '-0', 'e', 's' .. ARGV[1] .. string.rep('\0', 16) .. known[1] .. ' ' .. ARGV[3])
redis.call('SET', KEYS[5], stamp)
redis.call('HSET', KEYS[1], 'closing', stamp)
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('SADD', KEYS[3], ARGV[1] .. ARGV[2])
redis.call('ZADD', KEYS[6], stamp, ARGV[2])
redis.call('EXPIRE', KEYS[6], ARGV[6])
local expired = string.format('(%.0f', now - tonumber(ARGV[6]) * 1000000)
local dropped = redis.call('ZREVRANGEBYSCORE', KEYS[6], expired, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local horizons = redis.call('ZSCORE', KEYS[6], '') and 1 or 0
local excess = redis.call('ZCARD', KEYS[6]) - horizons - tonumber(ARGV[5])
if excess > 0 then
  -- The horizon is older than every record, so it has the lowest rank.
  local rank = horizons + excess - 1
  local surplus = redis.call('ZRANGE', KEYS[6], rank, rank, 'WITHSCORES')[2]
  if not dropped or tonumber(surplus) > tonumber(dropped) then dropped = surplus end
end
if dropped then
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', dropped)
  redis.call('ZADD', KEYS[6], dropped, '')
end
return {0, known[1], stamp}
