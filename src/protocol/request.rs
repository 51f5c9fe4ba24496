//! A frontend's request to an object.
//!
//! ```text
//! action         0 look, 1 take, 2 reserve, 3 hold, 4 settle, 5 cancel, 6 extend
//! verb           0 but for the first three
//! max_wait_ms    -1 for none
//! reservation    0 but for the last three; of a hold, an older version ignores it and chooses its own
//! request id     0 for none; 1, or 2 for a lasting one, then the id in 4 words and the fingerprint in 2
//! then for each policy
//!   how many costs it has, then the costs
//! section 2, if a registry has the policies
//!   as_of        the latest change that the frontend knows
//!   then for each policy its id, in 2 words; 0 for the object's own policy of that name
//! section 3, if any policy has limits in shadow
//!   for each policy how many it has, then their costs
//! section 4, without numbers, if the frontend sends the notices that the reply says are due
//! section 6, unless a lasting id is kept for an hour and its caller has no grant
//!   ttl_ms       0 unless the id lasts
//!   1 if the caller has a grant, else 0
//! section 5, if it takes tokens in advance or returns some: see `lease.rs`
//! ```

use super::lease::LeaseRequest;
use super::numbers::{Format, Reader, Unreadable, Writer};
use crate::limit::Verb;

/// A request to the object of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRequest {
    /// What to do.
    pub action: Action,
    /// Identifies retries of this request.
    pub request_id: Option<RequestId>,
    /// The cost of each limit of each policy. The policies' names are sent beside the numbers.
    pub costs: Vec<Vec<u64>>,
    /// The same for the limits in [shadow](crate::policy::Policy::shadow). Empty if no policy has any.
    pub shadow_costs: Vec<Vec<u64>>,
    /// The frontend's versions of the policies from the registry, if there is one.
    pub known: Option<Known>,
    /// Whether due [notices](super::DueNotice) are to be reported, and refusals count for bans: it is not a caller's peek.
    pub has_consequences: bool,
    /// Its lease messages. Only for a request about a single policy, and never with limits in shadow.
    pub lease: Option<LeaseRequest>,
}

/// The versions of the policies in a frontend's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The moment of the registry's latest change known to the frontend; 0 for none. It orders frontends: an object never goes back to
    /// versions requested by an earlier one.
    pub as_of: i64,
    /// The [id](crate::policy::Policy::id) of each policy; 0 for one that the registry does not have.
    pub ids: Vec<u64>,
}

/// The action on a key's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Return what the verb would do.
    Look(Verb),
    /// Do what the verb does.
    Take(Verb),
    /// Do what the verb does, and open a reservation that can be settled later.
    Reserve(Verb),
    /// Withhold the tokens from other callers until the hold is settled or cancelled: the first phase of a batch over several keys. The
    /// frontend chooses the id, so that it can cancel even a hold whose answer was lost; 0 leaves it to the object.
    Hold(u64),
    /// Close a reservation at its real costs, or, with no costs, at the reserved ones.
    Settle(u64),
    /// Close a reservation and give everything back.
    Cancel(u64),
    /// Prolong a reservation from now, and take these costs for it in addition, if any.
    Extend(u64),
}

impl Action {
    /// The verb with which it takes tokens, now or by a reservation.
    #[must_use]
    pub const fn taking(self) -> Option<Verb> {
        match self {
            Self::Take(verb) | Self::Reserve(verb) if verb.takes() => Some(verb),
            _ => None,
        }
    }

    /// Whether it takes tokens, or is a step of a batch that does: a refusal counts for a ban.
    #[must_use]
    pub const fn is_attempt(self) -> bool {
        match self {
            Self::Look(verb) => verb.takes(),
            Self::Hold(_) => true,
            action => action.taking().is_some(),
        }
    }

    /// Whether it may lower a level, and so cause notices. A hold does so only once settled.
    #[must_use]
    pub const fn lowers(self) -> bool {
        match self {
            Self::Take(Verb::Charge) | Self::Settle(_) | Self::Extend(_) => true,
            action => action.taking().is_some(),
        }
    }
}

/// Identifies a request and its retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The same in each retry: from the client's `Idempotency-Key`, or made by the frontend for its own retry.
    pub id: u128,
    /// A hash of the request. The same id with another fingerprint is a client error.
    pub fingerprint: u64,
    /// How long the answer must be remembered, even after a crash. 0 for an id that a frontend made for its own retry: it retries at once
    /// or never.
    pub ttl_ms: u64,
    /// Whether the caller has a grant, which limits what the object remembers for it.
    pub by_grant: bool,
}

