//! An object's reply.
//!
//! ```text
//! kind           0 decided, 1 no reservation, 2 request id reused, 3 too many reservations, 4 policy unknown, 5 format unknown,
//!                6 reservation closed, 7 too many request ids, 8 policy outdated, 9 too many inline budgets
//! of kinds 3, 9  how many there can be
//! of kind 5      the newest format that the object knows
//! of kind 7      how many there can be, and in how many milliseconds the oldest is forgotten
//! of kind 8      as_of, the length of the definitions, and their bytes, one to a number
//! of kind 0      now, the sum of 1 if it is replayed and 2 if a reservation was closed late, how many reservations are open, the reservation's id or -1, when that ends
//! then for each limit
//!   decision     0 allow, 1 wait, 2 never
//!   tokens       that moved, or the most that could
//!   at           ready or to be retried
//!   level        what remains, or, below zero, what is owed
//!   reset_at     -2⁵³ + 1 for never
//!   snapshot     tokens, drops, at
//! then, if the request has costs of limits in shadow, a section with the same for each of these, or 3 where there is no
//! answer
//! then, of a request that changes levels from outside, a section with the level of each limit before it
//! then, if any notices are due, a section with the positions of the policy and of its limit and the kind of each
//! then, if a frontend may answer from it, an empty section
//! then, if the frontend gets tokens in advance, a section: see `lease.rs`
//! then, of a refund or a reset of the first of several shards, a section with when it was first done, and over how many shards
//! then, of a reservation that was settled at its own cost and could not take all of it again, a section with that cost of each limit
//! then, if a frontend may answer from it about rolling windows, a section with what comes back of each: see `coming_back.rs`
//! then, if the key is banned, a section with the position of each limit whose policy bans it, and until when, -2⁵³ + 1 for ever
//! ```
//!
//! Any reply may be followed by a section with the rows that storage has read and written.

use super::Rows;
use super::coming_back::ComingBack;
use super::lease::Lease;
use super::numbers::{Format, Reader, Unreadable, Writer};
use crate::limit::{Decision, Limit, Snapshot, State};
use crate::policy::{Ban, NoticeKind};

/// An object's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_family = "wasm"),
    expect(clippy::large_enum_variant, reason = "nearly every reply is a decision")
)]
pub enum ObjectReply {
    /// Done, or refused.
    Decided(Decided),
    /// The reservation does not exist, or no longer does.
    NoReservation,
    /// The id was used for another request.
    RequestIdReused,
    /// The reservation was already closed, by another request.
    ReservationClosed,
    /// The key cannot have more lasting request ids. Nothing was done.
    TooManyRequestIds {
        /// The number it has.
        used: u64,
        /// Milliseconds until enough of them are forgotten.
        retry_after_ms: u64,
    },
    /// The key cannot have more open reservations, or raises of them.
    TooManyReservations {
        /// The maximum.
        max: u64,
    },
    /// The key cannot have more budgets with limits from requests, until one of them is full again. Nothing was done.
    TooManyInline {
        /// The maximum.
        max: u64,
    },
    /// The object lacks one of the policies. Nothing was done: retry with their definitions.
    PolicyUnknown,
    /// A bucket is at a newer version of its policy than the frontend knows. Nothing was done: retry under that version.
    PolicyOutdated {
        /// A [`Known::as_of`](super::Known::as_of) with which all of the newer versions were requested.
        as_of: i64,
        /// Their [definitions](crate::policy::Policy::definition), one to a line.
        definitions: String,
    },
    /// The object does not know the request's format. Nothing was done: retry in one that it knows.
    FormatUnknown {
        /// The number of its newest format: see [`Format::from_number`].
        newest: u64,
    },
}

