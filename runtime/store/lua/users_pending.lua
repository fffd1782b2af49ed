#!lua flags=no-writes
--[[
Return the sessions that the indexes by user do not cover yet: see session_users.py.

KEYS  1 sessions   2 mark   3 clock
ARGV  1 how many sessions to return, or a few more: sessions of the same time are returned together
      2 the key of a state without the session's name
Reply false                                there is no mark
      {mark, time up to which these are all, name, score, user_id, began_by, name, …}
]]
local mark = redis.call('GET', KEYS[2])
if not mark then return false end
local covered = '(' .. string.match(mark, '^%d+')
local found = redis.call('ZRANGEBYSCORE', KEYS[1], covered, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local clock = redis.call('GET', KEYS[3]) or '0'
local last = clock
if #found >= 2 * tonumber(ARGV[1]) then
  last = string.format('%.0f', tonumber(found[#found]))
  found = redis.call('ZRANGEBYSCORE', KEYS[1], covered, last, 'WITHSCORES')
  -- An import can write times of the future. The mark must stay below the times of later writes.
  if tonumber(last) > tonumber(clock) then last = clock end
end
local reply = {mark, last}
for i = 1, #found, 2 do
  local users = redis.call('HMGET', ARGV[2] .. found[i], '\0user_id', '\0began_by')
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = users[1]
  reply[#reply + 1] = users[2]
end
return reply
