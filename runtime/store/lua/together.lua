#!lua
--[[
Wraps another script (create): several breadcrumbs of one session, all of them or nothing. The first one decides: where
it is refused nothing is written. The others must be such that they cannot be refused after it.

KEYS  those of the other script, for each of its runs, one after the other
ARGV  1 how many runs
      for each run: how many keys and how many arguments it has, then its arguments
Reply that of the first run
]]
local write
local keys, args = KEYS, ARGV
do
  local KEYS, ARGV
  write = function(own_keys, own_args)
    KEYS, ARGV = own_keys, own_args
    -- the other script
  end
end
local key, arg, first = 0, 1, nil
for run = 1, tonumber(args[1]) do
  local own_keys, own_args = {}, {}
  local many_keys, many_args = tonumber(args[arg + 1]), tonumber(args[arg + 2])
  for place = 1, many_keys do own_keys[place] = keys[key + place] end
  for place = 1, many_args do own_args[place] = args[arg + 2 + place] end
  key, arg = key + many_keys, arg + 2 + many_args
  local reply = write(own_keys, own_args)
  if run == 1 then first = reply end
  if first[1] ~= 0 then break end
end
return first
