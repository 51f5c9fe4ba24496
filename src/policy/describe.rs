//! What a policy allows, in words, with a warning where that is unlikely to be intended.

use std::fmt;
use std::time::Duration;

use super::named::{NamedLimit, Policy};
use super::on_error::OnError;
use crate::limit::{Config, Kind, Limit};

/// One line for people: what the policy allows, on average and at worst.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match (self.limits(), self.shadow_limits()) {
            ([], []) => f.write_str("admits everything: all its limits are off")?,
            ([], _) => f.write_str("admits everything: it enforces no limit")?,
            (limits, _) => describe_all(f, limits)?,
        }
        if !self.shadow_limits().is_empty() {
            f.write_str("; shadow: ")?;
            describe_all(f, self.shadow_limits())?;
        }
        let is_any_asked = !self.limits().is_empty() || !self.shadow_limits().is_empty();
        if is_any_asked && !self.off_limits().is_empty() {
            let names: Vec<_> = self.off_limits().iter().filter_map(Option::as_deref).collect();
            write!(f, "; off: {}", names.join(", "))?;
        }
        match self.on_error() {
            OnError::CLOSED => Ok(()),
            _ if self.limits().is_empty() => Ok(()),
            open => write!(f, "; fails open on {open}"),
        }
    }
}

fn describe_all(f: &mut fmt::Formatter<'_>, limits: &[NamedLimit]) -> fmt::Result {
    for (index, limit) in limits.iter().enumerate() {
        if index > 0 {
            f.write_str(" AND ")?;
        }
        if let Some(name) = limit.name() {
            write!(f, "{name} ")?;
        }
        describe(f, limit.limit())?;
    }
    Ok(())
}

/// Over any interval a bucket admits at most its capacity and what is refilled in that time. Within one period that may be
/// their sum: 200 at once and 100 more within the minute.
fn describe(f: &mut fmt::Formatter<'_>, limit: &Limit) -> fmt::Result {
    let Config { kind, rate, period_ms, capacity, max_debt, .. } = *limit.config();
    let period = humantime::format_duration(Duration::from_millis(period_ms));
    let kind = match kind {
        Kind::TokenBucket => "token bucket",
        Kind::FixedWindow => "fixed window",
    };
    write!(f, "{kind}, {rate} per {period}, at most {capacity} at once")?;
    match (capacity, rate) {
        (0, _) if max_debt == 0 => write!(f, "; WARNING: with a capacity of 0 every request is refused"),
        (_, 0) => write!(f, "; WARNING: with a rate of 0 a spent budget never refills"),
        _ => {
            let worst = match limit.config().kind {
                Kind::TokenBucket => capacity.saturating_add(rate),
                Kind::FixedWindow => capacity.saturating_add(rate.min(capacity)),
            };
            write!(f, " and {worst} within any {period}")
        }
    }
}
