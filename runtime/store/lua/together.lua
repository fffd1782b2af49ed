#!lua
--[[
Wraps another script (create) and runs it several times for one session: all runs write, or none. If the first run is
refused, nothing is written. The caller must make sure that the later runs cannot be refused after it.

KEYS  those of the other script for each run, in sequence
ARGV  1 number of runs
      for each run: its number of keys, its number of arguments, then its arguments
Reply that of the first run. If it is {0, …} (WRITTEN), the replies of the other runs follow as a sixth value
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
local keys_read, args_read, first, others = 0, 1, nil, {}
for run = 1, tonumber(args[1]) do
  local own_keys, own_args = {}, {}
  local key_count, arg_count = tonumber(args[args_read + 1]), tonumber(args[args_read + 2])
  for i = 1, key_count do own_keys[i] = keys[keys_read + i] end
  for i = 1, arg_count do own_args[i] = args[args_read + 2 + i] end
  keys_read, args_read = keys_read + key_count, args_read + 2 + arg_count
  local reply = write(own_keys, own_args)
  if run == 1 then first = reply else others[run - 1] = reply end
  if first[1] ~= 0 then break end
end
if first[1] == 0 then first[6] = others end
return first
