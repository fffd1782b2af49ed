#!lua
--[[
Put a breadcrumb back into every place where it should be found. Changes nothing if it was written meanwhile.

KEYS  1 body   2 expiries   3 schemas   4 updated   5… indexes
ARGV  1 id (16 bytes)    2 owner (16 bytes)
      3 the version whose indexes these are
      4 schema name
Reply how many entries were missing or wrong; 0 also where it is gone or has another version now
]]
local body = redis.call('GET', KEYS[1])
if not body then return 0 end
local version, created, updated, expires, reads = string.match(body, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n')
if version ~= ARGV[3] then return 0 end
local mended = 0
for place = 5, #KEYS do mended = mended + redis.call('ZADD', KEYS[place], 'CH', created, ARGV[1]) end
mended = mended + redis.call('SADD', KEYS[3], ARGV[4])
if version ~= '1' or created ~= updated then mended = mended + redis.call('ZADD', KEYS[4], 'CH', updated, ARGV[1]) end
if expires ~= '0' and tonumber(reads) >= 0 then mended = mended + redis.call('ZADD', KEYS[2], 'CH', expires, ARGV[2] .. ARGV[1]) end
return mended
