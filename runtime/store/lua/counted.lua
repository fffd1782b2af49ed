#!lua
--[[
Wraps another script (create, update, delete, import, extend) and keeps what an owner uses in this lane up to date.

KEYS  those of the other script (the body is the first of them), then
      history (the body again for create)   usage
ARGV  those of the other script, then   what it does: 'create', 'update', 'delete', 'import' or 'extend'
Reply that of the other script

The usage is counted only where it is there: `count.lua` makes it. It must see every write, so all processes on a store
have the same quotas.
]]
local keys, args = #KEYS, #ARGV
local body, history, usage = KEYS[1], KEYS[keys - 1], KEYS[keys]
local does = ARGV[args]
local counting = redis.call('EXISTS', usage) == 1

local function history_bytes()
  local bytes = 0
  for _, version in ipairs(redis.call('HKEYS', history)) do
    bytes = bytes + redis.call('HSTRLEN', history, version)
  end
  return bytes
end
local before = 0
if counting and does ~= 'create' and does ~= 'import' then
  before = redis.call('STRLEN', body)
  if does ~= 'update' then before = before + history_bytes() end
end

local write
do
  local own_keys, own_args = {}, {}
  for place = 1, keys - 2 do own_keys[place] = KEYS[place] end
  for place = 1, args - 1 do own_args[place] = ARGV[place] end
  local KEYS, ARGV = own_keys, own_args
  write = function()
    -- the other script
  end
end
local reply = write()

if counting and reply[1] == 0 then
  local after, breadcrumbs = 0, 0
  if does == 'delete' then breadcrumbs = -1 -- its keys are gone: see delete.lua
  else
    after = redis.call('STRLEN', body)
    if does == 'update' then
      after = after + redis.call('HSTRLEN', history, string.format('%.0f', tonumber(reply[2]) - 1))
    elseif does ~= 'create' then
      after = after + history_bytes()
    end
    if does == 'create' or does == 'import' then breadcrumbs = 1 end
  end
  redis.call('HINCRBY', usage, 'bytes', string.format('%.0f', after - before))
  if breadcrumbs ~= 0 then redis.call('HINCRBY', usage, 'breadcrumbs', breadcrumbs) end
end
return reply
