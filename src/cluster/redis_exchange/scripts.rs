//! What Redis does in one step, in Lua.

/// Takes a session: the act that stands is asked for first. A terminated session is not
/// taken. The list moves to a key with the new epoch and owner, which fences the previous
/// owner.
pub const TAKE: &str = r"
local acts = redis.call('HGETALL', KEYS[2])
for i = 1, #acts, 2 do
  if acts[i] == 's' and string.sub(acts[i + 1], 1, 1) == 'T' then return {0, {}, acts, ''} end
end
local o = redis.call('GET', KEYS[1])
local n = (o and tonumber(string.match(o, '^(%d+)')) or 0) + 1
local new = ARGV[2] .. n .. ' ' .. ARGV[1]
redis.call('SET', KEYS[1], n .. ' ' .. ARGV[1], 'PX', ARGV[3])
if o and redis.call('EXISTS', ARGV[2] .. o) == 1 then
  redis.call('RENAME', ARGV[2] .. o, new)
else
  redis.call('RPUSH', new, '')
end
redis.call('PEXPIRE', new, ARGV[3])
return {n, redis.call('LRANGE', new, 0, -1), acts, o or ''}";

/// The same without changing anything.
pub const LOOK: &str = r"
local o = redis.call('GET', KEYS[1])
local n = o and tonumber(string.match(o, '^(%d+)')) or 0
local list = o and redis.call('LRANGE', ARGV[2] .. o, 0, -1) or {}
return {n, list, redis.call('HGETALL', KEYS[2]), o or ''}";

/// Acts on a session. An older act is refused; one of the session clears what is older and
/// takes the session from its owner.
pub const ACT: &str = r"
local function id(value) return string.sub(value, 2, 33) end
local s = redis.call('HGET', KEYS[1], 's')
if s and id(s) > ARGV[2] then return s end
local f = redis.call('HGET', KEYS[1], ARGV[1])
if f and id(f) > ARGV[2] then return f end
if f and id(f) == ARGV[2] then return 1 end
if ARGV[1] == 's' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if id(all[i + 1]) < ARGV[2] then redis.call('HDEL', KEYS[1], all[i]) end
  end
  local o = redis.call('GET', KEYS[2])
  if o then
    redis.call('DEL', ARGV[5] .. o)
    local n = tonumber(string.match(o, '^(%d+)')) + 1
    redis.call('SET', KEYS[2], n .. ' -', 'PX', ARGV[4])
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1";

/// Ends a session: no replica owns it, and its state is gone.
pub const END: &str = r"
local o = redis.call('GET', KEYS[1])
if o then
  redis.call('DEL', ARGV[1] .. o)
  local n = tonumber(string.match(o, '^(%d+)')) + 1
  redis.call('SET', KEYS[1], n .. ' -', 'PX', ARGV[2])
end
return 1";

/// Holds a lease: takes it if no replica has it, and extends it if it is ours.
pub const LEASE: &str = r"
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";
