#!lua
--[[
Wraps another script (create, update): a worker's commit. The lease is checked, the other script writes,
and the event that led to it is acknowledged: all of it, or nothing.

KEYS  those of the other script, then   lease   done   low   attempts
ARGV  those of the other script, then
      the lease held
      the time of the event to acknowledge, '' = not yet
      the new low-water mark: every event up to it is done
Reply that of the other script
      {4}   the lease is lost: nothing was changed
]]
local unpack = unpack or table.unpack
local keys, args = #KEYS, #ARGV
local lease, done, low, attempts = unpack(KEYS, keys - 3, keys)
local held, event, mark = unpack(ARGV, args - 2, args)
if redis.call('GET', lease) ~= held then return {4} end

local write
do
  local KEYS, ARGV = {unpack(KEYS, 1, keys - 4)}, {unpack(ARGV, 1, args - 3)}
  write = function()
    -- the other script
  end
end
local reply = write()

-- Written now, or found written by an earlier try: either way the event is done.
if event ~= '' and (reply[1] == 0 or reply[1] == 3) then
  redis.call('ZADD', done, event, event)
  redis.call('SET', low, mark)
  redis.call('ZREMRANGEBYSCORE', done, '-inf', mark)
  redis.call('HDEL', attempts, event)
end
return reply
