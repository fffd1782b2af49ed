#!lua
--[[
Keep a document in the archive of an owner, and record in its log that it came into use.

KEYS  1 documents   2 log of the kind, the newest entry first
ARGV  1 field of the document: kind (one byte) and digest (16 hexadecimal digits)
      2 the document (JSON). It is stored as `<time> <JSON>`
      3 entry: the part after the time and the digest: name, null byte, source
      4 name, '' = the document has no name: it is recorded once
      5 maximum number of entries in the log
      6 maximum bytes of the documents of the kind
      7 time of an imported entry, '' = now
Reply 1 recorded   0 nothing changed

An entry is `<time> <digest> <name>\0<source>`. A named document is recorded again when another one was in force under
the same name in between. Above a limit, the oldest entries are dropped, except the newest entry of each name. Above
twice a limit, these are dropped too. A document without an entry is deleted. Each kind has limits of its own, so that
documents of one kind do not displace those of another. The field with the name of the kind (one byte) holds its bytes.
]]
local kind, digest = string.sub(ARGV[1], 1, 1), string.sub(ARGV[1], 2)
local entries = redis.call('LRANGE', KEYS[2], 0, -1)
local function parts(entry) return string.match(entry, '^(%d+) (%x+) ([^%z]*)%z') end
local time = redis.call('TIME')
local stamp = ARGV[7] ~= '' and ARGV[7] or string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local entry = stamp .. ' ' .. digest .. ' ' .. ARGV[3]

local function is_recorded()
  for _, existing in ipairs(entries) do
    local at, used, name = parts(existing)
    if ARGV[7] ~= '' then
      if existing == entry then return true end
    elseif ARGV[4] == '' then
      if used == digest and name == '' then return true end
    elseif name == ARGV[4] then
      return string.sub(existing, #at + 2) == digest .. ' ' .. ARGV[3]
    end
  end
  return false
end

local exists = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
local recorded = is_recorded()
if exists and recorded then return 0 end
if not exists then
  local value = stamp .. ' ' .. ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], value)
  redis.call('HINCRBY', KEYS[1], kind, #value)
end
if not recorded then
  -- Imported entries keep their order by time.
  local before = 1
  while ARGV[7] ~= '' and entries[before] and tonumber((parts(entries[before]))) > tonumber(stamp) do
    before = before + 1
  end
  if before == 1 then redis.call('LPUSH', KEYS[2], entry)
  elseif entries[before] then redis.call('LINSERT', KEYS[2], 'BEFORE', entries[before], entry)
  else redis.call('RPUSH', KEYS[2], entry) end
  table.insert(entries, before, entry)
end

local bytes = tonumber(redis.call('HGET', KEYS[1], kind) or 0)
local function is_above(factor)
  return #entries > factor * tonumber(ARGV[5]) or bytes > factor * tonumber(ARGV[6])
end
if is_above(1) then
  local uses, newest = {}, {}
  for position, existing in ipairs(entries) do
    local _, used, name = parts(existing)
    uses[used] = (uses[used] or 0) + 1
    if name ~= '' and not newest[name] then newest[name] = existing end
  end
  local function drop_while_above(factor, drops_newest)
    local position = #entries
    while position > 0 and is_above(factor) do
      local existing = entries[position]
      local _, used, name = parts(existing)
      if existing ~= entry and (drops_newest or newest[name] ~= existing) then
        redis.call('LREM', KEYS[2], -1, existing)
        table.remove(entries, position)
        uses[used] = uses[used] - 1
        if uses[used] == 0 then
          local field = kind .. used
          bytes = redis.call('HINCRBY', KEYS[1], kind, -redis.call('HSTRLEN', KEYS[1], field))
          redis.call('HDEL', KEYS[1], field)
        end
      end
      position = position - 1
    end
  end
  drop_while_above(1, false)
  drop_while_above(2, true)
end
return recorded and 0 or 1
