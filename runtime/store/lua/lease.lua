#!lua
--[[
Acquire the lease of a lane for one kind of worker.

KEYS  1 lease   2 fence counter   3 holder
ARGV  1 worker   2 duration in milliseconds, from now
Reply {the lease (fence number, time when it began in microseconds, worker),
       the worker that held the lane before and did not release it, '' = none}
      nil: a worker holds the lease
]]
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local time = redis.call('TIME')
local since = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local lease = redis.call('INCR', KEYS[2]) .. ' ' .. since .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
local previous = redis.call('GET', KEYS[3]) or ''
redis.call('SET', KEYS[3], ARGV[1])
return {lease, previous}
