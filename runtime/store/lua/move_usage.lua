#!lua
--[[
Add the usage of one counter to another one, and remove the first.

KEYS  1 usage of a month
ARGV  1 field to remove   2 field to add it to
Reply 1 = moved, 0 = there was nothing to move
]]
local from = redis.call('HGET', KEYS[1], ARGV[1])
if not from then return 0 end
local sums, place = {}, 0
for number in string.gmatch(redis.call('HGET', KEYS[1], ARGV[2]) or '', '%d+') do sums[#sums + 1] = tonumber(number) end
for number in string.gmatch(from, '%d+') do
  place = place + 1
  sums[place] = string.format('%.0f', (sums[place] or 0) + tonumber(number))
end
redis.call('HSET', KEYS[1], ARGV[2], table.concat(sums, ' '))
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
