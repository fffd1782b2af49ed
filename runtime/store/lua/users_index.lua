#!lua
--[[
Add sessions to the indexes by user, and move the mark: see session_users.py.

KEYS  1 sessions   2 mark   3, 4 … per session: the session, and the index of its user (any key if it has none)
ARGV  1 the mark that the sessions were read with   2 the new mark
      3, 4, 5 … per session: name, score, '=' and the user ('' = none)
Reply 1 done   0 the mark has changed: read the sessions again
]]
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 3 do
  local name, score, user = ARGV[i], ARGV[i + 1], ARGV[i + 2] ~= '' and string.sub(ARGV[i + 2], 2)
  local session, index = KEYS[(i - 3) / 3 * 2 + 3], KEYS[(i - 3) / 3 * 2 + 4]
  -- A session that was written since has a score above the new mark. It is read again.
  if tonumber(redis.call('ZSCORE', KEYS[1], name) or -1) == tonumber(score) then
    local before = redis.call('HGET', session, 'user')
    if user then
      redis.call('ZADD', index, score, name)
      if before ~= user then redis.call('HSET', session, 'user', user) end
    elseif before then
      redis.call('HDEL', session, 'user')
    end
    if before and before ~= user then
      -- During slot migration the server refuses a missing key that was not declared. Reads skip a wrong entry.
      redis.pcall('ZREM', string.sub(KEYS[1], 1, -18) .. 'U' .. string.sub(KEYS[1], -16) .. before, name)
    end
  end
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
