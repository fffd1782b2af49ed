#!lua
--[[
Remove the text so far of answers that are not written any more, because their turn ended without an answer.

KEYS  1 running answers of the session   2 lease
ARGV  1 the lease that the worker holds
      2 the beginning of the fields of these answers
Reply 1 removed   0 not removed: the lease is lost
]]
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, #ARGV[2]) == ARGV[2] then redis.call('HDEL', KEYS[1], field) end
end
return 1
