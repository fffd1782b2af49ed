#!lua
--[[
Write a new breadcrumb: body, every index, its expiry and its event, or nothing.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas
      6 idempotency key (any key of the lane where ARGV 9 is '')
      7… indexes
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the body without its header: two agents (32 bytes) and the JSON
      4 expires_at in microseconds, 0 = at no fixed time
      5 lifetime in microseconds, 0 = none; counts from now
      6 max_reads
      7 schema name
      8 event: what follows owner, id and version
      9 idempotency: '' or the digest of the content (16 bytes)
      10 idempotency: for how many seconds the key is kept
Reply {0, version, created_at, updated_at}          written
      {1, version, created_at, updated_at, id}      the key was used for this content: the first result
      {2}                                           the key was used for other content
      {3, version, created_at, updated_at}          the id is taken
]]
local digest = ARGV[9]
if digest ~= '' then
  local used = redis.call('GET', KEYS[6])
  if used then
    if string.sub(used, 1, 16) ~= digest then return {2} end
    return {1, '1', string.sub(used, 33), string.sub(used, 33), string.sub(used, 17, 32)}
  end
end
local taken = redis.call('GET', KEYS[1])
if taken then
  local version, created, updated = string.match(taken, '^(%d+) (%d+) (%d+)')
  return {3, version, created, updated}
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local expires = ARGV[4]
if ARGV[5] ~= '0' then expires = string.format('%.0f', now + tonumber(ARGV[5])) end

redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'c' .. ARGV[2] .. ARGV[1] .. '1 ' .. ARGV[8])
redis.call('SET', KEYS[3], stamp)
redis.call('SET', KEYS[1], '1 ' .. stamp .. ' ' .. stamp .. ' ' .. expires .. ' ' .. ARGV[6] .. '\n' .. ARGV[3])
for place = 7, #KEYS do redis.call('ZADD', KEYS[place], stamp, ARGV[1]) end
redis.call('SADD', KEYS[5], ARGV[7])
-- What waits for its last read ('all') joins the queue with that read: see read.lua.
if expires ~= '0' and tonumber(ARGV[6]) >= 0 then redis.call('ZADD', KEYS[4], expires, ARGV[2] .. ARGV[1]) end
if digest ~= '' then redis.call('SET', KEYS[6], digest .. ARGV[1] .. stamp, 'EX', ARGV[10]) end
return {0, '1', stamp, stamp}
