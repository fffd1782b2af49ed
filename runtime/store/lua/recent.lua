#!lua flags=no-writes
--[[
Read the newest entries of several indexes with their bodies.

KEYS  the indexes
ARGV  for each index: prefix of the body keys, up to the id (in the lane of the index); number of entries, minus one
Reply for each index {id, body, id, body, …}, the newest first. A list ends with an id and nil if that body does not
      exist, or if 16 MiB of bodies have been read
]]
local reply, left = {}, 16777216
for i, index in ipairs(KEYS) do
  local bodies, found = ARGV[2 * i - 1], {}
  for number, id in ipairs(redis.call('ZREVRANGE', index, 0, ARGV[2 * i])) do
    found[2 * number - 1] = id
    local body = left > 0 and redis.call('GET', bodies .. id)
    found[2 * number] = body
    if not body then break end
    left = left - #body
  end
  reply[i] = found
end
return reply
