#!lua
--[[
Acquire the lease of a lane for one kind of worker, or renew it.

KEYS  1 lease   2 fence counter   3 holder
ARGV  1 worker   2 duration in milliseconds, from now   3 the lease to renew, '' = acquire a new one
Reply renewed: the lease (fence number, time when it began in microseconds, worker)
      acquired: {the lease, the worker that held the lane before and did not release it, '' = none}
      nil: another worker holds the lease, or the lease to renew is lost
]]
local current = redis.call('GET', KEYS[1])
if ARGV[3] ~= '' then
  if current ~= ARGV[3] then return false end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return current
end
if current then return false end
local time = redis.call('TIME')
local since = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local lease = redis.call('INCR', KEYS[2]) .. ' ' .. since .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
local previous = redis.call('GET', KEYS[3]) or ''
redis.call('SET', KEYS[3], ARGV[1])
return {lease, previous}
