#!lua
--[[
Take a lane for one kind of worker, or keep it.

KEYS  1 lease   2 fence counter
ARGV  1 worker   2 milliseconds   3 the lease held so far, '' = none
Reply the lease (fence number, since when in microseconds, worker): held for that long from now
      nothing: somebody else has it, or what was held is lost
]]
local held = redis.call('GET', KEYS[1])
if ARGV[3] ~= '' then
  if held ~= ARGV[3] then return false end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return held
end
if held then return false end
local time = redis.call('TIME')
local since = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local lease = redis.call('INCR', KEYS[2]) .. ' ' .. since .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
return lease
