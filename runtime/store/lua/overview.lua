#!lua flags=no-writes
--[[
Count the events of a lane and the breadcrumbs of an owner in it, and report the lease and progress of each worker kind.
The cost is bounded by ARGV 3.

KEYS  1 events   2 clock   3 the owner's sessions   4 the owner's schemas
      then for each kind: lease, low-water mark, done, dead letters
ARGV  1 prefix of the schema index keys, up to the schema name; they are in the same lane
      2 breadcrumbs created since this time count as recent
      3 the maximum number of waiting events, and of schemas, to count
Reply 1 time of the newest event, 0 = none   2 number of stored events   3 number of events ever written
      4 sessions   5 number of schemas not counted   6 {schema, breadcrumbs, recent ones, schema, …}
      then for each kind {lease, milliseconds until it ends, low-water mark, dead letters,
      time of the first event that is not done, number of events that are not done, 1 = there can be more}
]]
local max_counted = tonumber(ARGV[3])
local events_ever = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then events_ever = info[i + 1] end
  end
end

local names = redis.call('SMEMBERS', KEYS[4])
table.sort(names)
local schemas = {}
for i, name in ipairs(names) do
  if i > max_counted then break end
  schemas[3 * i - 2] = name
  schemas[3 * i - 1] = redis.call('ZCARD', ARGV[1] .. name)
  schemas[3 * i] = redis.call('ZCOUNT', ARGV[1] .. name, ARGV[2], '+inf')
end

local reply = {
  redis.call('GET', KEYS[2]) or '0', redis.call('XLEN', KEYS[1]), events_ever,
  redis.call('ZCARD', KEYS[3]), math.max(0, #names - max_counted), schemas,
}
for first_key = 5, #KEYS, 4 do
  local low = redis.call('GET', KEYS[first_key + 1]) or '0'
  local done = {}
  for _, event in ipairs(redis.call('ZRANGE', KEYS[first_key + 2], 0, -1)) do done[event] = true end
  local first, waiting = '0', 0
  local entries = redis.call('XRANGE', KEYS[1], '(' .. low .. '-0', '+', 'COUNT', max_counted)
  for _, entry in ipairs(entries) do
    local event = string.match(entry[1], '^%d+')
    if not done[event] then
      waiting = waiting + 1
      if first == '0' then first = event end
    end
  end
  reply[#reply + 1] = {
    redis.call('GET', KEYS[first_key]) or '', redis.call('PTTL', KEYS[first_key]), low,
    redis.call('HLEN', KEYS[first_key + 3]), first, waiting, #entries == max_counted and 1 or 0,
  }
end
return reply
