#!lua flags=allow-oom
--[[
Read a breadcrumb whose reads are counted, and count this one. The last read it allows is still
answered; after it the breadcrumb is expired ('any'), or left to its time limit alone ('all').

KEYS  1 body   2 expiries
ARGV  1 id (16 bytes)    2 owner (16 bytes)
Reply the body, or nothing where it is gone
]]
local body = redis.call('GET', KEYS[1])
if not body then return false end
local version, created, updated, expires, reads, cut =
  string.match(body, '^(%d+) (%d+) (%d+) (%d+) (%-?%d+)\n()')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local left = tonumber(reads)
if expires ~= '0' and left >= 0 and tonumber(expires) <= now then return false end
if left == 0 then return body end
if left > 0 then
  left = left - 1
  if left == 0 then expires = '1' end -- over by anybody's clock
else
  left = left + 1
end
redis.call('SET', KEYS[1],
  version .. ' ' .. created .. ' ' .. updated .. ' ' .. expires .. ' ' .. string.format('%.0f', left) .. '\n'
  .. string.sub(body, cut))
if expires ~= '0' and left >= 0 then redis.call('ZADD', KEYS[2], expires, ARGV[2] .. ARGV[1]) end
return body
