#!lua
--[[
Wraps another script (create, update, delete, import, extend, reduce) and updates the usage counters of the owner in this lane.

KEYS  those of the other script (its first key is the body), then
      history (for create: the body again)   usage
ARGV  those of the other script, then   its kind: 'create', 'update', 'delete', 'import', 'extend' or 'reduce'
Reply that of the other script

The counters are updated only if they exist; count.lua creates them. Every write must go through this script. Therefore
all processes on a store must have the same quotas.
]]
local keys, args = #KEYS, #ARGV
local body, history, usage = KEYS[1], KEYS[keys - 1], KEYS[keys]
local kind = ARGV[args]
local counting = redis.call('EXISTS', usage) == 1

local function history_bytes()
  local bytes = 0
  for _, version in ipairs(redis.call('HKEYS', history)) do
    bytes = bytes + redis.call('HSTRLEN', history, version)
  end
  return bytes
end
local before = 0
if counting and kind ~= 'create' and kind ~= 'import' then
  before = redis.call('STRLEN', body)
  if kind ~= 'update' then before = before + history_bytes() end
end

local write
do
  local own_keys, own_args = {}, {}
  for i = 1, keys - 2 do own_keys[i] = KEYS[i] end
  for i = 1, args - 1 do own_args[i] = ARGV[i] end
  local KEYS, ARGV = own_keys, own_args
  write = function()
    -- the other script
  end
end
local reply = write()

if counting and reply[1] == 0 then
  local after, breadcrumbs = 0, 0
  if kind == 'delete' then breadcrumbs = -1 -- delete.lua has removed the body and the history
  else
    after = redis.call('STRLEN', body)
    if kind == 'update' then
      after = after + redis.call('HSTRLEN', history, string.format('%.0f', tonumber(reply[2]) - 1))
    elseif kind ~= 'create' then
      after = after + history_bytes()
    end
    if kind == 'create' or kind == 'import' then breadcrumbs = 1 end
  end
  redis.call('HINCRBY', usage, 'bytes', string.format('%.0f', after - before))
  if breadcrumbs ~= 0 then redis.call('HINCRBY', usage, 'breadcrumbs', breadcrumbs) end
end
return reply
