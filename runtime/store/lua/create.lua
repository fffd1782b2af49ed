#!lua
--[[
Write a new breadcrumb: its body, its indexes, its expiry and its event, or nothing. Runs inside deletions.lua.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas
      6 idempotency key (any key of the lane if ARGV 9 is '')
      7 session   8 sessions   9 state   10 deletions (any keys of the lane if ARGV 11 is '')
      11 unindexed tags (any key of the lane if ARGV 18 is 0)
      12… indexes
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the body without its header: two agents (32 bytes) and the JSON
      4 expires_at in microseconds, 0 = no fixed time
      5 lifetime in microseconds from now, 0 = none, negative = a context that is reduced after this time (reduce.lua)
      6 max_reads
      7 schema name
      8 event: the part after owner, id and version
      9 idempotency: digest of the content (16 bytes), '' = no idempotency key
      10 idempotency: how many seconds to keep the key
      11 session, '' = none            12 '1' = counts as a change of the session
      13 the version that the session must have, '' = any, 0 = it must not exist yet, * = it must exist
      14 the time of the event that led to this write, '' = none
      15 the time when the session must have begun, '' = any time, 0 = it must not exist yet
      16 the user of the session if this write begins it (JSON), '' = none
      17 '1' = write nothing, only return the result of an earlier run
      18 number of the next arguments: score and member of the unindexed tags (tag_index.py), score and member …
      then, only if the session's state changes: maximum size of the state in bytes, and
      the changes: name, JSON, name, JSON …; '' instead of JSON = remove the name
Reply {0, version, created_at, updated_at, session's version}   WRITTEN
      {1, version, created_at, updated_at, id}      REPLAYED: the key was used with this content; its first result
      {2}                                           KEY_REUSED: the key was used with other content
      {3, version, created_at, updated_at}          ID_TAKEN
      {5}                                           SESSION_GONE: it is being deleted, or was deleted after that event
      {6, version}                                  VERSION_CONFLICT: the session has another version
      {7}                                           ANOTHER_SESSION: it began at another time
      {8, bytes, limit}                             STATE_TOO_LARGE
      {9}                                           NO_EARLIER_RESULT: only if ARGV 17 is '1'

The field `state` of the session holds the size of its state: all bytes, and the bytes of removed names. The size counts
names and values as stored, except `active` and `began_by`, which cannot grow. A removed name stays as an entry with a
time, because imports arrive in any order. Such entries are cleared when space is needed. A change that makes the state
smaller is always accepted, even if the state exceeds the limit (for example after an import).
]]
local session = {}
if ARGV[11] ~= '' then
  session = redis.call('HMGET', KEYS[7], 'version', 'gone', 'closing', 'created', 'entered', 'after', 'size')
end
local function was_deleted_since(at)
  local current = session[1] and {began = session[5] or session[4], after = session[6]}
  return deleted_since(tonumber(at), KEYS[10], ARGV[11], session[2], current)
end
local digest = ARGV[9]
if digest ~= '' then
  local used = redis.call('GET', KEYS[6])
  -- A key that was used in a deleted session can be used again in the next session of that name.
  if used and ARGV[11] ~= '' and was_deleted_since(string.sub(used, 33)) then used = false end
  if used then
    if string.sub(used, 1, 16) ~= digest then return {2} end
    return {1, '1', string.sub(used, 33), string.sub(used, 33), string.sub(used, 17, 32)}
  end
end
local existing = redis.call('GET', KEYS[1])
if existing then
  local version, created, updated = string.match(existing, '^(%d+) (%d+) (%d+)')
  return {3, version, created, updated}
end
if ARGV[17] == '1' then return {9} end
if ARGV[11] ~= '' then
  if session[3] or (ARGV[14] ~= '' and was_deleted_since(ARGV[14])) then return {5} end
  if ARGV[15] ~= '' and (session[1] and session[4] or '0') ~= ARGV[15] then return {7} end
  if ARGV[13] == '*' and not session[1] then return {6, '0'} end
  if ARGV[13] ~= '' and ARGV[13] ~= '*' and (session[1] or '0') ~= ARGV[13] then return {6, session[1] or '0'} end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local expires, lifetime, reduced_at = ARGV[4], tonumber(ARGV[5]), nil
if lifetime > 0 then expires = string.format('%.0f', now + lifetime)
elseif lifetime < 0 then reduced_at = string.format('%.0f', now - lifetime) end

local unindexed = tonumber(ARGV[18])
local first_change = 20 + unindexed
local state_total, state_removed
local cleared = {}
if #ARGV >= first_change then
  local function counts(name) return name ~= '\0active' and name ~= '\0began_by' end
  local function is_removed(name, stored) return string.byte(name) ~= 0 and string.sub(stored, -1) == ' ' end
  local total, removed = string.match(redis.call('HGET', KEYS[7], 'state') or '', '^(%d+) (%d+)$')
  total, removed = tonumber(total), tonumber(removed)
  if not total then -- written by a version without sizes, or imported
    total, removed = 0, 0
    local flat = redis.call('HGETALL', KEYS[9])
    for i = 1, #flat, 2 do
      if counts(flat[i]) then
        local size = #flat[i] + #flat[i + 1]
        total = total + size
        if is_removed(flat[i], flat[i + 1]) then removed = removed + size end
      end
    end
  end
  -- Return both sizes after the changes. `sweep`: removed names are cleared first.
  local function changed(total, removed, sweep)
    if sweep then total, removed = total - removed, 0 end
    for i = first_change, #ARGV, 2 do
      local name, value = ARGV[i], ARGV[i + 1]
      if counts(name) then
        local old = redis.call('HSTRLEN', KEYS[9], name)
        -- A removed name has only its time, so its entry is short.
        local was_removed = old > 0 and old < 18 and is_removed(name, redis.call('HGET', KEYS[9], name))
        if old > 0 and not (sweep and was_removed) then
          total = total - #name - old
          if was_removed then removed = removed - #name - old end
        end
        local size = #name + #stamp + 1 + #value
        total = total + size
        if value == '' and is_removed(name, ' ') then removed = removed + size end
      end
    end
    return total, removed
  end
  local limit = tonumber(ARGV[first_change - 1])
  state_total, state_removed = changed(total, removed, false)
  if state_total > limit and state_total > total then
    state_total, state_removed = changed(total, removed, true)
    if state_total > limit then return {8, string.format('%.0f', state_total), ARGV[first_change - 1]} end
    local flat = redis.call('HGETALL', KEYS[9])
    for i = 1, #flat, 2 do
      if is_removed(flat[i], flat[i + 1]) then cleared[flat[i]] = true end
    end
    for i = first_change, #ARGV, 2 do cleared[ARGV[i]] = nil end
  end
end

local event = 'c' .. ARGV[2] .. ARGV[1] .. '1 ' .. ARGV[8]
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', event)
-- Announce the event. The server can refuse that (an ACL): readers then find the event in the log.
redis.pcall('SPUBLISH', KEYS[2], string.format('%.0f ', last) .. stamp .. ' ' .. event)
redis.call('SET', KEYS[3], stamp)
redis.call('SET', KEYS[1], '1 ' .. stamp .. ' ' .. stamp .. ' ' .. expires .. ' ' .. ARGV[6] .. '\n' .. ARGV[3])
for i = 12, #KEYS do redis.call('ZADD', KEYS[i], stamp, ARGV[1]) end
if unindexed > 0 then redis.call('ZADD', KEYS[11], (unpack or table.unpack)(ARGV, 19, 18 + unindexed)) end
redis.call('SADD', KEYS[5], ARGV[7])
-- With negative max_reads ('all') the breadcrumb expires only after its last read: read.lua adds it to the queue.
if reduced_at then redis.call('ZADD', KEYS[4], reduced_at, ARGV[2] .. ARGV[1])
elseif expires ~= '0' and tonumber(ARGV[6]) >= 0 then redis.call('ZADD', KEYS[4], expires, ARGV[2] .. ARGV[1]) end
if digest ~= '' then redis.call('SET', KEYS[6], digest .. ARGV[1] .. stamp, 'EX', ARGV[10]) end
local session_version = session[1] or '0'
if ARGV[11] ~= '' then
  local size = string.format('%.0f', tonumber(session[7] or 0) + 1)
  if ARGV[12] == '1' then
    session_version = string.format('%.0f', tonumber(session_version) + 1)
    redis.call('HSET', KEYS[7], 'size', size, 'version', session_version)
    redis.call('ZADD', KEYS[8], stamp, ARGV[11])
    if not session[1] then
      redis.call('HSET', KEYS[7], 'created', stamp, 'after', deletion_before(KEYS[10], ARGV[11], session[2]))
      -- Time 0 marks that the session began here: import.lua does not replace this user.
      if ARGV[16] ~= '' then redis.call('HSET', KEYS[9], '\0began_by', '0 ' .. ARGV[16]) end
    end
  else
    redis.call('HSET', KEYS[7], 'size', size)
  end
  -- A hash with `gone` expires. It must not expire while the session has breadcrumbs.
  if session[2] then redis.call('PERSIST', KEYS[7]) end
end
for i = first_change, #ARGV, 2 do redis.call('HSET', KEYS[9], ARGV[i], stamp .. ' ' .. ARGV[i + 1]) end
for name in pairs(cleared) do redis.call('HDEL', KEYS[9], name) end
if state_total then
  redis.call('HSET', KEYS[7], 'state', string.format('%.0f %.0f', state_total, state_removed))
end
return {0, '1', stamp, stamp, session_version}
