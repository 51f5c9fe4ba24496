-- The token bucket of an article on rate limiting with Redis, which is Guava's: whoever takes more than there is makes the next one wait.
-- As it is there, but for one line: it let a key expire after 10 seconds, so that a bucket that refills more slowly forgot its debt.
local key = KEYS[1]
local max_permits = tonumber(KEYS[2])
local permits_per_second = tonumber(KEYS[3])
local required_permits = tonumber(ARGV[1])

local next_free_ticket_micros = tonumber(redis.call('hget', key, 'next_free_ticket_micros') or 0)
local time = redis.call('time')
local now_micros = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- longer than the caller wants to wait
if (ARGV[2] ~= nil) then
  local timeout_micros = tonumber(ARGV[2])
  local micros_to_wait = next_free_ticket_micros - now_micros
  if (micros_to_wait > timeout_micros) then
    return micros_to_wait
  end
end

local stored_permits = tonumber(redis.call('hget', key, 'stored_permits') or 0)
local stable_interval_micros = 1000000 / permits_per_second

-- refill
if (now_micros > next_free_ticket_micros) then
  local new_permits = (now_micros - next_free_ticket_micros) / stable_interval_micros
  stored_permits = math.min(max_permits, stored_permits + new_permits)
  next_free_ticket_micros = now_micros
end

local moment_available = next_free_ticket_micros
local stored_permits_to_spend = math.min(required_permits, stored_permits)
local fresh_permits = required_permits - stored_permits_to_spend;
local wait_micros = fresh_permits * stable_interval_micros

redis.replicate_commands()
redis.call('hset', key, 'stored_permits', stored_permits - stored_permits_to_spend)
redis.call('hset', key, 'next_free_ticket_micros', next_free_ticket_micros + wait_micros)
-- when it is full again
redis.call('expire', key, math.ceil((wait_micros + max_permits * stable_interval_micros) / 1000000) + 10)

return moment_available - now_micros
