#!lua
--[[
Take a dead letter out and announce its event again, for that one kind of worker.

KEYS  1 dead letters   2 events   3 clock
ARGV  1 the event's time (names the letter)
      2 the new event: what follows the letter that says what it is
Reply 1 announced   0 there is no such letter
]]
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'r' .. ARGV[2])
redis.call('SET', KEYS[3], stamp)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
