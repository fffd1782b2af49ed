#!lua
--[[
Save the next piece of an answer that is being written, so that clients that join later can read the text so far.

KEYS  1 running answers of the session   2 lease   3 session   4 body of the answer
ARGV  1 the lease that the worker holds
      2 the time of the event that the answer belongs to
      3 the field of the answer: the other fields of the answer begin with it
      4 the head of the answer (JSON)
      5 the field of the piece
      6 the piece (JSON), '' = none: only the head is saved
      7 '1' = the attempt begins: pieces of earlier attempts are removed
      8 how many milliseconds to keep the running answers, at least
Reply 1 saved   0 not saved: the lease is lost, the answer is written, or the session was deleted
]]
if redis.call('GET', KEYS[2]) ~= ARGV[1] or redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
local session = redis.call('HMGET', KEYS[3], 'version', 'closing', 'created', 'entered')
if not session[1] or session[2] or tonumber(session[4] or session[3]) > tonumber(ARGV[2]) then return 0 end
if ARGV[7] == '1' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, #ARGV[3]) == ARGV[3] then redis.call('HDEL', KEYS[1], field) end
  end
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], ARGV[5], ARGV[6]) end
-- Another agent of the session can have a longer timeout.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[8]) then redis.call('PEXPIRE', KEYS[1], ARGV[8]) end
return 1
