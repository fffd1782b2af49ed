#!lua flags=no-writes
--[[
Read stored versions until a byte budget is used up.

KEYS  the bodies; or one history if ARGV 2 is given
ARGV  1 the byte budget
      2… version numbers in the history
Reply the values of the first keys (or versions) in their order, nil for a missing one. The reply is shorter than
      the request if the next value would exceed the budget. The first value that exists is always included.
]]
local unpack = unpack or table.unpack
local BATCH_SIZE = 16 -- values that are read before their sizes are checked
local budget, used, reply = tonumber(ARGV[1]), 0, {}
local history = #ARGV > 1
local last = history and #ARGV or #KEYS
for start = history and 2 or 1, last, BATCH_SIZE do
  local stop, values = math.min(last, start + BATCH_SIZE - 1), nil
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
