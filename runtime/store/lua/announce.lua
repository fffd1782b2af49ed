#!lua
--[[
Ask workers to handle a breadcrumb once more, and take out the dead letters that this makes up for.

KEYS  1 session (any key of the lane where ARGV 2 is '')   2 events   3 clock
      4… dead letters, one hash per letter (the same one may come again)
ARGV  1 the new event: what follows the letter that says what it is
      2 the message whose turn is asked for again (16 bytes), '' = it is in no session
      3 '1' = only if the letters are all there
      4… the letters' names, in the order of the hashes
Reply when it was announced
      0    SESSION_GONE: it is being deleted, or gone
      -1   LETTER_GONE: a letter is not there any more
]]
if ARGV[2] ~= '' then
  local known = redis.call('HMGET', KEYS[1], 'version', 'closing')
  if not known[1] or known[2] then return 0 end
end
if ARGV[3] == '1' then
  for place = 4, #KEYS do
    if redis.call('HEXISTS', KEYS[place], ARGV[place]) == 0 then return -1 end
  end
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if now <= last then now = last + 1 end
local stamp = string.format('%.0f', now)
-- What failed before that is not the outcome any more. Of those that were asked for again, the last hundred are known.
local noted = ARGV[2] ~= '' and string.sub(ARGV[2] .. stamp .. (redis.call('HGET', KEYS[1], 'retried') or ''), 1, 3200)
redis.call('XADD', KEYS[2], stamp .. '-0', 'e', 'r' .. ARGV[1])
redis.call('SET', KEYS[3], stamp)
if noted then redis.call('HSET', KEYS[1], 'retried', noted) end
for place = 4, #KEYS do redis.call('HDEL', KEYS[place], ARGV[place]) end
return stamp
