//! A part of a divided policy, and its part of a limit.

use crate::limit::{Config, ConfigError, Kind, Limit};

/// Maximum shards of a policy: each decision about a refused key may call all of them.
pub const MAX_SHARDS: u8 = 16;

/// A shard of a policy: its index and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u8,
    /// 1 if the others are gone.
    pub count: u8,
}

/// Why that limit cannot be divided; follows its name in a message.
pub(super) fn check(limit: &Limit, count: u8) -> Result<(), String> {
    let Config { kind, capacity, max_debt, initial, is_soft, .. } = *limit.config();
    let problem = if kind == Kind::RollingWindow {
        "is a rolling window, which cannot be divided: make it a token bucket"
    } else if kind != Kind::TokenBucket {
        "is a fixed window, which cannot be divided: make it a token bucket"
    } else if is_soft {
        "is soft, which shards cannot be"
    } else if max_debt > 0 {
        "has a max_debt, which shards cannot have"
    } else if initial.is_some() {
        "has `initial`, which shards cannot have: they are full at first"
    } else if capacity < count.into() {
        return Err(format!("has a capacity of {capacity}, less than a token for each of {count} shards"));
    } else {
        let error = |error| format!("cannot be divided among {count} shards: {error}");
        return part(limit, 0, count).map(drop).map_err(error);
    };
    Err(problem.to_owned())
}

/// A shard's part of a limit.
pub(super) fn part(limit: &Limit, index: u8, count: u8) -> Result<Limit, ConfigError> {
    let config = *limit.config();
    if count == 1 {
        return Ok(*limit);
    }
    let shares = |tokens: u64| {
        let (each, rest) = (tokens.checked_div(count.into()), tokens.checked_rem(count.into()));
        each.unwrap_or(tokens).saturating_add(u64::from(u64::from(index) < rest.unwrap_or(0)))
    };
    Limit::new(&Config {
        period_ms: config.period_ms.saturating_mul(count.into()),
        capacity: shares(config.capacity),
        ..config
    })
}

/// A limit that holds nothing.
pub(super) fn absent(limit: &Limit) -> Result<Limit, ConfigError> {
    let config = *limit.config();
    Limit::new(&Config { capacity: 0, max_debt: 0, initial: Some(0), ..config })
}
