#!lua
--[[
Count the breadcrumbs of an owner in a lane, and the bytes of all their versions. Blocks the server while it counts.

KEYS  1 usage   2 schemas
ARGV  1 prefix of the schema index keys, up to the schema name
      2 prefix of the body keys, up to the id   3 prefix of the history keys, up to the id; all in the same lane
      4 '1' = store the result as the counters
Reply {bytes, breadcrumbs, stored bytes, stored breadcrumbs}. Stored: the counters before this call, '' = none
]]
local bytes, breadcrumbs = 0, 0
for _, schema in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  for _, id in ipairs(redis.call('ZRANGE', ARGV[1] .. schema, 0, -1)) do
    local size = redis.call('STRLEN', ARGV[2] .. id)
    if size > 0 then
      breadcrumbs = breadcrumbs + 1
      bytes = bytes + size
      for _, version in ipairs(redis.call('HKEYS', ARGV[3] .. id)) do
        bytes = bytes + redis.call('HSTRLEN', ARGV[3] .. id, version)
      end
    end
  end
end
local stored = redis.call('HMGET', KEYS[1], 'bytes', 'breadcrumbs')
bytes, breadcrumbs = string.format('%.0f', bytes), string.format('%.0f', breadcrumbs)
if ARGV[4] == '1' and (stored[1] ~= bytes or stored[2] ~= breadcrumbs) then
  redis.call('HSET', KEYS[1], 'bytes', bytes, 'breadcrumbs', breadcrumbs)
end
return {bytes, breadcrumbs, stored[1] or '', stored[2] or ''}