impl RequestId {
    /// How long a lasting id is kept by default.
    pub const USUAL_TTL_MS: u64 = 3_600_000;

    /// Whether it is a client's, whose answer must survive a crash.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        self.ttl_ms > 0
    }

    /// Whether both identify the same request.
    #[must_use]
    pub const fn is_of_same(&self, other: &Self) -> bool {
        self.id == other.id && self.fingerprint == other.fingerprint
    }
}

impl ObjectRequest {
    /// The request as a text.
    #[must_use]
    pub fn to_text(&self, format: Format) -> String {
        let (action, (verb, max_wait_ms), reservation) = match self.action {
            Action::Look(verb) => (0, verb.to_number(), 0),
            Action::Take(verb) => (1, verb.to_number(), 0),
            Action::Reserve(verb) => (2, verb.to_number(), 0),
            Action::Hold(id) => (3, (0, None), id),
            Action::Settle(id) => (4, (0, None), id),
            Action::Cancel(id) => (5, (0, None), id),
            Action::Extend(id) => (6, (0, None), id),
        };
        let mut writer = Writer::new(format, USUAL_LEN);
        writer.small(action);
        writer.small(verb);
        writer.optional(max_wait_ms);
        writer.whole(reservation);
        match self.request_id {
            None => writer.small(0),
            Some(request_id @ RequestId { id, fingerprint, .. }) => {
                writer.small(if request_id.is_lasting() { 2 } else { 1 });
                writer.words::<4>(id);
                writer.words::<2>(fingerprint.into());
            }
        }
        write_costs(&self.costs, &mut writer);
        if let Some(Known { as_of, ids }) = &self.known {
            writer.section(KNOWN, ids.len().saturating_mul(2).saturating_add(1));
            writer.signed(*as_of);
            for &id in ids {
                writer.words::<2>(id.into());
            }
        }
        if !self.shadow_costs.is_empty() {
            let each = self.shadow_costs.iter().map(|costs| costs.len().saturating_add(1));
            writer.section(SHADOW, each.fold(0, usize::saturating_add));
            write_costs(&self.shadow_costs, &mut writer);
        }
        if self.has_consequences {
            writer.section(CONSEQUENCES, 0);
        }
        if let Some(RequestId { ttl_ms, by_grant, .. }) = self.request_id
            && (by_grant || ![0, RequestId::USUAL_TTL_MS].contains(&ttl_ms))
        {
            writer.section(TERMS, 2);
            writer.whole(ttl_ms);
            writer.small(u8::from(by_grant));
        }
        if let Some(lease) = &self.lease {
            lease.write(&mut writer);
        }
        writer.finish()
    }

    /// Parses the text of [`ObjectRequest::to_text`], with the format for the answer.
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub fn from_text(text: &str) -> Result<(Self, Format), Unreadable> {
        let (mut rest, format) = Reader::new(text)?;
        let (action, verb, max_wait_ms, reservation) = (rest.whole()?, rest.whole()?, rest.optional()?, rest.whole()?);
        let verb = || Verb::from_number(verb, max_wait_ms).ok_or(Unreadable::Malformed);
        let action = match action {
            0 => Action::Look(verb()?),
            1 => Action::Take(verb()?),
            2 => Action::Reserve(verb()?),
            3 => Action::Hold(reservation),
            4 => Action::Settle(reservation),
            5 => Action::Cancel(reservation),
            6 => Action::Extend(reservation),
            _ => return Err(Unreadable::Malformed),
        };
        let mut request_id = match rest.whole()? {
            0 => None,
            kind => {
                let (id, fingerprint) = (rest.words::<4>()?, rest.words::<2>()?);
                let fingerprint = u64::try_from(fingerprint).map_err(|_| Unreadable::Malformed)?;
                let ttl_ms = if kind == 2 { RequestId::USUAL_TTL_MS } else { 0 };
                Some(RequestId { id, fingerprint, ttl_ms, by_grant: false })
            }
        };
        let costs = read_costs(&mut rest)?;
        let shadow_costs = rest.section(SHADOW)?.map_or(Ok(Vec::new()), |mut section| read_costs(&mut section))?;
        let known = match rest.section(KNOWN)? {
            None => None,
            Some(mut section) => {
                let as_of = section.signed()?;
                let mut ids = Vec::new();
                while !section.is_empty() {
                    ids.push(u64::try_from(section.words::<2>()?).map_err(|_| Unreadable::Malformed)?);
                }
                Some(Known { as_of, ids })
            }
        };
        let has_consequences = rest.section(CONSEQUENCES)?.is_some();
        if let (Some(id), Some(mut section)) = (&mut request_id, rest.section(TERMS)?) {
            (id.ttl_ms, id.by_grant) = (section.whole()?, section.whole()? == 1);
        }
        let lease = LeaseRequest::read(&rest)?;
        Ok((Self { action, request_id, costs, shadow_costs, known, has_consequences, lease }, format))
    }
}

