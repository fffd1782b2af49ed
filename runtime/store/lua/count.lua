#!lua
--[[
Count what an owner uses in a lane: breadcrumbs, and the bytes of all their versions. The lane waits meanwhile.

KEYS  1 usage   2 schemas
ARGV  1 the key of a schema's index up to the name   2 the key of a body up to the id   3 that of a history
      2 and 3 are in the same lane
      4 '1' = keep the result, so that it is counted on from now on
Reply {bytes, breadcrumbs, bytes as they were kept, breadcrumbs as they were kept}; '' = they were not
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
local kept = redis.call('HMGET', KEYS[1], 'bytes', 'breadcrumbs')
bytes, breadcrumbs = string.format('%.0f', bytes), string.format('%.0f', breadcrumbs)
if ARGV[4] == '1' and (kept[1] ~= bytes or kept[2] ~= breadcrumbs) then
  redis.call('HSET', KEYS[1], 'bytes', bytes, 'breadcrumbs', breadcrumbs)
end
return {bytes, breadcrumbs, kept[1] or '', kept[2] or ''}
