#!lua flags=allow-oom
--[[
End the deletion of a session whose breadcrumbs are gone. What is left is when it was deleted, for as long as
a turn that began before could still come to its end.

KEYS  1 session   2 closing   3 state
ARGV  1 owner (16 bytes)    2 session    3 for how many seconds    4 the deletion: see close.lua
Reply 1 done   0 somebody else has done it
]]
if redis.call('HGET', KEYS[1], 'closing') ~= ARGV[4] then return 0 end
redis.call('HDEL', KEYS[1], 'closing', 'version', 'created', 'size', 'retried', 'state')
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('DEL', KEYS[3])
redis.call('SREM', KEYS[2], ARGV[1] .. ARGV[2])
return 1
