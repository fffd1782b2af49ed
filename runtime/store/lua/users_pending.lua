#!lua flags=no-writes
--[[
Return the sessions that the indexes by user do not cover yet: see session_users.py.

KEYS  1 sessions   2 mark   3 clock
ARGV  1 how many sessions to return, or a few more: sessions of the same time are returned together
      2 the key of a state without the session's name   3 the key of a session without its name
Reply false                                there is no mark
      {mark, time up to which these are all, name, score, user_id, began_by, after, name, …}
]]
local mark = redis.call('GET', KEYS[2])
if not mark then return false end
local covered = '(' .. string.match(mark, '^%d+')
local found = redis.call('ZRANGEBYSCORE', KEYS[1], covered, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local last = redis.call('GET', KEYS[3]) or '0'
if #found >= 2 * tonumber(ARGV[1]) then
  last = string.format('%.0f', tonumber(found[#found]))
  found = redis.call('ZRANGEBYSCORE', KEYS[1], covered, last, 'WITHSCORES')
end
local reply = {mark, last}
for i = 1, #found, 2 do
  local users = redis.call('HMGET', ARGV[2] .. found[i], '\0user_id', '\0began_by')
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = users[1]
  reply[#reply + 1] = users[2]
  reply[#reply + 1] = redis.call('HGET', ARGV[3] .. found[i], 'after')
end
return reply
