-- The token bucket of an article on rate limiting with PostgreSQL: the tokens that remain, or -1 if there was none.
--
-- Three of its faults are mended. Its refill is truncated to whole tokens and its time moved by refusals, so that a caller who keeps trying is
-- never let in again; here tokens have fractions and a refusal writes nothing. It has no rate below one token per second, and a
-- capacity only in multiples of the rate. And of two first calls for a key one fails.
--
-- It is one statement, so that it needs no isolation level but the default one. The article's is serializable, where calls for one key fail
-- and have to be made again.
create table rate_limiting_token_bucket (
  id text primary key,
  tk double precision not null,
  ts timestamptz not null
);

create function rate_limiting_token_bucket_request
  (rate_id text, refill_per_sec double precision, capacity double precision)
  returns int as $$
declare
  new_tk double precision := null; -- stores the remaining tokens to return
begin
  -- take 1 token and add refilled ones (NULL if there are not enough, or if id is not found)
  update rate_limiting_token_bucket
    set tk = least(tk + refill_per_sec * extract(epoch from clock_timestamp() - ts), capacity) - 1, ts = clock_timestamp()
    where id = rate_id
      and least(tk + refill_per_sec * extract(epoch from clock_timestamp() - ts), capacity) >= 1
    returning tk into new_tk;
  -- fill at the first call
  if new_tk is null then
    insert into rate_limiting_token_bucket (id, tk, ts)
      values (rate_id, capacity - 1, clock_timestamp())
      on conflict do nothing
      returning tk into new_tk;
  end if;
  return coalesce(floor(new_tk), -1);
end; $$ language plpgsql;
