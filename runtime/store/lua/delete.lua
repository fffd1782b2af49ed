#!lua flags=allow-oom
--[[
Remove a breadcrumb: its body, its history, its index entries and its expiry. Its events are kept, and a
deletion event is added.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas   6 history   7 updated
      8 session   9 sessions   10 state (any keys of the lane if ARGV 8 is '')
      11 unindexed tags (the body if the schema has none)
      12 the index of the schema   13… the other indexes
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the version that these indexes belong to
      4 event: the part after owner, id and version
      5 schema name
      6 '1' = only if it has expired, '0' = only if it has not, '*' = in both cases,
        'v' and a version = only if the session has this version ('' = none)
      7 '1' = counts as a change of the session        8 session, '' = none
      9 the time that identifies the deletion of the session (see close.lua), '' = the session is not being deleted
      10 how many seconds to keep the field `gone`, which only older stores have: see keys.py
      11 a session with a reduced context and at most this number of breadcrumbs is checked: see expiry.py
Reply {0, version, deleted_at}   REMOVED
      {1, version}               VERSION_CONFLICT: it has another version now
      {2}                        NOT_FOUND
      {3}                        NOT_EXPIRED, or the session has another version
      {5}                        DELETION_ENDED: that deletion has ended; a session of this name is a new one
]]
local old = redis.call('GET', KEYS[1])
local member = ARGV[2] .. ARGV[1]
local session = ARGV[8] ~= '' and redis.call('HMGET', KEYS[8], 'gone', 'closing', 'version', 'reduced', 'user')
if ARGV[9] ~= '' and session[2] ~= ARGV[9] then return {5} end
if not old then
  redis.call('ZREM', KEYS[4], member)
  return {2}
end
local version, _, _, expires, reads = string.match(old, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local expired = expires ~= '0' and tonumber(reads) >= 0 and tonumber(expires) <= now
if ARGV[6] == '1' and not expired then return {3} end
if ARGV[6] == '0' and expired then return {2} end
if string.sub(ARGV[6], 1, 1) == 'v' and (session[3] or '') ~= string.sub(ARGV[6], 2) then return {3} end
if version ~= ARGV[3] then return {1, version} end

local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
-- Read before the first write: during slot migration a key that became empty counts as already moved, and reading it
-- would abort the script halfway.
local last_of_schema = redis.call('ZCARD', KEYS[12]) == 1
local unindexed = {}
if last_of_schema and KEYS[11] ~= KEYS[1] then unindexed = unindexed_tags_of(KEYS[11], ARGV[5]) end
local event = 'd' .. member .. version .. ' ' .. ARGV[4]
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[2], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[3], stamp)
redis.call('DEL', KEYS[1], KEYS[6])
redis.call('ZREM', KEYS[7], ARGV[1])
for i = 12, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
if last_of_schema then redis.call('SREM', KEYS[5], ARGV[5]) end
for _, tag in ipairs(unindexed) do redis.call('ZREM', KEYS[11], tag) end
redis.call('ZREM', KEYS[4], member)
if ARGV[8] ~= '' then
  local left = redis.call('HINCRBY', KEYS[8], 'size', -1)
  if left > 0 then
    if ARGV[7] == '1' and session[3] then redis.call('HINCRBY', KEYS[8], 'version', 1) end
    if session[4] and not session[2] and left <= tonumber(ARGV[11]) then
      redis.call('ZADD', KEYS[4], stamp, ARGV[2] .. ARGV[8] .. (#ARGV[8] == 16 and '\0' or ''))
    end
  elseif session[2] == false then
    -- The session ends with its last breadcrumb.
    if session[1] then
      redis.call('HDEL', KEYS[8], 'version', 'created', 'entered', 'size', 'retried', 'state', 'after', 'reduced', 'user')
      redis.call('EXPIRE', KEYS[8], ARGV[10])
    else
      redis.call('DEL', KEYS[8])
    end
    redis.call('ZREM', KEYS[9], ARGV[8])
    redis.call('DEL', KEYS[10])
    -- The index of its user, last and without an error: see users_index.lua.
    if session[5] then redis.pcall('ZREM', string.sub(KEYS[9], 1, -18) .. 'U' .. ARGV[2] .. session[5], ARGV[8]) end
  end
end
return {0, version, stamp}
