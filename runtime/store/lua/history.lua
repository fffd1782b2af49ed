#!lua
--[[
Claim a minute of the load history, or write its sample. Processes that measure at the same time write one sample.

KEYS  1 history
ARGV  1 slot: minute modulo the length of the history   2 minute   3 sample (JSON), '' = claim the minute
Reply 1 claimed or written   0 another process has claimed the minute, or a later one
]]
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local minute = stored and tonumber(string.match(stored, '^%d+')) or -1
if ARGV[3] == '' and minute >= tonumber(ARGV[2]) then return 0 end
if ARGV[3] ~= '' and minute ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return 1
