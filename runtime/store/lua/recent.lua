#!lua flags=no-writes
--[[
The newest entries of some indexes with their bodies, in one go.

KEYS  the indexes
ARGV  for each of them the body key up to the id: bodies are in the index's own lane; and how many, less one
Reply for each index: id, body, id, body …, the newest first; no body where it is gone, and where 16 MiB are reached:
      then it is the last one
]]
local reply, left = {}, 16777216
for place, index in ipairs(KEYS) do
  local bodies, found = ARGV[2 * place - 1], {}
  for number, id in ipairs(redis.call('ZREVRANGE', index, 0, ARGV[2 * place])) do
    found[2 * number - 1] = id
    local body = left > 0 and redis.call('GET', bodies .. id)
    found[2 * number] = body
    if not body then break end
    left = left - #body
  end
  reply[place] = found
end
return reply
