#!lua
--[[
Take some requests from every budget, or from none. A budget is the time at which it will be full again (GCRA): each
request moves that time on by its share, and it may lie ahead of now by no more than the whole window.

KEYS  one per budget
ARGV  1 how many requests
      2… per budget: the share of one request and the window, in microseconds
Reply {0, which budget has the least left (from 1), microseconds until it is full again, how many are left}
      {1, which budget is spent (from 1), microseconds until there is one again}
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local full, least, left, reset = {}, 0, nil, 0
for place = 1, #KEYS do
  local share, window = tonumber(ARGV[2 * place]), tonumber(ARGV[2 * place + 1])
  local at = math.max(tonumber(redis.call('GET', KEYS[place]) or 0), now) + tonumber(ARGV[1]) * share
  if at - window > now then return {1, place, math.ceil(at - window - now)} end
  full[place] = at
  local here = math.floor((window - (at - now)) / share)
  if not left or here < left then least, left, reset = place, here, math.ceil(at - now) end
end
for place = 1, #KEYS do
  redis.call('SET', KEYS[place], string.format('%.0f', full[place]), 'PX', math.ceil((full[place] - now) / 1000) + 1)
end
return {0, least, reset, left}
