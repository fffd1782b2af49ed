#!lua
--[[
Wraps the commit of a worker (commit.lua) and adds the usage of model calls to the counters of the owner in this lane.

KEYS  those of the other script, then   months   usage of the month   session (any key of the lane: it has none)
ARGV  those of the other script, then
      field, field for the rest, values      for each counter: see usage.py
      the values of the session, '' = none
      the month   the maximum number of fields   the number of counters
Reply that of the other script. Nothing is counted unless the other script has written

Values are numbers with spaces between them. A new field that exceeds the maximum is counted in the field for the rest.
]]
local keys, args = #KEYS, #ARGV
local months, usage, session = KEYS[keys - 2], KEYS[keys - 1], KEYS[keys]
local of_session, month, max, counters = ARGV[args - 3], ARGV[args - 2], tonumber(ARGV[args - 1]), tonumber(ARGV[args])
local first = args - 3 - 3 * counters

local write
do
  local own_keys, own_args = {}, {}
  for i = 1, keys - 3 do own_keys[i] = KEYS[i] end
  for i = 1, first - 1 do own_args[i] = ARGV[i] end
  local KEYS, ARGV = own_keys, own_args
  write = function()
    -- the other script
  end
end
local reply = write()
if reply[1] ~= 0 then return reply end

local function add(key, field, old, more)
  if old then
    local sums, place = {}, 0
    for number in string.gmatch(old, '%d+') do sums[#sums + 1] = tonumber(number) end
    for number in string.gmatch(more, '%d+') do
      place = place + 1
      sums[place] = string.format('%.0f', (sums[place] or 0) + tonumber(number))
    end
    more = table.concat(sums, ' ')
  end
  redis.call('HSET', key, field, more)
end
for number = 0, counters - 1 do
  local at = first + 3 * number
  local field = ARGV[at]
  local old = redis.call('HGET', usage, field)
  if not old then
    local size = redis.call('HLEN', usage)
    if size == 0 then redis.call('SADD', months, month) end
    if size >= max then
      field = ARGV[at + 1]
      old = redis.call('HGET', usage, field)
    end
  end
  add(usage, field, old, ARGV[at + 2])
end
if of_session ~= '' then add(session, 'usage', redis.call('HGET', session, 'usage'), of_session) end
return reply
