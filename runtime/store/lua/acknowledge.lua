#!lua
--[[
Say that an event is done with, and optionally bury it as a dead letter, while the lane is still ours.

KEYS  1 lease   2 done   3 low   4 attempts   5 dead letters
ARGV  1 the lease held
      2 the event's time, '' = none: only move the low-water mark
      3 the new low-water mark: everything up to it is done. It only rises: a mark that was worked out earlier
        may well arrive later
      4 '' or the dead letter (JSON)
      5 '1' = give the lane back afterwards
Reply 1 done   0 the lease is lost: nothing was changed
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[5], ARGV[2], ARGV[4]) end
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[2])
  redis.call('HDEL', KEYS[4], ARGV[2])
end
local low = redis.call('GET', KEYS[3]) or '0'
if tonumber(ARGV[3]) > tonumber(low) then
  low = ARGV[3]
  redis.call('SET', KEYS[3], low)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', low)
if ARGV[5] == '1' then redis.call('DEL', KEYS[1]) end
return 1
