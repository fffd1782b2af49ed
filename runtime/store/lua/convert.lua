#!lua
--[[
Remove entries of a tag index that are not needed any more: see conversion.py. Or only record that they will be removed.

KEYS  1 the index of the tag   2 unindexed tags
      3… the indexes of the schemas for which the tag is not indexed
ARGV  1 rank of the first entry to look at   2 number of entries to look at
      3 '1' = remove the entries, '0' = only record tag and schema
      4… for each schema: the member for tag and schema in the unindexed tags
Reply {number of entries that were looked at, number of entries that are not needed}
]]
local unpack = unpack or table.unpack
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local ids = redis.call('ZRANGE', KEYS[1], first, first + count - 1)
if #ids == 0 then return {0, 0} end
local unneeded, recorded = {}, {}
for i = 3, #KEYS do
  local scores, before = redis.call('ZMSCORE', KEYS[i], unpack(ids)), #unneeded
  -- An entry is removed only if every reader finds the breadcrumb by its schema.
  if ARGV[3] == '0' or redis.call('ZSCORE', KEYS[2], ARGV[i + 1]) then
    for j = 1, #ids do
      if scores[j] then unneeded[#unneeded + 1] = ids[j] end
    end
  end
  if #unneeded > before then recorded[#recorded + 1] = ARGV[i + 1] end
end
if ARGV[3] == '0' then
  for _, member in ipairs(recorded) do redis.call('ZADD', KEYS[2], 0, member) end
elseif #unneeded > 0 then
  redis.call('ZREM', KEYS[1], unpack(unneeded))
end
return {#ids, #unneeded}
