#!lua
--[[
Ask workers to handle a breadcrumb once more, and take out the dead letters that this makes up for.

KEYS  1 session   2 events   3 clock   4… dead letters, one hash per letter (the same one may come again)
ARGV  1 the new event: what follows the letter that says what it is
      2… the letters' names, in the order of the hashes
Reply when it was announced   0 the session is being deleted, or gone
]]
local known = redis.call('HMGET', KEYS[1], 'version', 'closing')
if not known[1] or known[2] then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'r' .. ARGV[1])
redis.call('SET', KEYS[3], stamp)
-- What failed before that is not the outcome any more. The event begins with the owner's id and the breadcrumb's.
redis.call('HSET', KEYS[1], 'retried', string.sub(ARGV[1], 17, 32) .. stamp)
for place = 4, #KEYS do redis.call('HDEL', KEYS[place], ARGV[place - 2]) end
return stamp
