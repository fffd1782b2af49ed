#!lua flags=allow-oom
--[[
End the deletion of a session whose breadcrumbs are gone. The record of the deletion stays: see close.lua.

KEYS  1 session   2 closing   3 state   4 deletions
ARGV  1 owner (16 bytes)    2 session    3 the deletion: see close.lua
Reply 1 done   0 somebody else has done it
]]
if redis.call('HGET', KEYS[1], 'closing') ~= ARGV[3] then return 0 end
-- A deletion that an older version began is recorded in the hash only.
local gone = redis.call('HGET', KEYS[1], 'gone')
if gone then redis.call('ZADD', KEYS[4], 'GT', gone, ARGV[2]) end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('SREM', KEYS[2], ARGV[1] .. ARGV[2])
return 1
