#!lua
--[[
Write the values of an exported state that are newer than those of the session. Runs after the import of its breadcrumbs.

KEYS  1 session   2 state   3 mark of the indexes by user
ARGV  1 time when the session began   2… name, `<time> <JSON>`, name, `<time> <JSON>` …
Reply 1 changed   0 nothing changed, or the session does not exist or is being deleted
]]
local session = redis.call('HMGET', KEYS[1], 'version', 'closing', 'created')
if not session[1] or session[2] then return 0 end
local changed = 0
local began = tonumber(ARGV[1])
if session[3] and began < tonumber(session[3]) then
  redis.call('HSET', KEYS[1], 'created', ARGV[1])
  redis.call('HSETNX', KEYS[1], 'entered', session[3])
  changed = 1
end
local began_by
for i = 2, #ARGV, 2 do
  if ARGV[i] == '\0began_by' then
    began_by = ARGV[i + 1]
  else
    local stored = redis.call('HGET', KEYS[2], ARGV[i])
    if not stored or tonumber(string.match(stored, '^%d+')) < tonumber(string.match(ARGV[i + 1], '^%d+')) then
      redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
      changed = 1
    end
  end
end
-- The user of the session is the one who began it, also if the first breadcrumb was deleted. A session that began in
-- this store (time 0), or with an older breadcrumb, keeps its user.
local stored = redis.call('HGET', KEYS[2], '\0began_by')
local is_own = stored and string.sub(stored, 1, 2) == '0 '
if not is_own and (not session[3] or began <= tonumber(session[3])) and stored ~= (began_by or false) then
  if began_by then redis.call('HSET', KEYS[2], '\0began_by', began_by)
  else redis.call('HDEL', KEYS[2], '\0began_by') end
  changed = 1
end
-- The next change counts the size of the state again (see create.lua). The user can have changed: see session_users.py.
if changed == 1 then
  redis.call('HDEL', KEYS[1], 'state')
  redis.call('DEL', KEYS[3])
end
return changed
