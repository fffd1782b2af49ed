#!lua flags=allow-oom
--[[
Read a breadcrumb that has a read limit, and count the read. The last permitted read still returns the breadcrumb.
After it the breadcrumb expires at once ('any'), or at its time limit ('all').

KEYS  1 body   2 expiries
ARGV  1 id (16 bytes)    2 owner (16 bytes)
Reply the body, or nil if the breadcrumb does not exist or has expired
]]
local body = redis.call('GET', KEYS[1])
if not body then return false end
local version, created, updated, expires, reads, header_end =
  string.match(body, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n()')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local left = tonumber(reads)
if expires ~= '0' and left >= 0 and tonumber(expires) <= now then return false end
if left == 0 then return body end
if left > 0 then
  left = left - 1
  if left == 0 then expires = '1' end -- in the past by every clock
else
  left = left + 1
end
redis.call('SET', KEYS[1],
  version .. ' ' .. created .. ' ' .. updated .. ' ' .. expires .. ' ' .. string.format('%.0f', left) .. '\n'
  .. string.sub(body, header_end))
if expires ~= '0' and left >= 0 then redis.call('ZADD', KEYS[2], expires, ARGV[2] .. ARGV[1]) end
return body
