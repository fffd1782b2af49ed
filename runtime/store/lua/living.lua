#!lua
--[[
Record the heartbeat of a worker with its report, and list the living workers of its kind. Only the server's clock is
used, so the clocks of the workers need not agree.

KEYS  1 living workers   2 reports   3 drain requests   4 turn counters   5 names
ARGV  1 worker
      2 'list' = only list, write nothing
        'beat' = the worker is alive and takes its share of the lanes
        'leave' = the worker is alive, but releases its lanes: others take them
        'stop' = the worker has released its lanes and ends
      3 microseconds from now until it counts as dead
      4 report (JSON), '' = none
      5 turns that were answered since the last heartbeat   6 turns that failed
      7 name of the worker, '' = none. Each heartbeat restores it, because the removal of old names can overtake the
        first one
Reply the time when the drain of this worker was requested ('' = not requested), then the names of the living workers
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local stamp = string.format('%.0f', now)
local drain = redis.call('HGET', KEYS[3], ARGV[1]) or ''
if ARGV[2] ~= 'list' then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', stamp)
  if ARGV[2] == 'beat' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
    if ARGV[7] ~= '' then redis.call('HSETNX', KEYS[5], ARGV[7], ARGV[1]) end
  else
    redis.call('ZREM', KEYS[1], ARGV[1])
  end
  if ARGV[2] == 'stop' then redis.call('HDEL', KEYS[3], ARGV[1]) end
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], ARGV[1], stamp .. ' ' .. ARGV[4]) end
  if ARGV[5] ~= '0' then redis.call('HINCRBY', KEYS[4], 'answered', ARGV[5]) end
  if ARGV[6] ~= '0' then redis.call('HINCRBY', KEYS[4], 'failed', ARGV[6]) end
end
local living = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. stamp, '+inf')
table.insert(living, 1, drain)
return living
