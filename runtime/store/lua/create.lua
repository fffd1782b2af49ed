#!lua
--[[
Write a new breadcrumb: body, every index, its expiry and its event, or nothing. Runs inside deletions.lua.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas
      6 idempotency key (any key of the lane where ARGV 9 is '')
      7 session   8 sessions   9 state   10 deletions (any keys of the lane where ARGV 11 is '')
      11… indexes
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the body without its header: two agents (32 bytes) and the JSON
      4 expires_at in microseconds, 0 = at no fixed time
      5 lifetime in microseconds, 0 = none; counts from now
      6 max_reads
      7 schema name
      8 event: what follows owner, id and version
      9 idempotency: '' or the digest of the content (16 bytes)
      10 idempotency: for how many seconds the key is kept
      11 session, '' = none            12 '1' = counts as a change of the session
      13 the version that the session must have, '' = any, 0 = it must not exist yet, * = it must exist
      14 the time of the event that this is an answer to, '' = none
      15 when the session must have begun, '' = any time, 0 = it must not exist yet
      16 whose the session is if it begins with this (JSON), '' = nobody's
      17 '1' = write nothing: only find the result of an earlier run
      18 how many bytes the session's state may have; only where changes of it follow
      19… changes of the session's state: name, JSON, name, JSON …; no JSON = removed
Reply {0, version, created_at, updated_at, session's version}   WRITTEN
      {1, version, created_at, updated_at, id}      REPLAYED: the key was used for this content; the first result
      {2}                                           KEY_REUSED: the key was used for other content
      {3, version, created_at, updated_at}          ID_TAKEN
      {5}                                           SESSION_GONE: it is being deleted, or was after that event
      {6, version}                                  VERSION_CONFLICT: the session has another version
      {7}                                           ANOTHER_SESSION: it began at another time
      {8, bytes, limit}                             STATE_TOO_LARGE
      {9}                                           NO_EARLIER_RESULT: only if ARGV 17 is '1'

The size of a state is kept in the session's field `state`: bytes in all, and bytes of names that were removed. It counts
names and values as they are stored, without what is known about the session itself and cannot grow. Removed names are
kept because imports come in any order; they are cleared where room is needed. What makes a state smaller is always
taken, also where it is over the limit (as after an import).
]]
local known = {false, false, false, false, false, false}
if ARGV[11] ~= '' then
  known = redis.call('HMGET', KEYS[7], 'version', 'gone', 'closing', 'created', 'entered', 'after')
end
local present = known[1] and {began = known[5] or known[4], after = known[6]}
local function was_deleted_since(at) return deleted_since(tonumber(at), KEYS[10], ARGV[11], known[2], present) end
local digest = ARGV[9]
if digest ~= '' then
  local used = redis.call('GET', KEYS[6])
  -- A key that was used in a deleted session is free again in the next session of that name.
  if used and ARGV[11] ~= '' and was_deleted_since(string.sub(used, 33)) then used = false end
  if used then
    if string.sub(used, 1, 16) ~= digest then return {2} end
    return {1, '1', string.sub(used, 33), string.sub(used, 33), string.sub(used, 17, 32)}
  end
end
local taken = redis.call('GET', KEYS[1])
if taken then
  local version, created, updated = string.match(taken, '^(%d+) (%d+) (%d+)')
  return {3, version, created, updated}
end
if ARGV[17] == '1' then return {9} end
if ARGV[11] ~= '' then
  if known[3] or (ARGV[14] ~= '' and was_deleted_since(ARGV[14])) then return {5} end
  if ARGV[15] ~= '' and (known[1] and known[4] or '0') ~= ARGV[15] then return {7} end
  if ARGV[13] == '*' and not known[1] then return {6, '0'} end
  if ARGV[13] ~= '' and ARGV[13] ~= '*' and (known[1] or '0') ~= ARGV[13] then return {6, known[1] or '0'} end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local expires = ARGV[4]
if ARGV[5] ~= '0' then expires = string.format('%.0f', now + tonumber(ARGV[5])) end

local state_total, state_removed
local cleared = {}
if #ARGV > 18 then
  local function counts(name) return name ~= '\0active' and name ~= '\0began_by' end
  local function is_removed(name, held) return string.byte(name) ~= 0 and string.sub(held, -1) == ' ' end
  local total, removed = string.match(redis.call('HGET', KEYS[7], 'state') or '', '^(%d+) (%d+)$')
  total, removed = tonumber(total), tonumber(removed)
  if not total then -- written before sizes were kept, or imported
    total, removed = 0, 0
    local flat = redis.call('HGETALL', KEYS[9])
    for place = 1, #flat, 2 do
      if counts(flat[place]) then
        local size = #flat[place] + #flat[place + 1]
        total = total + size
        if is_removed(flat[place], flat[place + 1]) then removed = removed + size end
      end
    end
  end
  local function changed(total, removed, swept)
    if swept then total, removed = total - removed, 0 end
    for place = 19, #ARGV, 2 do
      local name, value = ARGV[place], ARGV[place + 1]
      if counts(name) then
        local old = redis.call('HSTRLEN', KEYS[9], name)
        -- A removed name has nothing but its time.
        local gone = old > 0 and old < 18 and is_removed(name, redis.call('HGET', KEYS[9], name))
        if old > 0 and not (swept and gone) then
          total = total - #name - old
          if gone then removed = removed - #name - old end
        end
        local size = #name + #stamp + 1 + #value
        total = total + size
        if value == '' and is_removed(name, ' ') then removed = removed + size end
      end
    end
    return total, removed
  end
  local limit = tonumber(ARGV[18])
  state_total, state_removed = changed(total, removed, false)
  if state_total > limit and state_total > total then
    state_total, state_removed = changed(total, removed, true)
    if state_total > limit then return {8, string.format('%.0f', state_total), ARGV[18]} end
    local flat = redis.call('HGETALL', KEYS[9])
    for place = 1, #flat, 2 do
      if is_removed(flat[place], flat[place + 1]) then cleared[flat[place]] = true end
    end
    for place = 19, #ARGV, 2 do cleared[ARGV[place]] = nil end
  end
end

redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'c' .. ARGV[2] .. ARGV[1] .. '1 ' .. ARGV[8])
redis.call('SET', KEYS[3], stamp)
redis.call('SET', KEYS[1], '1 ' .. stamp .. ' ' .. stamp .. ' ' .. expires .. ' ' .. ARGV[6] .. '\n' .. ARGV[3])
for place = 11, #KEYS do redis.call('ZADD', KEYS[place], stamp, ARGV[1]) end
redis.call('SADD', KEYS[5], ARGV[7])
-- What waits for its last read ('all') joins the queue with that read: see read.lua.
if expires ~= '0' and tonumber(ARGV[6]) >= 0 then redis.call('ZADD', KEYS[4], expires, ARGV[2] .. ARGV[1]) end
if digest ~= '' then redis.call('SET', KEYS[6], digest .. ARGV[1] .. stamp, 'EX', ARGV[10]) end
local session_version = known[1] or '0'
if ARGV[11] ~= '' then
  redis.call('HINCRBY', KEYS[7], 'size', 1)
  -- A hash with `gone` expires: it must not while it counts breadcrumbs.
  if known[2] then redis.call('PERSIST', KEYS[7]) end
end
if ARGV[12] == '1' then
  session_version = redis.call('HINCRBY', KEYS[7], 'version', 1)
  if not known[1] then
    redis.call('HSET', KEYS[7], 'created', stamp, 'after', deletion_before(KEYS[10], ARGV[11], known[2]))
    -- Kept once and for all: no import has anything older than this.
    if ARGV[16] ~= '' then redis.call('HSET', KEYS[9], '\0began_by', '0 ' .. ARGV[16]) end
  end
  redis.call('ZADD', KEYS[8], stamp, ARGV[11])
end
for place = 19, #ARGV, 2 do redis.call('HSET', KEYS[9], ARGV[place], stamp .. ' ' .. ARGV[place + 1]) end
for name in pairs(cleared) do redis.call('HDEL', KEYS[9], name) end
if state_total then
  redis.call('HSET', KEYS[7], 'state', string.format('%.0f %.0f', state_total, state_removed))
end
return {0, '1', stamp, stamp, session_version}
