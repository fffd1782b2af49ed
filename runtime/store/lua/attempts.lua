#!lua
--[[
Store the attempts at events if the lease of the lane is still held.

KEYS  1 lease   2 attempts
ARGV  1 the lease that the worker holds
      then for each event: its time and its attempts (see attempts.py), '' = remove the entry
Reply 1 stored   0 the lease is lost: nothing was changed
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
return 1
