#!lua
--[[
Give a name to a worker, unless a living worker of the same kind has it.

KEYS  1 names   2 living workers
ARGV  1 name   2 worker
Reply the worker that has the name, and the time until which it counts as alive in microseconds ('' = unknown)
]]
local holder = redis.call('HGET', KEYS[1], ARGV[1])
if holder and holder ~= ARGV[2] then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local alive_until = redis.call('ZSCORE', KEYS[2], holder)
  if alive_until and tonumber(alive_until) > now then
    return {holder, string.format('%.0f', tonumber(alive_until))}
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {ARGV[2], ''}
