#!lua
--[[
Acknowledge an event if the lease of the lane is still held. Optionally store the event as a dead letter.

KEYS  1 lease   2 done   3 low-water mark   4 attempts   5 dead letters   6 holder
ARGV  1 the lease that the worker holds
      2 the time of the event, '' = none: only raise the low-water mark
      3 the new low-water mark: every event up to it is done. A lower mark than the stored one is ignored,
        because marks can arrive out of order
      4 the dead letter (JSON), '' = none
      5 '1' = release the lane afterwards   '2' = the same for a dead worker, which stays the last holder
Reply 1 acknowledged   0 the lease is lost: nothing was changed
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
if ARGV[5] ~= '0' then redis.call('DEL', KEYS[1]) end
if ARGV[5] == '1' then redis.call('DEL', KEYS[6]) end
return 1
