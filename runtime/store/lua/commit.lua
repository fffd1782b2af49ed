#!lua
--[[
Wraps another script (create, update) as the commit of a worker. Checks the lease, runs the other script and
acknowledges the event. Either all of this happens, or nothing.

KEYS  those of the other script, then   lease   done   low-water mark   attempts   dead letters
      running answers of the session (any key of the lane if their argument is '')
      cancellations of the session (any key of the lane if their argument is '')
      body of the trigger (the lease: it is not checked)
      version of the owner's breadcrumbs without a session, on a single server in any lane (the lease: not checked)
ARGV  those of the other script, then
      the lease that the worker holds
      the time of the event to acknowledge, '' = do not acknowledge it yet
      the new low-water mark: every event up to it is done. A lower mark than the stored one is ignored
      the dead letter (JSON) that the event becomes, '' = none
      the beginning of the fields of running answers that end with this commit, '' = none (see progress.lua)
      the time of the request that this commit answers: a later cancellation refuses it, '' = never refused
      the expected version of the breadcrumbs without a session, '' = none was written
Reply that of the other script. The event is acknowledged only if the other script has written
      {4}   LEASE_LOST: nothing was changed
      {10}  CANCELLED: nothing was changed
      {11}  TRIGGER_GONE: the trigger was deleted. Nothing was changed
      {12}  INPUTS_OUTDATED: the owner has another version. Nothing was changed

A running answer ends in the same step in which its answer or error is written, so no reader sees both. No answer is
written after its cancellation, so the API may report the turn as stopped as soon as the cancellation is stored.
]]
local unpack = unpack or table.unpack
local keys, args = #KEYS, #ARGV
local lease, done, low, attempts, letters, running, cancels, trigger, shared = unpack(KEYS, keys - 8, keys)
local held_lease, event, mark, letter, ended, requested, version = unpack(ARGV, args - 6, args)
if redis.call('GET', lease) ~= held_lease then return {4} end
if trigger ~= lease and redis.call('EXISTS', trigger) == 0 then return {11} end
if shared ~= lease and (redis.call('GET', shared) or '') ~= version then return {12} end
-- If the breadcrumb exists, an earlier commit wrote it before the cancellation, and its reply was lost.
if requested ~= '' and redis.call('ZCOUNT', cancels, '(' .. requested, '+inf') > 0
  and redis.call('EXISTS', KEYS[1]) == 0 then return {10} end

local write
do
  -- No `unpack` here: it fails with some thousand values, which a large change of state can have.
  local own_keys, own_args = {}, {}
  for i = 1, keys - 9 do own_keys[i] = KEYS[i] end
  for i = 1, args - 7 do own_args[i] = ARGV[i] end
  local KEYS, ARGV = own_keys, own_args
  write = function()
    -- the other script
  end
end
local reply = write()

-- 3: the breadcrumb exists already, because the reply to an earlier commit was lost.
if ended ~= '' and (reply[1] == 0 or reply[1] == 3) then
  for _, field in ipairs(redis.call('HKEYS', running)) do
    if string.sub(field, 1, #ended) == ended then redis.call('HDEL', running, field) end
  end
end
if event ~= '' and reply[1] == 0 then
  if letter ~= '' then redis.call('HSET', letters, event, letter) end
  redis.call('HDEL', attempts, event)
  local before = redis.call('GET', low) or '0'
  if tonumber(mark) > tonumber(before) then redis.call('SET', low, mark) else mark = before end
  if tonumber(event) > tonumber(mark) then redis.call('ZADD', done, event, event) end
  redis.call('ZREMRANGEBYSCORE', done, '-inf', mark)
end
return reply
