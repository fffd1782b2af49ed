#!lua flags=no-writes
--[[
Read stored versions until a byte budget is used up.

KEYS  bodies; or one history, where ARGV 2 is given
ARGV  1 the byte budget
      2… versions in the history
Reply the values of the first keys (or versions) in their order, nothing for a missing one. It is shorter than the
      request where the next value would exceed the budget. The first value that exists is always in it.
]]
local budget, used, reply = tonumber(ARGV[1]), 0, {}
local history = #ARGV > 1
for place = 1, history and #ARGV - 1 or #KEYS do
  local size
  if history then size = redis.call('HSTRLEN', KEYS[1], ARGV[place + 1])
  else size = redis.call('STRLEN', KEYS[place]) end
  if used > 0 and used + size > budget then break end
  used = used + size
  if size == 0 then reply[place] = false
  elseif history then reply[place] = redis.call('HGET', KEYS[1], ARGV[place + 1])
  else reply[place] = redis.call('GET', KEYS[place]) end
end
return reply