/// A decision with everything that its response includes. All moments are Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The moment of the decision.
    pub now: i64,
    /// Whether this is an earlier answer to the same request.
    pub is_replayed: bool,
    /// Whether an expired reservation was closed.
    pub is_late: bool,
    /// The number of the key's open reservations.
    pub open_reservations: u64,
    /// The reservation that was opened or extended.
    pub reservation: Option<Reserved>,
    /// For each limit of each policy.
    pub limits: Vec<LimitAnswer>,
    /// For each limit in shadow of each policy, as many as the request has costs for: the decision if it were enforced. `None` if it was
    /// not tried. Empty if none was.
    pub shadow: Vec<Option<LimitAnswer>>,
    /// The level of each limit before a charge, a refund or a reset, in whole tokens; negative if owed. Empty after anything else, for a
    /// replay, and from an older object.
    pub before: Vec<i64>,
    /// The notices that are due. The object has recorded them as given; delivery is up to the frontend.
    pub notices: Vec<DueNotice>,
    /// Whether a frontend may refuse by this answer for a moment: no reservation or hold can end and give something back. Never for a
    /// replay. An older object sets it only for refusals and looks, or never.
    pub may_be_kept: bool,
    /// The tokens leased to the frontend.
    pub lease: Option<Lease>,
    /// How the first shard of a budget does, or did, its part of a refund or a reset: the other shards follow it.
    pub spread: Option<Spread>,
    /// The reserved cost of each limit, if a reservation was settled at it after its tokens had been given back, and not all of them were
    /// there any more: of the enforced ones, then, unless it is repeated, of those in shadow. Otherwise empty.
    pub reserved_costs: Box<[u64]>,
    /// What comes back of each limit that is a rolling window, if the answer may be kept.
    pub coming_back: Box<[ComingBack]>,
}

/// How a refund or a reset is spread over a budget's shards, fixed when the first of them does its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// When the first shard did its part.
    pub at: i64,
    /// The budget's number of shards then; 1 if not divided.
    pub shards: u8,
}

/// A notice to send about one of the requested policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueNotice {
    /// The policy's position.
    pub policy: u64,
    /// The position of its limit; of a refusal that of the first limit that refused.
    pub limit: u64,
    /// The kind.
    pub kind: NoticeKind,
}

/// A reservation as shown to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Below 2⁵².
    pub id: u64,
    /// When it ends unless it is settled or extended.
    pub expires_at: i64,
}

/// One limit's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// Its own decision.
    pub decision: Decision,
    /// Whole tokens left after it.
    pub remaining: u64,
    /// Tokens owed after it.
    pub owed: u64,
    /// When the bucket is full again, if ever.
    pub reset_at: Option<i64>,
    /// The state after it. Tokens held for batches count as taken.
    pub snapshot: Snapshot,
    /// The ban of the key from its policy. Requests that take tokens are refused until it ends.
    pub ban: Option<Ban>,
}

impl LimitAnswer {
    /// When it would pass, if it was refused for now.
    #[must_use]
    pub const fn retry_at(&self) -> Option<i64> {
        match self.decision {
            Decision::Wait { retry_at } => Some(retry_at),
            Decision::Allow { .. } | Decision::Never { .. } => None,
        }
    }
}

impl Decided {
    /// An answer at `now` for a key without reservations.
    #[must_use]
    pub fn new(now: i64, limits: Vec<LimitAnswer>) -> Self {
        let (shadow, before) = (Vec::new(), Vec::new());
        Self {
            now,
            is_replayed: false,
            is_late: false,
            open_reservations: 0,
            reservation: None,
            limits,
            shadow,
            before,
            notices: Vec::new(),
            may_be_kept: false,
            lease: None,
            spread: None,
            reserved_costs: Box::default(),
            coming_back: Box::default(),
        }
    }

    /// The decision of all limits together, without those in shadow.
    pub fn decision(&self) -> Decision {
        let start = Decision::Allow { tokens: 0, ready_at: self.now };
        self.limits.iter().fold(start, |all, limit| all.and(limit.decision))
    }
}

/// Takes a policy's part of the answers of all: the first `len` of `rest`. If there are too few, this and all further parts are empty.
pub fn take_part<'a, T>(rest: &mut &'a [T], len: usize) -> &'a [T] {
    let (first, others) = rest.split_at_checked(len).unwrap_or_default();
    *rest = others;
    first
}

