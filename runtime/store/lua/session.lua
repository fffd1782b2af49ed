#!lua
--[[
Does what is kept of a session agree with the breadcrumbs that are in it? Says so, and makes it agree if asked to.

KEYS  1 session   2 sessions   3 state   4 schemas   5… the session's index of each schema
ARGV  1 session   2 '1' = mend   3… the schemas, in the order of the indexes
Reply how many things were wrong
      -1  another schema has come or gone meanwhile: ask again
]]
if redis.call('SCARD', KEYS[4]) ~= #KEYS - 4 then return -1 end
for place = 3, #ARGV do
  if redis.call('SISMEMBER', KEYS[4], ARGV[place]) == 0 then return -1 end
end
local known = redis.call('HMGET', KEYS[1], 'version', 'created', 'size', 'closing', 'gone')
-- The housekeeping is at it.
if known[4] then return 0 end
local size, first, last = 0, nil, nil
for place = 5, #KEYS do
  local oldest = redis.call('ZRANGE', KEYS[place], 0, 0, 'WITHSCORES')
  if oldest[2] then
    local newest = redis.call('ZREVRANGE', KEYS[place], 0, 0, 'WITHSCORES')
    size = size + redis.call('ZCARD', KEYS[place])
    if not first or tonumber(oldest[2]) < tonumber(first) then first = oldest[2] end
    if not last or tonumber(newest[2]) > tonumber(last) then last = newest[2] end
  end
end
local listed = redis.call('ZSCORE', KEYS[2], ARGV[1])
local wrong = 0
if size == 0 then
  if known[1] or known[3] then wrong = wrong + 1 end
  if listed then wrong = wrong + 1 end
  if ARGV[2] == '1' and wrong > 0 then
    if known[5] then
      redis.call('HDEL', KEYS[1], 'version', 'created', 'entered', 'size', 'retried', 'state', 'after')
    else
      redis.call('DEL', KEYS[1])
    end
    redis.call('ZREM', KEYS[2], ARGV[1])
    redis.call('DEL', KEYS[3])
  end
  return wrong
end
local counted = string.format('%.0f', size)
if known[3] ~= counted then wrong = wrong + 1 end
if known[1] and not known[2] then wrong = wrong + 1 end
-- Where only contexts are left, it is no session and in no list; that is as it should be.
if (known[1] and not listed) or (listed and not known[1]) then wrong = wrong + 1 end
if ARGV[2] == '1' and wrong > 0 then
  redis.call('HSET', KEYS[1], 'size', counted)
  redis.call('HSETNX', KEYS[1], 'version', counted)
  redis.call('HSETNX', KEYS[1], 'created', first)
  redis.call('PERSIST', KEYS[1])
  if not listed then redis.call('ZADD', KEYS[2], last, ARGV[1]) end
end
local noted = redis.call('HGET', KEYS[1], 'state')
local bytes = 0
if noted then
  local flat = redis.call('HGETALL', KEYS[3])
  for place = 1, #flat, 2 do
    if flat[place] ~= '\0active' and flat[place] ~= '\0began_by' then bytes = bytes + #flat[place] + #flat[place + 1] end
  end
  if tonumber(string.match(noted, '^%d+')) ~= bytes then
    wrong = wrong + 1
    -- The next change counts it again: see create.lua.
    if ARGV[2] == '1' then redis.call('HDEL', KEYS[1], 'state') end
  end
end
return wrong
