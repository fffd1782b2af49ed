#!lua
--[[
Renew leases of lanes.

KEYS  leases
ARGV  1 duration in milliseconds, from now
      2… the leases that the worker holds, in the order of the keys
Reply for each lease: 1 renewed   0 lost, and nothing was changed
]]
local replies = {}
for i = 1, #KEYS do
  replies[i] = 0
  if redis.call('GET', KEYS[i]) == ARGV[i + 1] then replies[i] = redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
end
return replies
