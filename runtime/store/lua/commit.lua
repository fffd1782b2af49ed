#!lua
--[[
Wraps another script (create, update) as the commit of a worker. Checks the lease, runs the other script and
acknowledges the event. Either all of this happens, or nothing.

KEYS  those of the other script, then   lease   done   low-water mark   attempts   dead letters
ARGV  those of the other script, then
      the lease that the worker holds
      the time of the event to acknowledge, '' = do not acknowledge it yet
      the new low-water mark: every event up to it is done. A lower mark than the stored one is ignored
      the dead letter (JSON) that the event becomes, '' = none
Reply that of the other script. The event is acknowledged only if the other script has written
      {4}   LEASE_LOST: nothing was changed
]]
local unpack = unpack or table.unpack
local keys, args = #KEYS, #ARGV
local lease, done, low, attempts, letters = unpack(KEYS, keys - 4, keys)
local held_lease, event, mark, letter = unpack(ARGV, args - 3, args)
if redis.call('GET', lease) ~= held_lease then return {4} end

local write
do
  -- No `unpack` here: it fails with some thousand values, which a large change of state can have.
  local own_keys, own_args = {}, {}
  for i = 1, keys - 5 do own_keys[i] = KEYS[i] end
  for i = 1, args - 4 do own_args[i] = ARGV[i] end
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
