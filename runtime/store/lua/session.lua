#!lua
--[[
Compare the record of a session with its breadcrumbs, and optionally correct the record.

KEYS  1 session   2 sessions   3 state   4 schemas   5 mark of the indexes by user (session_users.py)
      6… the session's index of each schema
ARGV  1 session   2 '1' = correct it   3… the schemas, in the order of the indexes
Reply the number of differences
      -1  the schemas have changed in the meantime: read them and call again
]]
if redis.call('SCARD', KEYS[4]) ~= #KEYS - 5 then return -1 end
for i = 3, #ARGV do
  if redis.call('SISMEMBER', KEYS[4], ARGV[i]) == 0 then return -1 end
end
local session = redis.call('HMGET', KEYS[1], 'version', 'created', 'size', 'closing', 'gone')
if session[4] then return 0 end -- the session is being deleted
local size, first, last = 0, nil, nil
for i = 6, #KEYS do
  local oldest = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')
  if oldest[2] then
    local newest = redis.call('ZREVRANGE', KEYS[i], 0, 0, 'WITHSCORES')
    size = size + redis.call('ZCARD', KEYS[i])
    if not first or tonumber(oldest[2]) < tonumber(first) then first = oldest[2] end
    if not last or tonumber(newest[2]) > tonumber(last) then last = newest[2] end
  end
end
local listed = redis.call('ZSCORE', KEYS[2], ARGV[1])
local wrong = 0
if size == 0 then
  if session[1] or session[3] then wrong = wrong + 1 end
  if listed then wrong = wrong + 1 end
  if ARGV[2] == '1' and wrong > 0 then
    if session[5] then
      redis.call('HDEL', KEYS[1], 'version', 'created', 'entered', 'size', 'retried', 'state', 'after', 'reduced', 'user')
    else
      redis.call('DEL', KEYS[1])
    end
    redis.call('ZREM', KEYS[2], ARGV[1])
    redis.call('DEL', KEYS[3])
  end
  return wrong
end
local counted = string.format('%.0f', size)
if session[3] ~= counted then wrong = wrong + 1 end
if session[1] and not session[2] then wrong = wrong + 1 end
-- A session of contexts only has no version and is not listed. That is correct.
if (session[1] and not listed) or (listed and not session[1]) then wrong = wrong + 1 end
if ARGV[2] == '1' and wrong > 0 then
  redis.call('HSET', KEYS[1], 'size', counted)
  redis.call('HSETNX', KEYS[1], 'version', counted)
  redis.call('HSETNX', KEYS[1], 'created', first)
  redis.call('PERSIST', KEYS[1])
  if not listed then redis.call('ZADD', KEYS[2], last, ARGV[1]) end
  redis.call('DEL', KEYS[5])
end
local recorded_size = redis.call('HGET', KEYS[1], 'state')
local bytes = 0
if recorded_size then
  local flat = redis.call('HGETALL', KEYS[3])
  for i = 1, #flat, 2 do
    if flat[i] ~= '\0active' and flat[i] ~= '\0began_by' then bytes = bytes + #flat[i] + #flat[i + 1] end
  end
  if tonumber(string.match(recorded_size, '^%d+')) ~= bytes then
    wrong = wrong + 1
    -- The next change counts the size again: see create.lua.
    if ARGV[2] == '1' then redis.call('HDEL', KEYS[1], 'state') end
  end
end
return wrong
