//! The refusals and bans of a key by one policy, as they should be.

use tollgate::policy::BanTerms;

#[derive(Clone, Debug, Default)]
pub(crate) struct BanModel {
    current: Standing,
    /// The same as it is stored: a step back of the clock is not.
    stored: Standing,
    /// The id of a frontend's request that was refused last.
    last_id: Option<u128>,
}

#[derive(Clone, Debug, Default)]
struct Standing {
    /// The refusals since the last ban.
    refused_at: Vec<i64>,
    last: Option<Last>,
}

/// The last ban.
#[derive(Clone, Copy, Debug)]
struct Last {
    until: i64,
    length_ms: i64,
    /// Noticed by a request: no step back of the clock revives it.
    is_over: bool,
}

impl BanModel {
    /// When the ban ends that is in force.
    pub(crate) fn banned_until(&mut self, now: i64) -> Option<i64> {
        let Standing { refused_at, last } = &mut self.current;
        if let Some(Last { until, length_ms, is_over }) = last {
            if !*is_over {
                *until = (*until).min(now + *length_ms);
            }
            *is_over |= *until <= now;
        }
        for at in refused_at {
            *at = (*at).min(now);
        }
        last.filter(|last| !last.is_over).map(|last| last.until)
    }

    /// A refusal of a key that is not banned: until when it is banned for that, if it is.
    pub(crate) fn refused(&mut self, terms: BanTerms, now: i64, id: Option<u128>) -> Option<i64> {
        if id.is_some() && self.last_id == id {
            return None;
        }
        self.last_id = id;
        let BanTerms { after, within_ms, for_ms, grow, max_ms, .. } = terms;
        let Standing { refused_at, last } = &mut self.current;
        refused_at.push(now);
        refused_at.retain(|at| now - *at < within_ms.cast_signed());
        let is_too_often = refused_at.len() >= usize::from(after);
        if is_too_often {
            refused_at.clear();
            let before = last.filter(|last| now < last.until + max_ms.cast_signed());
            let longer = before.map_or(for_ms, |last| last.length_ms.unsigned_abs() * u64::from(grow));
            let length_ms = longer.clamp(for_ms, max_ms).cast_signed();
            *last = Some(Last { until: now + length_ms, length_ms, is_over: false });
        }
        self.stored = self.current.clone();
        self.current.last.filter(|_| is_too_often).map(|last| last.until)
    }

    pub(crate) fn crash(&mut self) {
        (self.current, self.last_id) = (self.stored.clone(), None);
    }

    /// After a reset, or when the row is deleted.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