impl ObjectReply {
    /// Whether it is a decision not to grant the request.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Decided(decided) if !decided.decision().is_allow())
    }

    /// The reply as text, in the format of the request, with the rows that storage has read and written.
    #[must_use]
    pub fn to_text(&self, format: Format, rows: Rows) -> String {
        let limits = if let Self::Decided(decided) = self { decided.limits.len() } else { 0 };
        let mut writer = Writer::new(format, HEAD_LEN.saturating_add(limits.saturating_mul(LIMIT_LEN)));
        match self {
            Self::Decided(decided) => decided.write(&mut writer),
            Self::NoReservation => writer.small(1),
            Self::RequestIdReused => writer.small(2),
            Self::TooManyReservations { max } => {
                writer.small(3);
                writer.whole(*max);
            }
            Self::PolicyUnknown => writer.small(4),
            Self::FormatUnknown { newest } => {
                writer.small(5);
                writer.whole(*newest);
            }
            Self::TooManyInline { max } => {
                writer.small(9);
                writer.whole(*max);
            }
            Self::ReservationClosed => writer.small(6),
            Self::TooManyRequestIds { used, retry_after_ms } => {
                writer.small(7);
                writer.whole(*used);
                writer.whole(*retry_after_ms);
            }
            Self::PolicyOutdated { as_of, definitions } => {
                writer.small(8);
                writer.signed(*as_of);
                writer.whole(definitions.len() as u64);
                definitions.bytes().for_each(|byte| writer.small(byte));
            }
        }
        rows.write(&mut writer);
        writer.finish()
    }

    /// Parses the text of [`ObjectReply::to_text`].
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub fn from_text(text: &str) -> Result<(Self, Rows), Unreadable> {
        let (mut rest, _) = Reader::new(text)?;
        let reply = Self::read(&mut rest)?;
        Ok((reply, Rows::of(&rest)?))
    }

    fn read(rest: &mut Reader<'_>) -> Result<Self, Unreadable> {
        Ok(match rest.whole()? {
            0 => Self::Decided(Decided::read(rest)?),
            1 => Self::NoReservation,
            2 => Self::RequestIdReused,
            3 => Self::TooManyReservations { max: rest.whole()? },
            4 => Self::PolicyUnknown,
            5 => Self::FormatUnknown { newest: rest.whole()? },
            9 => Self::TooManyInline { max: rest.whole()? },
            6 => Self::ReservationClosed,
            7 => Self::TooManyRequestIds { used: rest.whole()?, retry_after_ms: rest.whole()? },
            8 => {
                let (as_of, len) = (rest.signed()?, rest.whole()?);
                let bytes = (0..len).map(|_| u8::try_from(rest.whole()?).map_err(|_| Unreadable::Malformed));
                let definitions = String::from_utf8(bytes.collect::<Result<_, _>>()?);
                Self::PolicyOutdated { as_of, definitions: definitions.map_err(|_| Unreadable::Malformed)? }
            }
            _ => return Err(Unreadable::Malformed),
        })
    }
}

impl Decided {
    fn write(&self, writer: &mut Writer) {
        let Self {
            now,
            is_replayed,
            is_late,
            open_reservations,
            reservation,
            limits,
            shadow,
            before,
            notices,
            may_be_kept,
            lease,
            spread,
            reserved_costs,
            coming_back,
        } = self;
        writer.small(0);
        writer.signed(*now);
        writer.small(u8::from(*is_replayed) | (u8::from(*is_late) << 1));
        writer.whole(*open_reservations);
        writer.optional(reservation.map(|reserved| reserved.id));
        writer.signed(reservation.map_or(0, |reserved| reserved.expires_at));
        for limit in limits {
            limit.write(writer);
        }
        if !shadow.is_empty() {
            let each = shadow.iter().map(|limit| if limit.is_some() { LIMIT_LEN } else { 1 });
            writer.section(SHADOW, each.fold(0, usize::saturating_add));
            for limit in shadow {
                match limit {
                    Some(limit) => limit.write(writer),
                    None => writer.whole(NO_ANSWER),
                }
            }
        }
        if !before.is_empty() {
            writer.section(BEFORE, before.len());
            for &level in before {
                writer.signed(level);
            }
        }
        if !notices.is_empty() {
            writer.section(NOTICES, notices.len().saturating_mul(3));
            for notice in notices {
                writer.whole(notice.policy);
                writer.whole(notice.limit);
                writer.small(notice.kind.number());
            }
        }
        if *may_be_kept {
            writer.section(MAY_BE_KEPT, 0);
        }
        if let Some(lease) = lease {
            lease.write(writer);
        }
        if let Some(Spread { at, shards }) = spread {
            writer.section(SPREAD, 2);
            writer.signed(*at);
            writer.small(*shards);
        }
        if !reserved_costs.is_empty() {
            writer.section(RESERVED_COSTS, reserved_costs.len());
            for &cost in &**reserved_costs {
                writer.whole(cost);
            }
        }
        if !coming_back.is_empty() {
            writer.section(COMING_BACK, coming_back.iter().map(ComingBack::len).fold(0, usize::saturating_add));
            for of_limit in &**coming_back {
                of_limit.write(*now, writer);
            }
        }
        let bans = (0..).zip(limits).filter_map(|(index, limit)| Some((index, limit.ban?)));
        let count = bans.clone().count();
        if count > 0 {
            writer.section(BANS, count.saturating_mul(2));
            for (index, ban) in bans {
                writer.whole(index);
                writer.moment_or_never(ban.until);
            }
        }
    }

