#!lua
--[[
Write the next version of a breadcrumb: the new body, the old one in the history, the changed indexes and the event.
Refuses the write if ARGV 7, the version that the new content is based on, is not the newest. Runs inside deletions.lua.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas   6 history   7 updated
      8 session   9 sessions (any keys of the lane if ARGV 13 is '')
      10 state (any key of the lane if no values of the state follow ARGV 16)
      11 deletions (any key of the lane if ARGV 13 or ARGV 15 is '')
      12 unindexed tags (the body if ARGV 16 is 0 and the old schema has none)
      13… indexes to leave (ARGV 9 of them), then indexes to join
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the body without its header: two agents (32 bytes) and the JSON
      4 expires_at in microseconds, 0 = no fixed time, 'keep' = expiry and reads do not change
      5 lifetime in microseconds from now, 0 = none, negative = a context that is reduced after this time (reduce.lua)
      6 max_reads
      7 the version that the new content is based on
      8 event: the part after owner, id and version
      9 number of indexes to leave; if the schema changes, the first one is the index of the old schema
      10 old schema, '' = none         11 new schema, '' = none
      12 the body to store in the history instead of the old one, '' = the old one
      13 session, '' = none            14 '1' = counts as a change of the session
      15 the time of the event that led to this write, '' = none
      16 number of the next arguments: score and member of the unindexed tags (tag_index.py), score and member …
      then values of the session's state that this breadcrumb set and whose readers change: name, JSON, name, JSON …
Reply {0, version, created_at, updated_at}   WRITTEN
      {1, version}                           VERSION_CONFLICT: another writer was faster
      {2}                                    NOT_FOUND: it does not exist, or has expired
      {5}                                    SESSION_GONE: it is being deleted, or was deleted after that event
]]
local old = redis.call('GET', KEYS[1])
if not old then return {2} end
local version, created, _, expires, reads = string.match(old, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if expires ~= '0' and tonumber(reads) >= 0 and tonumber(expires) <= now then return {2} end
if version ~= ARGV[7] then return {1, version} end
local session = {false, false, false}
if ARGV[13] ~= '' then
  session = redis.call('HMGET', KEYS[8], 'gone', 'closing', 'version', 'created', 'entered', 'after')
  local current = session[3] and {began = session[5] or session[4], after = session[6]}
  if session[2] then return {5} end
  if ARGV[15] ~= '' and deleted_since(tonumber(ARGV[15]), KEYS[11], ARGV[13], session[1], current) then return {5} end
end

local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local next_version = string.format('%.0f', tonumber(version) + 1)
local member = ARGV[2] .. ARGV[1]
local reduced_at
if ARGV[4] ~= 'keep' then
  expires, reads = ARGV[4], ARGV[6]
  local lifetime = tonumber(ARGV[5])
  if lifetime > 0 then expires = string.format('%.0f', now + lifetime)
  elseif lifetime < 0 then reduced_at = string.format('%.0f', now - lifetime) end
end
-- Read before the first write, as in delete.lua.
local last_of_schema = ARGV[10] ~= ARGV[11] and redis.call('ZCARD', KEYS[13]) == 1
local unindexed, no_longer_unindexed = tonumber(ARGV[16]), {}
if last_of_schema and KEYS[12] ~= KEYS[1] then no_longer_unindexed = unindexed_tags_of(KEYS[12], ARGV[10]) end

local event = 'u' .. member .. next_version .. ' ' .. ARGV[8]
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[2], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[3], stamp)
redis.call('HSET', KEYS[6], version, ARGV[12] ~= '' and ARGV[12] or old)
redis.call('SET', KEYS[1],
  next_version .. ' ' .. created .. ' ' .. stamp .. ' ' .. expires .. ' ' .. reads .. '\n' .. ARGV[3])
redis.call('ZADD', KEYS[7], stamp, ARGV[1])
local leave = tonumber(ARGV[9])
for i = 13, 12 + leave do redis.call('ZREM', KEYS[i], ARGV[1]) end
for i = 13 + leave, #KEYS do redis.call('ZADD', KEYS[i], created, ARGV[1]) end
if unindexed > 0 then redis.call('ZADD', KEYS[12], (unpack or table.unpack)(ARGV, 17, 16 + unindexed)) end
if ARGV[10] ~= ARGV[11] then
  redis.call('SADD', KEYS[5], ARGV[11]) -- first, so that the set is never empty
  if last_of_schema then redis.call('SREM', KEYS[5], ARGV[10]) end
  for _, tag in ipairs(no_longer_unindexed) do redis.call('ZREM', KEYS[12], tag) end
end
if reduced_at then redis.call('ZADD', KEYS[4], reduced_at, member)
elseif expires == '0' or tonumber(reads) < 0 then redis.call('ZREM', KEYS[4], member)
else redis.call('ZADD', KEYS[4], expires, member) end
-- Without a version there are only contexts. Updating a context does not begin a session.
if ARGV[14] == '1' and session[3] then
  redis.call('HINCRBY', KEYS[8], 'version', 1)
  redis.call('ZADD', KEYS[9], stamp, ARGV[13])
end
-- Only values that this breadcrumb set last are changed. A change of their readers is never refused for the size.
local grown = 0
for i = 17 + unindexed, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[10], ARGV[i])
  if stored and string.match(stored, '^%d+') == created then
    local value = created .. ' ' .. ARGV[i + 1]
    redis.call('HSET', KEYS[10], ARGV[i], value)
    grown = grown + #value - #stored
  end
end
if grown ~= 0 then
  local total, removed = string.match(redis.call('HGET', KEYS[8], 'state') or '', '^(%d+) (%d+)$')
  if total then redis.call('HSET', KEYS[8], 'state', string.format('%.0f %s', tonumber(total) + grown, removed)) end
end
return {0, next_version, created, stamp}
