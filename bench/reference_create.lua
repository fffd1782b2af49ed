#!lua
--[[
create.lua of commit 1bd9899, without its comments. bench/store.py measures creates against plain redis-py with it.
]]
local digest = ARGV[9]
if digest ~= '' then
  local used = redis.call('GET', KEYS[6])
  if used and ARGV[11] ~= '' and tonumber(string.sub(used, 33)) <= tonumber(redis.call('HGET', KEYS[7], 'gone') or 0) then
    used = false
  end
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
local known = {false, false, false, false}
if ARGV[11] ~= '' then
  known = redis.call('HMGET', KEYS[7], 'version', 'gone', 'closing', 'created')
  if known[3] or (ARGV[14] ~= '' and known[2] and tonumber(ARGV[14]) <= tonumber(known[2])) then return {5} end
  if ARGV[15] ~= '' and (known[1] and known[4] or '0') ~= ARGV[15] then return {7} end
  if ARGV[13] == '*' and not known[1] then return {6, '0'} end
  if ARGV[13] ~= '' and ARGV[13] ~= '*' and (known[1] or '0') ~= ARGV[13] then return {6, known[1] or '0'} end
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
for place = 10, #KEYS do redis.call('ZADD', KEYS[place], stamp, ARGV[1]) end
redis.call('SADD', KEYS[5], ARGV[7])
if expires ~= '0' and tonumber(ARGV[6]) >= 0 then redis.call('ZADD', KEYS[4], expires, ARGV[2] .. ARGV[1]) end
if digest ~= '' then redis.call('SET', KEYS[6], digest .. ARGV[1] .. stamp, 'EX', ARGV[10]) end
local session_version = known[1] or '0'
if ARGV[11] ~= '' then
  redis.call('HINCRBY', KEYS[7], 'size', 1)
  if known[2] then redis.call('PERSIST', KEYS[7]) end
end
if ARGV[12] == '1' then
  session_version = redis.call('HINCRBY', KEYS[7], 'version', 1)
  if not known[1] then
    redis.call('HSET', KEYS[7], 'created', stamp)
    if ARGV[16] ~= '' then redis.call('HSET', KEYS[9], '\0began_by', '0 ' .. ARGV[16]) end
  end
  redis.call('ZADD', KEYS[8], stamp, ARGV[11])
end
for place = 17, #ARGV, 2 do redis.call('HSET', KEYS[9], ARGV[place], stamp .. ' ' .. ARGV[place + 1]) end
return {0, '1', stamp, stamp, session_version}
