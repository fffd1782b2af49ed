#!lua flags=no-writes
--[[
Read stored versions until a byte budget is used up.

KEYS  bodies; or one history, where ARGV 2 is given
ARGV  1 the byte budget
      2… versions in the history
Reply the values of the first keys (or versions) in their order, nothing for a missing one. It is shorter than the
      request where the next value would exceed the budget. The first value that exists is always in it.
]]
local unpack = unpack or table.unpack
local AT_ONCE = 16 -- bodies that are read before their sizes are looked at
local budget, used, reply = tonumber(ARGV[1]), 0, {}
local history = #ARGV > 1
local last = history and #ARGV or #KEYS
for start = history and 2 or 1, last, AT_ONCE do
  local stop, values = math.min(last, start + AT_ONCE - 1), nil
  if history then values = redis.call('HMGET', KEYS[1], unpack(ARGV, start, stop))
  else values = redis.call('MGET', unpack(KEYS, start, stop)) end
  for _, value in ipairs(values) do
    local size = value and #value or 0
    if used > 0 and used + size > budget then return reply end
    used = used + size
    reply[#reply + 1] = value
  end
end
return reply
