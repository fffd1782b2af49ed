#!lua flags=no-writes
--[[
The newest entries of one index with their bodies, in one go.

KEYS  1 index
ARGV  1 the body key up to the id: bodies are in the index's own lane
      2 how many
Reply id, body, id, body …, the newest first; no body where it is gone
]]
local ids = redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)
local reply = {}
for place, id in ipairs(ids) do
  reply[2 * place - 1] = id
  reply[2 * place] = redis.call('GET', ARGV[1] .. id)
end
return reply
