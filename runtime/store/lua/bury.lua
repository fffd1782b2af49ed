#!lua flags=allow-oom
--[[
End the deletion of a session after its breadcrumbs were removed. The record of the deletion is kept: see close.lua.

KEYS  1 session   2 closing   3 state   4 deletions
ARGV  1 owner (16 bytes)    2 session    3 the time that identifies the deletion: see close.lua
Reply 1 ended   0 another process has already ended it
]]
if redis.call('HGET', KEYS[1], 'closing') ~= ARGV[3] then return 0 end
-- Older versions of Breadcrumbs recorded a deletion only in the field `gone`.
local fields = redis.call('HMGET', KEYS[1], 'gone', 'user')
if fields[1] then redis.call('ZADD', KEYS[4], 'GT', fields[1], ARGV[2]) end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('SREM', KEYS[2], ARGV[1] .. ARGV[2])
-- The index of its user, last and without an error: see users_index.lua.
if fields[2] then redis.pcall('ZREM', string.sub(KEYS[4], 1, -18) .. 'U' .. ARGV[1] .. fields[2], ARGV[2]) end
return 1
