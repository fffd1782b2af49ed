#!lua
--[[
Remove a wrong entry from an index. Changes nothing if the breadcrumb was written in the meantime.

KEYS  1 index   2 body
ARGV  1 id (16 bytes)
      2 the version that does not belong in this index, '' = the breadcrumb does not exist
Reply 1 removed   0 not changed
]]
local body = redis.call('GET', KEYS[2])
local version = body and string.match(body, '^(%d+) ') or ''
if version ~= ARGV[2] then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
