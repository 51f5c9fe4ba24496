//! What can be asked, by its path.

/// What can be asked, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/consume`: take tokens now or in advance.
    Consume,
    /// `/v1/peek`: the same answer, nothing taken.
    Peek,
    /// `/v1/charge`: debit what has already happened.
    Charge,
    /// `/v1/refund`: give back.
    Refund,
    /// `/v1/reset`: full again.
    Reset,
    /// `/v1/inspect`: how the buckets stand.
    Inspect,
    /// `/v1/settle`: close a reservation at its real cost.
    Settle,
    /// `/v1/cancel`: close a reservation and give everything back.
    Cancel,
    /// `/v1/batch`: several at once, all or none.
    Batch,
}

impl Endpoint {
    /// The paths of all endpoints.
    pub const PATHS: [&str; 9] = [
        "/v1/consume",
        "/v1/peek",
        "/v1/charge",
        "/v1/refund",
        "/v1/reset",
        "/v1/inspect",
        "/v1/settle",
        "/v1/cancel",
        "/v1/batch",
    ];

    /// The endpoint at `path`.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        const ALL: [Endpoint; 9] = [
            Endpoint::Consume,
            Endpoint::Peek,
            Endpoint::Charge,
            Endpoint::Refund,
            Endpoint::Reset,
            Endpoint::Inspect,
            Endpoint::Settle,
            Endpoint::Cancel,
            Endpoint::Batch,
        ];
        Self::PATHS.iter().zip(ALL).find_map(|(known, endpoint)| (*known == path).then_some(endpoint))
    }

    /// Optional fields that this endpoint accepts.
    pub(super) const fn optional_fields(self) -> &'static [&'static str] {
        match self {
            Self::Consume | Self::Peek => &["cost", "mode", "max_wait_ms"],
            Self::Charge | Self::Refund | Self::Batch => &["cost"],
            Self::Reset | Self::Inspect => &[],
            Self::Settle => &["reservation", "cost"],
            Self::Cancel => &["reservation"],
        }
    }
}