fn write_costs(all: &[Vec<u64>], writer: &mut Writer) {
    for costs in all {
        writer.whole(costs.len() as u64);
        for &cost in costs {
            writer.whole(cost);
        }
    }
}

fn read_costs(rest: &mut Reader<'_>) -> Result<Vec<Vec<u64>>, Unreadable> {
    let mut all = Vec::new();
    while !rest.is_at_end() {
        let count = rest.whole()?;
        all.push((0..count).map(|_| rest.whole()).collect::<Result<_, _>>()?);
    }
    Ok(all)
}

/// The kind of the section about policies.
const KNOWN: u8 = 2;

/// The kind of the section about limits in shadow.
const SHADOW: u8 = 3;

/// The kind of the section for [`ObjectRequest::has_consequences`].
const CONSEQUENCES: u8 = 4;

/// The kind of the section about how long and for whom the request's id is remembered.
const TERMS: u8 = 6;

/// With a request id, one cost and one policy of a registry; more only need more room.
const USUAL_LEN: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MAX_TOKENS;

    fn requests() -> Vec<ObjectRequest> {
        let verbs = [
            Verb::Consume,
            Verb::Reserve { max_wait_ms: None },
            Verb::Reserve { max_wait_ms: Some(0) },
            Verb::Borrow { max_wait_ms: Some(MAX_TOKENS) },
            Verb::Charge,
            Verb::ConsumeUpTo,
            Verb::Refund,
            Verb::Reset,
        ];
        let mut actions = vec![
            Action::Hold(3),
            Action::Settle(0),
            Action::Settle((1 << 52) - 1),
            Action::Cancel(7),
            Action::Extend(8),
        ];
        actions.extend(verbs.iter().flat_map(|&verb| [Action::Look(verb), Action::Take(verb), Action::Reserve(verb)]));
        let id = |ttl_ms, by_grant| Some(RequestId { id: u128::MAX - 5, fingerprint: u64::MAX - 7, ttl_ms, by_grant });
        let week_ms = 7 * 24 * RequestId::USUAL_TTL_MS;
        let ids = [None, id(0, false), id(RequestId::USUAL_TTL_MS, false), id(0, true), id(week_ms, true)];
        let all_costs = [vec![], vec![vec![]], vec![vec![0, MAX_TOKENS], vec![1]]];
        let mut requests = Vec::new();
        let known = |ids: &[u64]| Some(Known { as_of: 1_700_000_000_000, ids: ids.to_vec() });
        let mut all_known = [None, known(&[]), known(&[0, u64::MAX - 3])].into_iter().cycle();
        for action in actions {
            for request_id in ids {
                for costs in &all_costs {
                    let (costs, known) = (costs.clone(), all_known.next().flatten());
                    let shadow_costs = if request_id.is_some() { costs.clone() } else { Vec::new() };
                    let has_consequences = request_id.is_some_and(|id| id.is_lasting());
                    requests.push(ObjectRequest {
                        action,
                        request_id,
                        costs,
                        shadow_costs,
                        known,
                        has_consequences,
                        lease: has_consequences.then(|| LeaseRequest {
                            lease_ms: 2_000,
                            horizon_ms: 0,
                            wanted: vec![MAX_TOKENS],
                            ended: Vec::new(),
                        }),
                    });
                }
            }
        }
        requests
    }

    #[test]
    fn a_request_survives_a_round_trip_in_every_format() {
        for request in requests() {
            for format in [Format::OLDEST, Format::NEWEST] {
                assert_eq!(ObjectRequest::from_text(&request.to_text(format)), Ok((request.clone(), format)));
            }
        }
    }

    /// Sections may have any length, including zero, and there may be several.
    #[test]
    fn unknown_sections_are_skipped() {
        for request in requests() {
            let text = request.to_text(Format::OLDEST);
            for sections in ["-9 0", "-9 3 1 0 -1", "-1 1 5 -7 1 7"] {
                let read = ObjectRequest::from_text(&format!("{text} {sections}"));
                assert_eq!(read, Ok((request.clone(), Format::OLDEST)));
            }
        }
    }

    /// A request from a frontend of another version.
    #[cfg(not(feature = "test-next-format"))]
    #[test]
    fn format_3_is_unchanged() {
        let (id, fingerprint) = ((1 << 96) + (2 << 64) + (3 << 32) + 4, (5 << 32) + 6);
        let request_id = Some(RequestId { id, fingerprint, ttl_ms: RequestId::USUAL_TTL_MS, by_grant: false });
        let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(9) });
        let costs = vec![vec![7], vec![8, 0]];
        let has_consequences = false;
        let request = ObjectRequest {
            action,
            request_id,
            costs,
            shadow_costs: vec![],
            known: None,
            has_consequences,
            lease: None,
        };
        let text = "3 2 1 9 0 2 1 2 3 4 5 6 1 7 2 8 0";
        assert_eq!(request.to_text(Format::OLDEST), text);
        let of_grant = request_id.map(|id| RequestId { ttl_ms: 8, by_grant: true, ..id });
        let of_grant = ObjectRequest { request_id: of_grant, ..request.clone() };
        assert_eq!(of_grant.to_text(Format::OLDEST), format!("{text} -6 2 8 1"));
        let request = ObjectRequest { shadow_costs: vec![vec![], vec![9, 10]], ..request };
        assert_eq!(request.to_text(Format::OLDEST), format!("{text} -3 4 0 2 9 10"));
        let action = Action::Settle(5);
        let request = ObjectRequest {
            action,
            request_id: None,
            costs: vec![],
            shadow_costs: vec![],
            known: None,
            has_consequences,
            lease: None,
        };
        assert_eq!(request.to_text(Format::OLDEST), "3 4 0 -1 5 0");
        let wanting = ObjectRequest { has_consequences: true, ..request.clone() };
        assert_eq!(wanting.to_text(Format::OLDEST), "3 4 0 -1 5 0 -4 0");
        let request = ObjectRequest { known: Some(Known { as_of: 9, ids: vec![(6 << 32) + 7, 0] }), ..request };
        assert_eq!(request.to_text(Format::OLDEST), "3 4 0 -1 5 0 -2 5 9 6 7 0 0");
    }

    #[test]
    fn rejects_unknown_formats_and_malformed_texts() {
        let action = Action::Hold(7);
        let request = ObjectRequest {
            action,
            request_id: None,
            costs: vec![vec![1]],
            shadow_costs: vec![],
            known: None,
            has_consequences: false,
            lease: None,
        };
        let text = request.to_text(Format::OLDEST);
        assert_eq!(text, "3 3 0 -1 7 0 1 1");
        let read = |text: &str| ObjectRequest::from_text(text).map(|(request, _)| request);
        let next = u64::from(Format::NEWEST.number()) + 1;
        for format in [0, 1, 2, next, 1_000_000_000_000_000] {
            assert_eq!(read(&format!("{format} 3 0 -1 7 0 1 1")), Err(Unreadable::Format), "{format}");
        }
        for malformed in [
            "",
            " ",
            "-3",
            "3",
            "3 3",
            "3 3 0",
            "3 3 0 -1",
            "3 3 0 -1 7",
            "3 3 0 -1 7 0 1", // too short
            "two",
            "3.0 3 0 -1 7 0 1 1",
            "3  3 0 -1 7 0 1 1",
            "3,3,0,-1,7,0,1,1",
            "3 3 0 -1 9223372036854775808 0 1 1",
            "3 7 0 -1 7 0 1 1",  // an unknown action
            "3 0 99 -1 7 0 1 1", // an unknown verb
            "3 3 0 -1 -7 0 1 1",
            "3 3 0 -1 7 0 1 1 -9",
            "3 3 0 -1 7 0 1 1 -9 1",
            "3 3 0 -1 7 0 1 1 -9 -1",
            "3 3 0 -1 7 0 1 1 -3 2 1",
            "3 3 0 -1 7 0 1 1 -3 1 2",
        ] {
            assert_eq!(read(malformed), Err(Unreadable::Malformed), "{malformed:?}");
        }
    }
}
