#!lua flags=allow-oom
--[[
Remove a breadcrumb from everywhere: body, history, every index, its expiry. Its event stays.

KEYS  1 body   2 events   3 clock   4 expiries   5 schemas   6 history   7 updated
      8 session   9 sessions   10 state (any keys of the lane where ARGV 8 is '')
      11 the schema's index   12… the other indexes
ARGV  1 id (16 bytes)                 2 owner (16 bytes)
      3 the version whose indexes these are
      4 event: what follows owner, id and version
      5 schema name
      6 '1' = only if it has expired, '0' = only if it has not, '*' = either way
      7 '1' = counts as a change of the session        8 session, '' = none
      9 the deletion of the session that this is part of (see close.lua), '' = none
      10 how many seconds to keep `gone` of an older store: see keys.py
Reply {0, version, deleted_at}   REMOVED
      {1, version}               VERSION_CONFLICT: it has another version now
      {2}                        NOT_FOUND
      {3}                        NOT_EXPIRED
      {5}                        DELETION_ENDED: what is there now belongs to another session
]]
local old = redis.call('GET', KEYS[1])
local member = ARGV[2] .. ARGV[1]
local known = ARGV[8] ~= '' and redis.call('HMGET', KEYS[8], 'gone', 'closing', 'version')
if ARGV[9] ~= '' and known[2] ~= ARGV[9] then return {5} end
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
if version ~= ARGV[3] then return {1, version} end

local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
-- Asked before anything is written: in a slot that is being moved to another node, a key that was emptied
-- counts as gone ahead, and a look at it would end the script halfway.
local last_of_schema = redis.call('ZCARD', KEYS[11]) == 1
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'd' .. member .. version .. ' ' .. ARGV[4])
redis.call('SET', KEYS[3], stamp)
redis.call('DEL', KEYS[1], KEYS[6])
redis.call('ZREM', KEYS[7], ARGV[1])
for place = 11, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
if last_of_schema then redis.call('SREM', KEYS[5], ARGV[5]) end
redis.call('ZREM', KEYS[4], member)
if ARGV[8] ~= '' then
  local left = redis.call('HINCRBY', KEYS[8], 'size', -1)
  if left > 0 then
    if ARGV[7] == '1' and known[3] then redis.call('HINCRBY', KEYS[8], 'version', 1) end
  elseif known[2] == false then
    -- With the last breadcrumb the session ends.
    if known[1] then
      redis.call('HDEL', KEYS[8], 'version', 'created', 'entered', 'size', 'retried', 'state', 'after')
      redis.call('EXPIRE', KEYS[8], ARGV[10])
    else
      redis.call('DEL', KEYS[8])
    end
    redis.call('ZREM', KEYS[9], ARGV[8])
    redis.call('DEL', KEYS[10])
  end
end
return {0, version, stamp}
