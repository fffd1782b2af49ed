#!lua
--[[
Say that a worker lives, and who else of its kind does. By the server's clock: workers need not agree on one.

KEYS  1 living workers
ARGV  1 worker   2 for how many microseconds it counts as living from now on, 0 = only look
Reply the names of those who live
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local stamp = string.format('%.0f', now)
if ARGV[2] ~= '0' then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', stamp)
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. stamp, '+inf')