    fn read(rest: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let (now, flags, open_reservations) = (rest.signed()?, rest.whole()?, rest.whole()?);
        let (id, expires_at) = (rest.optional()?, rest.signed()?);
        let mut limits = Vec::new();
        while !rest.is_at_end() {
            limits.push(LimitAnswer::read(rest.whole()?, rest)?);
        }
        let mut shadow = Vec::new();
        if let Some(mut section) = rest.section(SHADOW)? {
            while !section.is_at_end() {
                shadow.push(match section.whole()? {
                    NO_ANSWER => None,
                    kind => Some(LimitAnswer::read(kind, &mut section)?),
                });
            }
        }
        let mut before = Vec::new();
        if let Some(mut section) = rest.section(BEFORE)? {
            while !section.is_empty() {
                before.push(section.signed()?);
            }
        }
        let mut notices = Vec::new();
        if let Some(mut section) = rest.section(NOTICES)? {
            while !section.is_empty() {
                let (policy, limit, kind) = (section.whole()?, section.whole()?, section.whole()?);
                // A notice of a later version is ignored.
                notices.extend(NoticeKind::from_number(kind).map(|kind| DueNotice { policy, limit, kind }));
            }
        }
        let may_be_kept = rest.section(MAY_BE_KEPT)?.is_some();
        let lease = Lease::read(rest)?;
        let spread = rest.section(SPREAD)?.map(|mut section| Spread::read(&mut section)).transpose()?;
        let mut reserved_costs = Vec::new();
        if let Some(mut section) = rest.section(RESERVED_COSTS)? {
            while !section.is_empty() {
                reserved_costs.push(section.whole()?);
            }
        }
        let mut coming_back = Vec::new();
        if let Some(mut section) = rest.section(COMING_BACK)? {
            while !section.is_empty() {
                coming_back.push(ComingBack::read(now, &mut section)?);
            }
        }
        if let Some(mut section) = rest.section(BANS)? {
            while !section.is_empty() {
                let (index, until) = (section.whole()?, section.moment_or_never()?);
                let limit = usize::try_from(index).ok().and_then(|index| limits.get_mut(index));
                limit.ok_or(Unreadable::Malformed)?.ban = Some(Ban { until });
            }
        }
        let reservation = id.map(|id| Reserved { id, expires_at });
        Ok(Self {
            now,
            is_replayed: flags & 1 > 0,
            is_late: flags & 2 > 0,
            open_reservations,
            reservation,
            limits,
            shadow,
            before,
            notices,
            may_be_kept,
            lease,
            spread,
            reserved_costs: reserved_costs.into(),
            coming_back: coming_back.into(),
        })
    }
}

impl Spread {
    fn read(section: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let (at, shards) = (section.signed()?, section.whole()?);
        Ok(Self { at, shards: u8::try_from(shards).map_err(|_| Unreadable::Malformed)? })
    }
}

