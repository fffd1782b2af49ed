#!lua
--[[
Take an entry out of an index that it does not belong in. Changes nothing if the breadcrumb was written meanwhile.

KEYS  1 index   2 body
ARGV  1 id (16 bytes)
      2 '' = the breadcrumb is gone; otherwise the version that has no place in this index
Reply 1 = removed, 0 = left as it was
]]
local body = redis.call('GET', KEYS[2])
local version = body and string.match(body, '^(%d+) ') or ''
if version ~= ARGV[2] then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
