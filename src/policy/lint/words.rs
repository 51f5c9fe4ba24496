//! The facts and findings as texts.

use std::fmt;

use super::Lint;
use super::facts::{Admitted, BanFacts, CrashCost, LimitFacts};
use super::findings::{Code, Finding, Level};
use super::worst::Worst;
use crate::length;
use crate::limit::{Config, Kind, Limit};
use crate::policy::calendar::shown_period;
use crate::policy::named::Policy;
use crate::policy::named_limit::{NamedLimit, SLOTS};

/// A line about what the policy allows, on average and at worst.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match (self.limits(), self.shadow_limits()) {
            ([], []) => f.write_str("admits everything: all its limits are off")?,
            ([], _) => f.write_str("admits everything: it enforces no limit")?,
            (limits, _) => write_limits(f, limits)?,
        }
        if !self.shadow_limits().is_empty() {
            f.write_str("; shadow: ")?;
            write_limits(f, self.shadow_limits())?;
        }
        let is_any_asked = !self.limits().is_empty() || !self.shadow_limits().is_empty();
        if is_any_asked && !self.off_limits().is_empty() {
            let names: Vec<_> = self.off_limits().iter().filter_map(Option::as_deref).collect();
            write!(f, "; off: {}", names.join(", "))?;
        }
        if self.declared_shards() > 1 {
            write!(f, "; in {} shards", self.declared_shards())?;
        }
        self.frontend().write_summary(self.is_enforced(), f)
    }
}

/// The summary; indented, a line for the consequences of each limit, and one for each finding.
impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary)?;
        for (index, within) in self.together.iter().enumerate() {
            let before = if index == 0 { "\n  together, at the same cost in each: at most" } else { " and" };
            write!(f, "{before} {within}")?;
        }
        for limit in &self.limits {
            write!(f, "\n  {limit}")?;
        }
        if let Some(bans) = &self.bans {
            write!(f, "\n  {bans}")?;
        }
        for finding in &self.findings {
            write!(f, "\n  {finding}")?;
        }
        Ok(())
    }
}

/// `300 within any 1m`.
impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within any {}", self.tokens, length::shown(self.period_ms))
    }
}

/// What a careless user and an attacker experience.
impl fmt::Display for BanFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tolerated, within_ms, first_ms, grow, longest_ms, let_in_within_day } = *self;
        let [within, first, longest] = [within_ms, first_ms, longest_ms].map(length::shown);
        match tolerated {
            0 => write!(f, "bans: the first refusal bans a key for {first}")?,
            1 => write!(f, "bans: 1 refusal within any {within} is tolerated; one more bans a key for {first}")?,
            _ => write!(
                f,
                "bans: {tolerated} refusals within any {within} are tolerated; one more bans a key for {first}"
            )?,
        }
        if longest_ms > first_ms {
            write!(f, ", and each further ban is {grow} times as long, up to {longest}")?;
        }
        write!(f, "; a key that never stops is let in again {let_in_within_day} times in its first day")
    }
}

/// A limit's times and costs; [`Policy`] displays what it admits.
impl fmt::Display for LimitFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        match (self.is_enforced, self.is_soft) {
            (true, _) => {}
            (false, true) => f.write_str("soft, ")?,
            (false, false) => f.write_str("in shadow, ")?,
        }
        match self.full_after_ms {
            _ if self.kind == SLOTS => f.write_str("each back when its reservation ends; ")?,
            Some(ms) => write!(f, "from empty to full in {}; ", length::shown(ms))?,
            None => f.write_str("never full again; ")?,
        }
        if let Some(debt) = &self.debt {
            write!(f, "with debt at most {} at once, ", debt.burst)?;
            match debt.paid_after_ms {
                Some(ms) => write!(f, "paid after {}; ", length::shown(ms))?,
                None => f.write_str("never paid; ")?,
            }
        }
        match self.crash {
            CrashCost { tokens: 0, .. } => f.write_str("a crash costs nothing")?,
            CrashCost { tokens, back_after_ms: None } => write!(f, "a crash costs a key at most {tokens}, for good")?,
            CrashCost { tokens, back_after_ms: Some(ms) } => {
                write!(f, "a crash costs a key at most {tokens}, back after {}", length::shown(ms))?;
            }
        }
        write!(f, "; renaming it resets a key to {}", self.change_grants)
    }
}

/// `warning: tokens: a debt of … (long_debt)`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.level {
            Level::Warning => "warning: ",
            Level::Note => "note: ",
        })?;
        if let Some(limit) = &self.limit {
            write!(f, "{limit}: ")?;
        }
        write!(f, "{} ({})", self.text, self.code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

fn write_limits(f: &mut fmt::Formatter<'_>, limits: &[NamedLimit]) -> fmt::Result {
    for (index, limit) in limits.iter().enumerate() {
        if index > 0 {
            f.write_str(" AND ")?;
        }
        if let Some(name) = limit.name() {
            write!(f, "{name} ")?;
        }
        if limit.is_slots() {
            write!(f, "slots, {} at once", limit.limit().config().capacity)?;
            continue;
        }
        write_limit(f, limit.limit())?;
    }
    Ok(())
}

fn write_limit(f: &mut fmt::Formatter<'_>, limit: &Limit) -> fmt::Result {
    let Config { kind, rate, period_ms, capacity, is_soft, .. } = *limit.config();
    let period = shown_period(limit.config());
    let kind = match kind {
        Kind::TokenBucket => "token bucket",
        Kind::FixedWindow => "fixed window",
        Kind::FirstUseWindow => "window from first use",
        Kind::RollingWindow => return write!(f, "rolling window, at most {rate} in any {period}"),
    };
    if is_soft {
        return write!(f, "soft {kind}, {rate} per {period}, {capacity} at once");
    }
    let worst = Worst::of_consuming(limit.config());
    write!(f, "{kind}, {rate} per {period}, at most {} at once", worst.burst)?;
    if rate == 0 {
        return Ok(());
    }
    write!(f, " and {} within any {}", worst.within(period_ms), length::shown(period_ms))
}
