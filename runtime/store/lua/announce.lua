#!lua
--[[
Write an event that makes workers handle a breadcrumb again, and remove the dead letters of its turn.

KEYS  1 session (any key of the lane if ARGV 2 is '')   2 events   3 clock
      4… dead letters: one hash per letter (a hash can occur more than once)
ARGV  1 the new event, without its first letter (the event operation)
      2 id of the message whose turn is retried (16 bytes), '' = the breadcrumb has no session
      3 '1' = only if all the letters exist
      4… the fields of the letters, in the order of the hashes
Reply the time of the event
      0    SESSION_GONE: the session is deleted or is being deleted
      -1   LETTER_GONE: a letter no longer exists
]]
if ARGV[2] ~= '' then
  local session = redis.call('HMGET', KEYS[1], 'version', 'closing')
  if not session[1] or session[2] then return 0 end
end
if ARGV[3] == '1' then
  for i = 4, #KEYS do
    if redis.call('HEXISTS', KEYS[i], ARGV[i]) == 0 then return -1 end
  end
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
-- A failure before this time is no longer the outcome of the message. The last 100 retries of the session are kept.
local retried = ARGV[2] ~= ''
  and string.sub(ARGV[2] .. stamp .. (redis.call('HGET', KEYS[1], 'retried') or ''), 1, 3200)
local event = 'r' .. ARGV[1]
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[2], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[3], stamp)
if retried then redis.call('HSET', KEYS[1], 'retried', retried) end
for i = 4, #KEYS do redis.call('HDEL', KEYS[i], ARGV[i]) end
return stamp
