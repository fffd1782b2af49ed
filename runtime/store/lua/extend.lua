#!lua
--[[
Add older versions to the history of a breadcrumb that was imported. Versions that are there stay as they are.

KEYS  1 body   2 history
ARGV  1 the newest version   2 created_at: both as in the import of the breadcrumb
      3… version, body, version, body …
Reply {0} done   {2} the breadcrumb is not there, or it is not this one
]]
local body = redis.call('GET', KEYS[1])
if not body then return {2} end
local version, created = string.match(body, '^(%d+) (%d+)')
if version ~= ARGV[1] or created ~= ARGV[2] then return {2} end
for place = 3, #ARGV, 2 do redis.call('HSETNX', KEYS[2], ARGV[place], ARGV[place + 1]) end
return {0}
