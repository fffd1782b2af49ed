#!lua flags=no-writes
--[[
How a lane is doing: its events, what an owner has in it, and for each kind of worker who has the lane and
how far it is. Looks at a bounded number of things, however much there is.

KEYS  1 events   2 clock   3 the owner's sessions   4 the owner's schemas
      then for each kind: lease, low-water mark, done, dead letters
ARGV  1 the key of a schema's index up to the name: they are in the same lane
      2 since when breadcrumbs count as recent
      3 how many events that wait, and how many schemas, to look at at most
Reply 1 the time of the newest event   2 how many events are kept   3 how many there ever were
      4 sessions   5 how many schemas were left out   6 {schema, breadcrumbs, recent ones, schema, …}
      then for each kind {lease, milliseconds that it still holds, low-water mark, dead letters,
      time of the first event that is not done, how many are not done, 1 = more than were looked at}
]]
local most = tonumber(ARGV[3])
local ever = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  local about = redis.call('XINFO', 'STREAM', KEYS[1])
  for place = 1, #about, 2 do
    if about[place] == 'entries-added' then ever = about[place + 1] end
  end
end

local names = redis.call('SMEMBERS', KEYS[4])
table.sort(names)
local schemas = {}
for place, name in ipairs(names) do
  if place > most then break end
  schemas[3 * place - 2] = name
  schemas[3 * place - 1] = redis.call('ZCARD', ARGV[1] .. name)
  schemas[3 * place] = redis.call('ZCOUNT', ARGV[1] .. name, ARGV[2], '+inf')
end

local reply = {
  redis.call('GET', KEYS[2]) or '0', redis.call('XLEN', KEYS[1]), ever,
  redis.call('ZCARD', KEYS[3]), math.max(0, #names - most), schemas,
}
for at = 5, #KEYS, 4 do
  local low = redis.call('GET', KEYS[at + 1]) or '0'
  local done = {}
  for _, event in ipairs(redis.call('ZRANGE', KEYS[at + 2], 0, -1)) do done[event] = true end
  local first, waiting = '0', 0
  local entries = redis.call('XRANGE', KEYS[1], '(' .. low .. '-0', '+', 'COUNT', most)
  for _, entry in ipairs(entries) do
    local event = string.match(entry[1], '^%d+')
    if not done[event] then
      waiting = waiting + 1
      if first == '0' then first = event end
    end
  end
  reply[#reply + 1] = {
    redis.call('GET', KEYS[at]) or '', redis.call('PTTL', KEYS[at]), low,
    redis.call('HLEN', KEYS[at + 3]), first, waiting, #entries == most and 1 or 0,
  }
end
return reply
