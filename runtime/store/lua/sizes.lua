#!lua flags=no-writes
--[[
Return the number of entries of several sorted sets together.

KEYS  sorted sets
Reply the number
]]
local total = 0
for i = 1, #KEYS do total = total + redis.call('ZCARD', KEYS[i]) end
return total