impl LimitAnswer {
    /// A limit's answer and state at `now`.
    #[must_use]
    pub fn new(limit: &Limit, decision: Decision, state: &State, now: i64) -> Self {
        // Windows of a calendar differ in length: a copy of the state knows only the one that is open.
        let shown = if limit.config().calendar.is_some() { limit.refilled(state, now) } else { *state };
        Self {
            decision,
            remaining: limit.remaining(state, now),
            owed: limit.owed(state, now),
            reset_at: limit.full_at(state, now),
            snapshot: limit.snapshot(&shown),
            ban: None,
        }
    }

    /// When a rolling window is full again, which its state does not say: for a copy of the state it is a window that opens again then.
    #[doc(hidden)]
    pub fn set_full_at(&mut self, limit: &Limit, at: i64) {
        self.reset_at = Some(at);
        self.snapshot.at = at.saturating_sub_unsigned(limit.config().period_ms);
    }

    /// Whole tokens left after it; negative if owed.
    #[must_use]
    pub fn level(&self) -> i64 {
        if self.owed > 0 { self.owed.cast_signed().saturating_neg() } else { self.remaining.cast_signed() }
    }

    fn write(&self, writer: &mut Writer) {
        let Self { decision, reset_at, snapshot, .. } = self;
        let (kind, tokens, at) = match *decision {
            Decision::Allow { tokens, ready_at } => (0, tokens, ready_at),
            Decision::Wait { retry_at } => (1, 0, retry_at),
            Decision::Never { max } => (2, max, 0),
        };
        writer.small(kind);
        writer.whole(tokens);
        writer.signed(at);
        writer.signed(self.level());
        writer.moment_or_never(*reset_at);
        writer.signed(snapshot.tokens);
        writer.whole(snapshot.drops);
        writer.signed(snapshot.at);
    }

    /// Reads an answer whose decision is of this kind.
    fn read(kind: u64, rest: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let (tokens, at) = (rest.whole()?, rest.signed()?);
        let decision = match kind {
            0 => Decision::Allow { tokens, ready_at: at },
            1 => Decision::Wait { retry_at: at },
            2 => Decision::Never { max: tokens },
            _ => return Err(Unreadable::Malformed),
        };
        let level = rest.signed()?;
        let (remaining, owed) = if level < 0 { (0, level.unsigned_abs()) } else { (level.unsigned_abs(), 0) };
        let reset_at = rest.moment_or_never()?;
        let snapshot = Snapshot { tokens: rest.signed()?, drops: rest.whole()?, at: rest.signed()? };
        Ok(Self { decision, remaining, owed, reset_at, snapshot, ban: None })
    }
}

/// The kind of the section about limits in shadow.
const SHADOW: u8 = 3;

/// The kind of the section about the levels before.
const BEFORE: u8 = 4;

/// The kind of the section about notices.
const NOTICES: u8 = 5;

/// The kind of the section for [`Decided::may_be_kept`].
const MAY_BE_KEPT: u8 = 6;

/// The kind of the section for [`Decided::spread`].
const SPREAD: u8 = 10;

/// The section with the reserved cost of each limit.
const RESERVED_COSTS: u8 = 11;

/// The kind of the section for [`Decided::coming_back`].
const COMING_BACK: u8 = 12;

/// The kind of the section about bans.
const BANS: u8 = 13;

/// In place of a kind of decision: a limit in shadow that was not tried.
const NO_ANSWER: u64 = 3;

