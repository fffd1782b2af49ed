#!lua
--[[
Take requests from all budgets, or from none (GCRA). A budget is stored as the time when it will be full again. Each
request moves that time on by its share. The time must not be further ahead of now than the window.

KEYS  one per budget
ARGV  1 number of requests
      2… per budget: the share of one request and the window, in microseconds
Reply {0, number of the budget with the fewest requests left (from 1), microseconds until it is full, requests left}
      {1, number of the exhausted budget (from 1), microseconds until it admits the requests}
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local full_at, tightest, left, reset = {}, 0, nil, 0
for i = 1, #KEYS do
  local share, window = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  local at = math.max(tonumber(redis.call('GET', KEYS[i]) or 0), now) + tonumber(ARGV[1]) * share
  if at - window > now then return {1, i, math.ceil(at - window - now)} end
  full_at[i] = at
  local left_here = math.floor((window - (at - now)) / share)
  if not left or left_here < left then tightest, left, reset = i, left_here, math.ceil(at - now) end
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], string.format('%.0f', full_at[i]), 'PX', math.ceil((full_at[i] - now) / 1000) + 1)
end
return {0, tightest, reset, left}
