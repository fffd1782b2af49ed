#!lua
--[[
Wraps another script (create, update): a worker's commit. The lease is checked, the other script writes,
and the event that led to it is acknowledged: all of it, or nothing.

KEYS  those of the other script, then   lease   done   low   attempts   dead letters
ARGV  those of the other script, then
      the lease held
      the time of the event to acknowledge, '' = not yet
      the new low-water mark: every event up to it is done. It only rises, as in acknowledge.lua
      '' or the dead letter (JSON) that the event becomes
Reply that of the other script; only where it has written is the event acknowledged
      {4}   LEASE_LOST: nothing was changed
]]
local unpack = unpack or table.unpack
local keys, args = #KEYS, #ARGV
local lease, done, low, attempts, letters = unpack(KEYS, keys - 4, keys)
local held, event, mark, letter = unpack(ARGV, args - 3, args)
if redis.call('GET', lease) ~= held then return {4} end

local write
do
  -- Not with unpack: it fails with some thousand values, as in a large change of state.
  local own_keys, own_args = {}, {}
  for place = 1, keys - 5 do own_keys[place] = KEYS[place] end
  for place = 1, args - 4 do own_args[place] = ARGV[place] end
  local KEYS, ARGV = own_keys, own_args
  write = function()
    -- the other script
  end
end
local reply = write()

if event ~= '' and reply[1] == 0 then
  if letter ~= '' then redis.call('HSET', letters, event, letter) end
  redis.call('HDEL', attempts, event)
  local before = redis.call('GET', low) or '0'
  if tonumber(mark) > tonumber(before) then redis.call('SET', low, mark) else mark = before end
  if tonumber(event) > tonumber(mark) then redis.call('ZADD', done, event, event) end
  redis.call('ZREMRANGEBYSCORE', done, '-inf', mark)
end
return reply
