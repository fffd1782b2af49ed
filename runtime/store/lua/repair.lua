#!lua
--[[
Add the missing index entries of a breadcrumb and correct wrong ones. Changes nothing if it was written in the meantime.

KEYS  1 body   2 expiries   3 schemas   4 updated   5 unindexed tags   6… indexes
ARGV  1 id (16 bytes)    2 owner (16 bytes)
      3 the version that these indexes belong to
      4 schema name        5… score and member of the unindexed tags (tag_index.py), score and member …
Reply the number of entries that were missing or wrong; 0 also if the breadcrumb is deleted or has another version now
]]
local body = redis.call('GET', KEYS[1])
if not body then return 0 end
local version, created, updated, expires, reads = string.match(body, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n')
if version ~= ARGV[3] then return 0 end
local repaired = 0
for i = 6, #KEYS do repaired = repaired + redis.call('ZADD', KEYS[i], 'CH', created, ARGV[1]) end
for i = 5, #ARGV, 2 do repaired = repaired + redis.call('ZADD', KEYS[5], ARGV[i], ARGV[i + 1]) end
repaired = repaired + redis.call('SADD', KEYS[3], ARGV[4])
if version ~= '1' or created ~= updated then
  repaired = repaired + redis.call('ZADD', KEYS[4], 'CH', updated, ARGV[1])
end
if expires ~= '0' and tonumber(reads) >= 0 then
  repaired = repaired + redis.call('ZADD', KEYS[2], 'CH', expires, ARGV[2] .. ARGV[1])
end
return repaired