/// How many numbers precede those of the limits, and how many each limit has.
const HEAD_LEN: usize = 7;
const LIMIT_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{MAX_SPAN_MS, MAX_TOKENS};

    fn replies() -> Vec<ObjectReply> {
        let limit = |decision, remaining, owed, reset_at, (tokens, drops, at)| {
            let snapshot = Snapshot { tokens, drops, at };
            LimitAnswer { decision, remaining, owed, reset_at, snapshot, ban: None }
        };
        let most = MAX_TOKENS.cast_signed();
        let limits = vec![
            limit(Decision::Allow { tokens: MAX_TOKENS, ready_at: -5 }, 3, 0, Some(-1), (most, 0, -1)),
            limit(Decision::Wait { retry_at: 1_700_000_000_000 }, 0, 9, None, (-most, MAX_SPAN_MS - 1, -most)),
            limit(Decision::Never { max: 2 }, 0, 0, Some(0), (-1, 7, most)),
        ];
        let tried = vec![None, Some(limits[0]), Some(limits[1]), None, Some(limits[2])];
        let decided = |is_replayed, reservation: Option<Reserved>, shadow| {
            let limits = limits.clone();
            let before = if is_replayed { vec![] } else { vec![-3, 0, most] };
            let due = |number| DueNotice { policy: 15, limit: 7, kind: NoticeKind::from_number(number).unwrap() };
            let notices = if is_replayed { (1..=102).map(due).collect() } else { vec![] };
            ObjectReply::Decided(Decided {
                now: -7,
                is_replayed,
                is_late: reservation.is_none(),
                open_reservations: 4,
                reservation,
                limits,
                shadow,
                before,
                notices,
                may_be_kept: !is_replayed,
                lease: (!is_replayed).then(|| Lease {
                    id: u64::MAX,
                    from: -1,
                    until: most,
                    tokens: vec![0, MAX_TOKENS],
                }),
                spread: is_replayed.then_some(Spread { at: -most, shards: u8::MAX }),
                reserved_costs: if is_replayed { Box::new([0, 3, MAX_TOKENS]) } else { Box::default() },
                coming_back: if is_replayed {
                    Box::default()
                } else {
                    Box::new([ComingBack::default(), ComingBack::new(vec![(-most, 1), (9, MAX_TOKENS)])])
                },
            })
        };
        let mut banned = decided(false, None, Vec::new());
        if let ObjectReply::Decided(banned) = &mut banned {
            banned.limits[0].ban = Some(Ban { until: None });
            banned.limits[2].ban = Some(Ban { until: Some(most) });
        }
        vec![
            decided(false, None, Vec::new()),
            banned,
            decided(true, Some(Reserved { id: 0, expires_at: -1 }), tried),
            ObjectReply::NoReservation,
            ObjectReply::RequestIdReused,
            ObjectReply::TooManyReservations { max: 9 },
            ObjectReply::TooManyInline { max: 9 },
            ObjectReply::PolicyUnknown,
            ObjectReply::FormatUnknown { newest: 3 },
            ObjectReply::ReservationClosed,
            ObjectReply::TooManyRequestIds { used: 9, retry_after_ms: 10 },
            ObjectReply::PolicyOutdated { as_of: 1_700_000_000_000, definitions: "{\"name\":\"é\"}\n{}".to_owned() },
        ]
    }

    fn read(text: &str) -> Result<ObjectReply, Unreadable> {
        ObjectReply::from_text(text).map(|(reply, _)| reply)
    }

    #[test]
    fn a_reply_survives_a_round_trip_in_every_format() {
        for reply in replies() {
            for format in [Format::OLDEST, Format::NEWEST] {
                assert_eq!(read(&reply.to_text(format, Rows::default())), Ok(reply.clone()));
            }
        }
    }

    #[test]
    fn unknown_sections_are_skipped() {
        for reply in replies() {
            let text = reply.to_text(Format::OLDEST, Rows::default());
            for sections in ["-9 0", "-9 3 1 0 -1", "-1 1 5 -2 1 7"] {
                assert_eq!(read(&format!("{text} {sections}")), Ok(reply.clone()));
            }
        }
    }

    #[test]
    fn any_reply_can_carry_row_counts() {
        let rows = Rows { read: 3, written: (1 << 53) - 1 };
        for reply in replies() {
            for format in [Format::OLDEST, Format::NEWEST] {
                let without = reply.to_text(format, Rows::default());
                let read = ObjectReply::from_text;
                assert_eq!(read(&without), Ok((reply.clone(), Rows::default())), "an older object");
                let with = reply.to_text(format, rows);
                assert_eq!(read(&with), Ok((reply.clone(), rows)));
                assert_eq!(read(&format!("{without} -9 1 5 -7 2 3 9007199254740991")), read(&with));
                assert_eq!(read(&format!("{without} -7 2 3")), Err(Unreadable::Malformed));
            }
        }
    }

    /// A reply from an object of another version.
    #[cfg(not(feature = "test-next-format"))]
    #[test]
    fn format_3_is_unchanged() {
        let limits = vec![LimitAnswer {
            decision: Decision::Wait { retry_at: 8 },
            remaining: 0,
            owed: 3,
            reset_at: None,
            snapshot: Snapshot { tokens: -3, drops: 4, at: 5 },
            ban: None,
        }];
        let reservation = Some(Reserved { id: 6, expires_at: 7 });
        let shadow = vec![None, Some(limits[0])];
        let mut decided = Decided { is_replayed: true, open_reservations: 2, reservation, ..Decided::new(9, limits) };
        let limit = "1 0 8 -3 -9007199254740991 -3 4 5";
        let text = format!("3 0 9 1 2 6 7 {limit}");
        assert_eq!(ObjectReply::Decided(decided.clone()).to_text(Format::OLDEST, Rows::default()), text);
        let kind = NoticeKind::Refused;
        let due = Decided { notices: vec![DueNotice { policy: 3, limit: 1, kind }], ..decided.clone() };
        assert_eq!(ObjectReply::Decided(due).to_text(Format::OLDEST, Rows::default()), format!("{text} -5 3 3 1 102"));
        let later = format!("{text} -5 6 3 1 103 3 1 80");
        let notices = vec![DueNotice { policy: 3, limit: 1, kind: NoticeKind::Used { percent: 80 } }];
        let known = ObjectReply::Decided(Decided { notices, ..decided.clone() });
        assert_eq!(read(&later), Ok(known), "a kind of a later version");
        decided.shadow = shadow;
        assert_eq!(
            ObjectReply::Decided(decided).to_text(Format::OLDEST, Rows::default()),
            format!("{text} -3 9 3 {limit}")
        );
        for (reply, text) in [
            (ObjectReply::NoReservation, "3 1"),
            (ObjectReply::RequestIdReused, "3 2"),
            (ObjectReply::TooManyReservations { max: 9 }, "3 3 9"),
            (ObjectReply::PolicyUnknown, "3 4"),
            (ObjectReply::FormatUnknown { newest: 2 }, "3 5 2"),
            (ObjectReply::ReservationClosed, "3 6"),
            (ObjectReply::TooManyRequestIds { used: 9, retry_after_ms: 10 }, "3 7 9 10"),
            (ObjectReply::PolicyOutdated { as_of: 9, definitions: "{}".to_owned() }, "3 8 9 2 123 125"),
        ] {
            assert_eq!(reply.to_text(Format::OLDEST, Rows::default()), text);
            let rows = Rows { read: 3, written: 4 };
            assert_eq!(reply.to_text(Format::OLDEST, rows), format!("{text} -7 2 3 4"));
        }
    }

    #[test]
    fn rejects_unknown_formats_and_malformed_texts() {
        assert_eq!(read("2 1"), Err(Unreadable::Format));
        assert_eq!(read(&format!("{} 1", Format::NEWEST.number() + 1)), Err(Unreadable::Format));
        for malformed in
            ["", "3", "3 9", "3 3", "3 3 x", "3 7 1", "3 5", "3 8 0 1", "3 8 0 1 255", "3 8 0 1 256", "3 8 0 -1"]
        {
            assert_eq!(read(malformed), Err(Unreadable::Malformed), "{malformed:?}");
        }
        let decided = replies()[0].to_text(Format::OLDEST, Rows::default());
        let ends: Vec<_> = decided.match_indices(' ').map(|(at, _)| at).collect();
        for len in (2..HEAD_LEN).chain(HEAD_LEN + 1..HEAD_LEN + LIMIT_LEN) {
            assert_eq!(read(&decided[..ends[len - 1]]), Err(Unreadable::Malformed), "{len} numbers");
        }
        for section in ["-3", "-3 2 3", "-3 2 0 1", "-3 1 4", "-5 1 4", "-13 1 0", "-13 2 3 9"] {
            assert_eq!(read(&format!("{decided} {section}")), Err(Unreadable::Malformed), "{section:?}");
        }
    }
}
