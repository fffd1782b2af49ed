#!lua
--[[
Write an exported breadcrumb with its own id, version, times and history. Runs inside deletions.lua.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas   6 history   7 updated
      8 session   9 sessions   10 state   11 deletions (any keys of the lane if ARGV 10 is '')
      12 unindexed tags (any key of the lane if ARGV 13 is 0)
      13… indexes
ARGV  1 id (16 bytes)    2 owner (16 bytes)
      3 the whole body, including its header
      4 version    5 created_at    6 updated_at    8 schema name
      7 expires_at if time alone decides, 0 = it does not expire, or not before its last read; the time of reduction of
        a context (reduce.lua)
      9 event: the part after owner, id and version
      10 session, '' = none            11 how many changes of the session's state follow
      12 the user of the session if it began with this breadcrumb (JSON), '' = none
      13 number of the next arguments: score and member of the unindexed tags (tag_index.py), score and member …
      then name, JSON, name, JSON …, then older versions: version, body, version, body …
Reply {0, version, created_at, updated_at}   WRITTEN
      {3, version, created_at, updated_at}   ID_TAKEN
      {5}                                    SESSION_GONE: it is being deleted
]]
local existing = redis.call('GET', KEYS[1])
if existing then
  local version, created, updated = string.match(existing, '^(%d+) (%d+) (%d+)')
  return {3, version, created, updated}
end
if ARGV[10] ~= '' then
  if redis.call('HEXISTS', KEYS[8], 'closing') == 1 then return {5} end
  -- The session can get a time below the mark of the indexes by user: see session_users.py.
  redis.call('DEL', string.sub(KEYS[9], 1, -18) .. 'Y' .. ARGV[2])
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local member = ARGV[2] .. ARGV[1]
local event = 'c' .. member .. ARGV[4] .. ' ' .. ARGV[9]
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[2], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[3], stamp)
redis.call('SET', KEYS[1], ARGV[3])
local unindexed = tonumber(ARGV[13])
local first_change = 14 + unindexed
local changes = 2 * tonumber(ARGV[11])
for i = first_change + changes, #ARGV, 2 do redis.call('HSET', KEYS[6], ARGV[i], ARGV[i + 1]) end
if ARGV[4] ~= '1' or ARGV[5] ~= ARGV[6] then redis.call('ZADD', KEYS[7], ARGV[6], ARGV[1]) end
for i = 13, #KEYS do redis.call('ZADD', KEYS[i], ARGV[5], ARGV[1]) end
if unindexed > 0 then redis.call('ZADD', KEYS[12], (unpack or table.unpack)(ARGV, 14, 13 + unindexed)) end
redis.call('SADD', KEYS[5], ARGV[8])
if ARGV[7] ~= '0' then redis.call('ZADD', KEYS[4], ARGV[7], member) end
if ARGV[10] ~= '' then
  redis.call('HINCRBY', KEYS[8], 'size', 1)
  local session = redis.call('HMGET', KEYS[8], 'version', 'gone', 'created')
  if not session[1] then redis.call('HSET', KEYS[8], 'after', deletion_before(KEYS[11], ARGV[10], session[2])) end
  redis.call('HINCRBY', KEYS[8], 'version', ARGV[4])
  local began = session[3]
  local older = not began or tonumber(ARGV[5]) < tonumber(began)
  if older then
    redis.call('HSET', KEYS[8], 'created', ARGV[5])
    -- `created` is now older than the session in this store. A deletion can have happened between the two times.
    redis.call('HSETNX', KEYS[8], 'entered', began or stamp)
  end
  -- The oldest imported breadcrumb decides the user of the session, unless the session began here (time 0).
  if older and string.sub(redis.call('HGET', KEYS[10], '\0began_by') or '', 1, 2) ~= '0 ' then
    if ARGV[12] ~= '' then redis.call('HSET', KEYS[10], '\0began_by', ARGV[5] .. ' ' .. ARGV[12])
    else redis.call('HDEL', KEYS[10], '\0began_by') end
  end
  redis.call('PERSIST', KEYS[8])
  redis.call('ZADD', KEYS[9], 'GT', ARGV[6], ARGV[10])
end
-- The lines of an export arrive in any order. The latest change of a name wins.
for i = first_change, first_change - 1 + changes, 2 do
  local stored = redis.call('HGET', KEYS[10], ARGV[i])
  if not stored or tonumber(string.match(stored, '^%d+')) <= tonumber(ARGV[5]) then
    redis.call('HSET', KEYS[10], ARGV[i], ARGV[5] .. ' ' .. ARGV[i + 1])
  end
end
-- An import is never refused for the size of its state. The next change counts the size again (see create.lua).
if changes > 0 then redis.call('HDEL', KEYS[8], 'state') end
return {0, ARGV[4], ARGV[5], ARGV[6]}
