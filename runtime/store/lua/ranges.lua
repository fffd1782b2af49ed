#!lua flags=no-writes
--[[
Read entries of several sorted sets in one order: by score, then by the bytes of the member.

KEYS  sorted sets
ARGV  1 '1' = descending, '0' = ascending
      2 the first score
      3 the member with the first score after which the entries begin, '' = with the first score
      4 the last score
      5 how many entries to return
Reply {member, score, position of its set in KEYS from 1, member, score, …}. Fewer entries only at the end. A member that
      is in several sets is returned for each.
]]
local descending, first, wanted = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[5])
local command = descending and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
local piece = math.min(wanted, math.max(2, math.ceil(2 * wanted / #KEYS)))

-- Lua's < compares strings by the locale of the server.
local function is_less(a, b)
  for i = 1, math.min(#a, #b) do
    local one, other = string.byte(a, i), string.byte(b, i)
    if one ~= other then return one < other end
  end
  return #a < #b
end
local function comes_before(score, member, other_score, other_member)
  if descending then score, member, other_score, other_member = other_score, other_member, score, member end
  if score ~= other_score then return score < other_score end
  return is_less(member, other_member)
end

local sets = {}
-- Move to the next entry of a set. Return false at its end.
local function advance(set)
  while true do
    set.at = set.at + 2
    if set.at > #set.entries then
      if set.ended then return false end
      set.entries = redis.call(command, set.key, ARGV[2], ARGV[4], 'WITHSCORES', 'LIMIT', set.read, piece)
      set.read, set.at, set.ended = set.read + piece, 1, #set.entries < 2 * piece
      if #set.entries == 0 then return false end
    end
    set.member, set.score = set.entries[set.at], tonumber(set.entries[set.at + 1])
    if ARGV[3] == '' or comes_before(first, ARGV[3], set.score, set.member) then return true end
  end
end
-- Restore the order of the heap `sets` below a place. Its root is the set with the next entry.
local function sift_down(place)
  while true do
    local next_place = place
    for child = 2 * place, 2 * place + 1 do
      local a, b = sets[child], sets[next_place]
      if a and comes_before(a.score, a.member, b.score, b.member) then next_place = child end
    end
    if next_place == place then return end
    sets[place], sets[next_place] = sets[next_place], sets[place]
    place = next_place
  end
end

for i = 1, #KEYS do
  local set = {key = KEYS[i], number = i, entries = {}, at = -1, read = 0}
  if advance(set) then sets[#sets + 1] = set end
end
for place = math.floor(#sets / 2), 1, -1 do sift_down(place) end
local reply = {}
while sets[1] and #reply < 3 * wanted do
  local set = sets[1]
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = set.member, set.entries[set.at + 1], set.number
  if not advance(set) then
    sets[1] = sets[#sets]
    sets[#sets] = nil
  end
  if sets[1] then sift_down(1) end
end
return reply
