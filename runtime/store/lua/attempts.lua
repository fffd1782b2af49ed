#!lua
--[[
Store the attempts at events, while the lane is still ours.

KEYS  1 lease   2 attempts
ARGV  1 the lease held
      then for each event: its time, and its attempts (see attempts.py), '' = none
Reply 1 done   0 the lease is lost: nothing was changed
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for place = 2, #ARGV, 2 do
  if ARGV[place + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[place])
  else
    redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1])
  end
end
return 1
