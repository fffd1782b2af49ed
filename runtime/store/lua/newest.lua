#!lua flags=no-writes
--[[
Read the newest breadcrumbs of a session with their bodies, in one round trip.

KEYS  1 the schemas of the owner in the lane of the session
      2… the indexes of the session by schema. None: those of all schemas
ARGV  1 prefix of the indexes of the session, up to the schema
      2 prefix of the bodies, up to the id
      3 number of breadcrumbs
      4 lowest score
      5 byte budget of the bodies
Reply {{id, score, id, score, …}, {body, …}}, the newest first. A missing body is nil. There are fewer bodies than ids if
      the next body would exceed the budget. The first body that exists is always included.
      nil if the owner has more than 64 schemas in the lane: the caller merges the indexes in pieces
]]
local MAX_SCHEMAS = 64
local indexes, count, lowest, budget = {}, tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
if #KEYS > 1 then
  for i = 2, #KEYS do indexes[i - 1] = KEYS[i] end
else
  if redis.call('SCARD', KEYS[1]) > MAX_SCHEMAS then return false end
  for i, schema in ipairs(redis.call('SMEMBERS', KEYS[1])) do indexes[i] = ARGV[1] .. schema end
end

-- Returns whether an id comes before another one with the same score. Lua compares strings by the locale of the server.
local function is_larger(id, other)
  for i = 1, #id do
    local one, two = string.byte(id, i), string.byte(other, i)
    if one ~= two then return one > two end
  end
  return false
end

local entries = {}
for _, index in ipairs(indexes) do
  local flat = redis.call('ZREVRANGEBYSCORE', index, '+inf', lowest, 'WITHSCORES', 'LIMIT', 0, count)
  for i = 1, #flat, 2 do entries[#entries + 1] = {flat[i], flat[i + 1], tonumber(flat[i + 1])} end
end
if #indexes > 1 then
  table.sort(entries, function(one, two)
    if one[3] ~= two[3] then return one[3] > two[3] end
    return is_larger(one[1], two[1])
  end)
end

local keys, bodies, used, full = {}, {}, 0, false
for i = 1, math.min(count, #entries) do
  local id, score = entries[i][1], entries[i][2]
  keys[2 * i - 1], keys[2 * i] = id, score
  if not full then
    local body = redis.call('GET', ARGV[2] .. id)
    local size = body and #body or 0
    full = used > 0 and used + size > budget
    used = used + size
    if not full then bodies[i] = body end
  end
end
return {keys, bodies}
