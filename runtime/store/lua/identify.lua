#!lua
--[[
Write the metadata of a store that does not have it yet. Each field is written once: if several processes open a new
store at the same time, the first one decides. A store of an earlier version gets the missing fields.

KEYS  1 metadata of the store
ARGV  pairs of a field and its value
Reply all fields of the metadata and their values
]]
for at = 1, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[at], ARGV[at + 1])
end
return redis.call('HGETALL', KEYS[1])
