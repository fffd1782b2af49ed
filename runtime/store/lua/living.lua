#!lua
--[[
Record the heartbeat of a worker, and list the living workers of its kind. Only the server's clock is used, so the
clocks of the workers need not agree.

KEYS  1 living workers
ARGV  1 worker   2 microseconds from now until it counts as dead, 0 = only list, record no heartbeat
Reply the names of the living workers
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local stamp = string.format('%.0f', now)
if ARGV[2] ~= '0' then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', stamp)
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. stamp, '+inf')
