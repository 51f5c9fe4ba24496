//! The endpoints about budgets, by path.

use crate::access::Scope;

/// The endpoints about budgets, by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/consume`: take tokens now or in advance.
    Consume,
    /// `/v1/peek`: the same answer, nothing taken.
    Peek,
    /// `/v1/charge`: debit past usage.
    Charge,
    /// `/v1/refund`: give tokens back.
    Refund,
    /// `/v1/reset`: fill the bucket.
    Reset,
    /// `/v1/inspect`: the state of the buckets.
    Inspect,
    /// `/v1/settle`: close a reservation at its real cost.
    Settle,
    /// `/v1/cancel`: close a reservation and give everything back.
    Cancel,
    /// `/v1/extend`: prolong a reservation, and optionally add tokens.
    Extend,
    /// `/v1/batch`: several at once, all or none.
    Batch,
    /// `/v1/lease`: tokens for a server that decides by itself.
    Lease,
    /// `/v1/keys/explain`: the answer a request would get, and why.
    Explain,
    /// `/v1/keys/reset`: fill the buckets, as an operator.
    ResetKey,
    /// `/v1/keys/credit`: add tokens, as an operator.
    Credit,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 14] = [
        Self::Consume,
        Self::Peek,
        Self::Charge,
        Self::Refund,
        Self::Reset,
        Self::Inspect,
        Self::Settle,
        Self::Cancel,
        Self::Extend,
        Self::Batch,
        Self::Lease,
        Self::Explain,
        Self::ResetKey,
        Self::Credit,
    ];

    /// The endpoint at `path`.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    /// Its path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Consume => "/v1/consume",
            Self::Peek => "/v1/peek",
            Self::Charge => "/v1/charge",
            Self::Refund => "/v1/refund",
            Self::Reset => "/v1/reset",
            Self::Inspect => "/v1/inspect",
            Self::Settle => "/v1/settle",
            Self::Cancel => "/v1/cancel",
            Self::Extend => "/v1/extend",
            Self::Batch => "/v1/batch",
            Self::Lease => "/v1/lease",
            Self::Explain => "/v1/keys/explain",
            Self::ResetKey => "/v1/keys/reset",
            Self::Credit => "/v1/keys/credit",
        }
    }

    /// Its verb: the last part of the path, as grants name it.
    #[must_use]
    pub fn verb(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    /// The scope it requires.
    #[must_use]
    pub const fn scope(self) -> Scope {
        match self {
            Self::Consume | Self::Peek | Self::Inspect | Self::Settle | Self::Cancel | Self::Extend | Self::Batch => {
                Scope::Consume
            }
            Self::Charge | Self::Refund | Self::Reset | Self::Lease => Scope::Adjust,
            Self::Explain | Self::ResetKey | Self::Credit => Scope::Admin,
        }
    }

    /// The fields allowed in the body.
    pub(super) const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Consume | Self::Peek => &["policy", "key", "cost", "mode", "max_wait_ms", "snapshot", "limits"],
            Self::Charge | Self::Refund => &["policy", "key", "cost", "snapshot", "limits"],
            Self::Reset | Self::Inspect => &["policy", "key", "snapshot", "limits"],
            Self::Settle | Self::Extend => &["policy", "key", "reservation", "cost", "snapshot", "limits"],
            Self::Cancel => &["policy", "key", "reservation", "snapshot", "limits"],
            Self::Batch => &["requests"],
            Self::Lease => &["policy", "key", "cost", "tokens", "returned"],
            Self::Explain | Self::Credit => &["policy", "key", "cost"],
            Self::ResetKey => &["policy", "key"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_has_exactly_the_verbs_of_its_endpoints() {
        for scope in Scope::ALL {
            let of_scope = Endpoint::ALL.into_iter().filter(|endpoint| endpoint.scope() == scope);
            let mut verbs: Vec<_> = of_scope.map(Endpoint::verb).collect();
            let mut known = scope.verbs().to_vec();
            verbs.sort_unstable();
            known.sort_unstable();
            assert_eq!(verbs, known, "{scope:?}");
        }
    }
}
