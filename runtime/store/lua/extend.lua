#!lua
--[[
Add older versions to the history of an imported breadcrumb. Versions that exist already are not changed.

KEYS  1 body   2 history
ARGV  1 the newest version   2 created_at: both as in the import of the breadcrumb
      3… version, body, version, body …
Reply {0} added   {2} the breadcrumb does not exist, or has another version or another created_at
]]
local body = redis.call('GET', KEYS[1])
if not body then return {2} end
local version, created = string.match(body, '^(%d+) (%d+)')
if version ~= ARGV[1] or created ~= ARGV[2] then return {2} end
for i = 3, #ARGV, 2 do redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1]) end
return {0}
