#!lua flags=allow-oom
--[[
Replace the body of a context by its references when its TTL has ended: see reduction.py. The version, the times and the
indexes do not change, and there is no event.

KEYS  1 body   2 expiries   3 session
ARGV  1 id (16 bytes)    2 owner (16 bytes)    3 session
      4 the version that the new body belongs to
      5 the new body without its header: two agents (32 bytes) and the JSON
      6 sessions with at most this number of breadcrumbs are checked: see expiry.py
Reply {0}   REDUCED
      {1}   CHANGED: another version was written, or its TTL has not ended
]]
local old = redis.call('GET', KEYS[1])
local member = ARGV[2] .. ARGV[1]
local due = redis.call('ZSCORE', KEYS[2], member)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if not old or not due or tonumber(due) > now then return {1} end
local version, created, updated, reads = string.match(old, '^(%d+) (%d+) (%d+) %d+ (%-?%d+)\n')
if version ~= ARGV[4] then return {1} end
redis.call('SET', KEYS[1], version .. ' ' .. created .. ' ' .. updated .. ' 0 ' .. reads .. '\n' .. ARGV[5])
redis.call('ZREM', KEYS[2], member)
local size = redis.call('HGET', KEYS[3], 'size')
if size then redis.call('HSET', KEYS[3], 'reduced', 1) end
if size and tonumber(size) <= tonumber(ARGV[6]) then
  redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2] .. ARGV[3] .. (#ARGV[3] == 16 and '\0' or ''))
end
return {0}
