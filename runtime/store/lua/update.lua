#!lua
--[[
Write the next version of a breadcrumb: the old one into its history, the new body, the indexes that
change, the event. The new content was made from version ARGV 7 and is refused if that is not the newest.
Runs inside deletions.lua.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas   6 history   7 updated
      8 session   9 sessions (any keys of the lane where ARGV 13 is '')
      10 state (any key of the lane where no ARGV 16 is there)
      11 deletions (any key of the lane where ARGV 13 or ARGV 15 is '')
      12… indexes to leave (ARGV 9 of them), then indexes to join
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the body without its header: two agents (32 bytes) and the JSON
      4 expires_at in microseconds, 0 = at no fixed time, 'keep' = expiry and reads stay as they are
      5 lifetime in microseconds, 0 = none; counts from now
      6 max_reads
      7 the version this was made from
      8 event: what follows owner, id and version
      9 how many indexes to leave; the first of them is the schema's where the schema changes
      10 the schema left, or ''       11 the schema joined, or ''
      12 what to keep of the old version in the history, '' = all of it
      13 session, '' = none            14 '1' = counts as a change of the session
      15 the time of the event that this is an answer to, '' = none
      16… what it has set of the session's state and is kept in another way now: name, JSON, name, JSON …
Reply {0, version, created_at, updated_at}   WRITTEN
      {1, version}                           VERSION_CONFLICT: somebody else wrote first
      {2}                                    NOT_FOUND: it does not exist, or has expired
      {5}                                    SESSION_GONE: it is being deleted, or was after that event
]]
local old = redis.call('GET', KEYS[1])
if not old then return {2} end
local version, created, _, expires, reads = string.match(old, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if expires ~= '0' and tonumber(reads) >= 0 and tonumber(expires) <= now then return {2} end
if version ~= ARGV[7] then return {1, version} end
local known = {false, false, false}
if ARGV[13] ~= '' then
  known = redis.call('HMGET', KEYS[8], 'gone', 'closing', 'version', 'created', 'entered', 'after')
  local present = known[3] and {began = known[5] or known[4], after = known[6]}
  if known[2] then return {5} end
  if ARGV[15] ~= '' and deleted_since(tonumber(ARGV[15]), KEYS[11], ARGV[13], known[1], present) then return {5} end
end

local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
local following = string.format('%.0f', tonumber(version) + 1)
local member = ARGV[2] .. ARGV[1]
if ARGV[4] ~= 'keep' then
  expires, reads = ARGV[4], ARGV[6]
  if ARGV[5] ~= '0' then expires = string.format('%.0f', now + tonumber(ARGV[5])) end
end
-- Before anything is written, as in delete.lua.
local last_of_schema = ARGV[10] ~= ARGV[11] and redis.call('ZCARD', KEYS[12]) == 1

redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'u' .. member .. following .. ' ' .. ARGV[8])
redis.call('SET', KEYS[3], stamp)
redis.call('HSET', KEYS[6], version, ARGV[12] ~= '' and ARGV[12] or old)
redis.call('SET', KEYS[1],
  following .. ' ' .. created .. ' ' .. stamp .. ' ' .. expires .. ' ' .. reads .. '\n' .. ARGV[3])
redis.call('ZADD', KEYS[7], stamp, ARGV[1])
local leave = tonumber(ARGV[9])
for place = 12, 11 + leave do redis.call('ZREM', KEYS[place], ARGV[1]) end
for place = 12 + leave, #KEYS do redis.call('ZADD', KEYS[place], created, ARGV[1]) end
if ARGV[10] ~= ARGV[11] then
  redis.call('SADD', KEYS[5], ARGV[11]) -- first, so that the set is never empty
  if last_of_schema then redis.call('SREM', KEYS[5], ARGV[10]) end
end
if expires == '0' or tonumber(reads) < 0 then redis.call('ZREM', KEYS[4], member)
else redis.call('ZADD', KEYS[4], expires, member) end
-- Where only contexts are left there is no session, and a change of them makes none.
if ARGV[14] == '1' and known[3] then
  redis.call('HINCRBY', KEYS[8], 'version', 1)
  redis.call('ZADD', KEYS[9], stamp, ARGV[13])
end
-- What somebody else has set since is not this one's any more. Who may read a value is never refused for its size.
local grown = 0
for place = 16, #ARGV, 2 do
  local held = redis.call('HGET', KEYS[10], ARGV[place])
  if held and string.match(held, '^%d+') == created then
    local value = created .. ' ' .. ARGV[place + 1]
    redis.call('HSET', KEYS[10], ARGV[place], value)
    grown = grown + #value - #held
  end
end
if grown ~= 0 then
  local total, removed = string.match(redis.call('HGET', KEYS[8], 'state') or '', '^(%d+) (%d+)$')
  if total then redis.call('HSET', KEYS[8], 'state', string.format('%.0f %s', tonumber(total) + grown, removed)) end
end
return {0, following, created, stamp}
