#!lua flags=allow-oom
--[[
Begin the deletion of a session. From then on nothing can be written into it, and workers drop its turns.

The deletion is recorded here, so that work that began before it cannot write after it. Runs inside deletions.lua.

KEYS  1 session   2 sessions   3 closing   4 events   5 clock   6 deletions   7 running answers
ARGV  1 owner (16 bytes)    2 session
      3 event: the part after owner, id and version
      4 the version that the session must have, '' = any
      5 how many records of deletions to keep
      6 how many seconds to keep them
Reply {0, version, time}   CLOSED, now or by an earlier call; the time identifies the deletion
      {1, version}         VERSION_CONFLICT: the session has another version
      {2}                  NOT_FOUND
]]
local session = redis.call('HMGET', KEYS[1], 'version', 'closing')
if not session[1] then return {2} end
if session[2] then return {0, session[1], session[2]} end
if ARGV[4] ~= '' and ARGV[4] ~= session[1] then return {1, session[1]} end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[5]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local event = 's' .. ARGV[1] .. string.rep('\0', 16) .. session[1] .. ' ' .. ARGV[3]
redis.call('XADD', KEYS[4], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[4], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[5], stamp)
redis.call('HSET', KEYS[1], 'closing', stamp)
redis.call('DEL', KEYS[7])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('SADD', KEYS[3], ARGV[1] .. ARGV[2])
record_deletion(KEYS[6], ARGV[2], now, ARGV[5], ARGV[6])
return {0, session[1], stamp}
