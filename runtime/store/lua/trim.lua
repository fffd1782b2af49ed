#!lua
--[[
Delete the oldest events of a lane, and note the newest deleted one as the trim position.

One script does both. With separate commands, a slower process could set an older trim position after a faster one has
deleted later events, and readers would not notice the gap.

KEYS  1 event log   2 trim position
ARGV  1 time: events before it are deleted
Reply number of deleted events
]]
local last = redis.call('XREVRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '-', 'COUNT', 1)
if #last == 0 then return 0 end
redis.call('SET', KEYS[2], string.match(last[1][1], '^%d+'))
return redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1] .. '-0')
