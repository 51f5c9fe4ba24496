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
    /// Until when the last ban is or was, and how long it lasts or lasted.
    last: Option<(i64, i64)>,
}

impl BanModel {
    /// When the ban ends that is in force.
    pub(crate) fn banned_until(&mut self, now: i64) -> Option<i64> {
        let Standing { refused_at, last } = &mut self.current;
        if let Some((until, length_ms)) = last {
            *until = (*until).min(now + *length_ms);
        }
        for at in refused_at {
            *at = (*at).min(now);
        }
        last.map(|(until, _)| until).filter(|until| now < *until)
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
            let before = last.filter(|(until, _)| now < until + max_ms.cast_signed());
            let longer = before.map_or(for_ms, |(_, ms)| ms.unsigned_abs() * u64::from(grow));
            let length_ms = longer.clamp(for_ms, max_ms).cast_signed();
            *last = Some((now + length_ms, length_ms));
        }
        self.stored = self.current.clone();
        self.current.last.filter(|_| is_too_often).map(|(until, _)| until)
    }

    pub(crate) fn crash(&mut self) {
        (self.current, self.last_id) = (self.stored.clone(), None);
    }

    /// After a reset, or when the row is deleted.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
