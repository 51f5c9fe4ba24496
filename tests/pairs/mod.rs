//! Which mechanisms meet. Worlds record what acts on each budget in a run, as seen in requests, replies and faults; what has acted on one
//! budget in one run has met there.
//!
//! With `TOLLGATE_PAIRS`, each test program writes its table to that folder, and `scripts/pairs.mjs` unites them.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::{env, fmt, fs, thread};

use tollgate::limit::{Carry, Decision, Kind, Verb};
use tollgate::policy::{NamedLimit, Policy, Standing};
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest, RequestId};

/// A mechanism that can affect a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mechanism {
    /// A token bucket.
    Bucket,
    /// A fixed window.
    Window,
    /// A window from first use.
    FirstUse,
    /// A window of a calendar.
    Calendar,
    /// A rolling window.
    Rolling,
    /// Slots.
    Slots,
    /// A soft limit.
    Soft,
    /// A limit in shadow was tried.
    Shadow,
    /// Tokens were taken for a later start.
    Prepaid,
    /// A debt was left to the next caller.
    Borrow,
    Charge,
    UpTo,
    /// A refund or a reset.
    GiveBack,
    /// A reservation was opened.
    Reservation,
    /// A reservation was closed after it had expired.
    Late,
    /// A reservation was extended.
    Extension,
    /// Tokens were held for a batch over several objects.
    Hold,
    /// Several policies were asked in one call.
    Batch,
    /// A client's request was repeated, and its first answer returned.
    Replay,
    /// A lease was given or returned.
    Lease,
    /// A frontend refused from memory.
    Memory,
    /// A shard was asked.
    Shard,
    /// The key had an override other than a ban, or had had any.
    Override,
    /// A request was refused because an override banned the key.
    Ban,
    /// A request was refused because its policy had banned the key for being refused often.
    Lockout,
    /// The numbers came with the request.
    Inline,
    /// Tokens were carried over to other numbers.
    AsIs,
    Proportional,
    Additive,
    /// A bucket began anew when its numbers changed.
    Anew,
    /// Frontends of several deployments without a registry asked with their own numbers.
    RollOut,
    /// A frontend asked with outdated numbers of a registry.
    Outdated,
    Notice,
    /// The object's process ended, and rows were lost.
    Crash,
    /// The object's process ended, and no row was lost.
    Eviction,
    /// The object's clock stepped back.
    StepBack,
    /// A request or its answer was lost, or late.
    Lost,
    /// A request was repeated that was not known to have arrived.
    Again,
}

impl Mechanism {
    const ALL: [Self; 38] = [
        Self::Bucket,
        Self::Window,
        Self::FirstUse,
        Self::Calendar,
        Self::Rolling,
        Self::Slots,
        Self::Soft,
        Self::Shadow,
        Self::Prepaid,
        Self::Borrow,
        Self::Charge,
        Self::UpTo,
        Self::GiveBack,
        Self::Reservation,
        Self::Late,
        Self::Extension,
        Self::Hold,
        Self::Batch,
        Self::Replay,
        Self::Lease,
        Self::Memory,
        Self::Shard,
        Self::Override,
        Self::Ban,
        Self::Lockout,
        Self::Inline,
        Self::AsIs,
        Self::Proportional,
        Self::Additive,
        Self::Anew,
        Self::RollOut,
        Self::Outdated,
        Self::Notice,
        Self::Crash,
        Self::Eviction,
        Self::StepBack,
        Self::Lost,
        Self::Again,
    ];

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// What has acted on each budget in one run.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    keys: BTreeMap<String, Key>,
}

#[derive(Clone, Default)]
struct Key {
    /// By the name of the policy.
    budgets: BTreeMap<String, Budget>,
    /// What its object's clock showed last.
    now: i64,
}

#[derive(Clone, Default)]
struct Budget {
    /// A bit for each mechanism.
    acted: u64,
    /// The latest version of its numbers in each object.
    versions: BTreeMap<u8, Version>,
}

/// When numbers came into force, and their hash.
#[derive(Clone, Copy)]
struct Version {
    since: i64,
    hash: u64,
}

/// What an object was asked, and what it said.
#[derive(Clone, Copy)]
struct Exchange<'a> {
    request: &'a ObjectRequest,
    decided: &'a Decided,
}

/// Where the tables are written, if they are.
static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| env::var_os("TOLLGATE_PAIRS").map(PathBuf::from));

/// What each mechanism has met in this process.
static MET: Mutex<[u64; Mechanism::ALL.len()]> = Mutex::new([0; Mechanism::ALL.len()]);

impl Trace {
    /// Whether anything is recorded.
    pub(crate) fn is_on() -> bool {
        FOLDER.is_some()
    }

    /// An object of the key has answered a request about these policies.
    pub(crate) fn answered(
        &mut self,
        key: &str,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        reply: &ObjectReply,
        now: i64,
    ) {
        if !Self::is_on() {
            return;
        }
        let key = self.keys.entry(key.to_owned()).or_default();
        if now < std::mem::replace(&mut key.now, now) {
            key.happened(Mechanism::StepBack);
        }
        for (index, policy) in asked.iter().enumerate() {
            let budget = key.budgets.entry(policy.name().to_owned()).or_default();
            match reply {
                ObjectReply::Decided(decided) => {
                    let exchange = Exchange { request, decided };
                    let followed = budget.followed(policy);
                    budget.acted |= of_policy(policy) | of_action(policy, exchange) | of_reply(index, exchange);
                    budget.acted |= followed | bits([(asked.len() > 1, Mechanism::Batch)]);
                }
                ObjectReply::PolicyOutdated { .. } => budget.acted |= Mechanism::Outdated.bit(),
                _ => {}
            }
        }
    }

    /// A frontend has answered a request about this budget without its object.
    pub(crate) fn answered_from(&mut self, key: &str, policy: &str, source: Option<&str>) {
        let mechanism = match source {
            Some("cache") => Mechanism::Memory,
            Some("lease") => Mechanism::Lease,
            _ => return,
        };
        let budget = self.keys.get_mut(key).and_then(|key| key.budgets.get_mut(policy));
        if let Some(budget) = budget {
            budget.acted |= mechanism.bit();
        }
    }

    /// A fault that affects all budgets of a key.
    pub(crate) fn happened(&mut self, key: &str, mechanism: Mechanism) {
        if let Some(key) = self.keys.get_mut(key) {
            key.happened(mechanism);
        }
    }

    /// The object's process has ended. Rows in flight are lost.
    pub(crate) fn restarted(&mut self, key: &str, is_any_in_flight: bool) {
        self.happened(key, if is_any_in_flight { Mechanism::Crash } else { Mechanism::Eviction });
    }
}

impl Key {
    fn happened(&mut self, mechanism: Mechanism) {
        for budget in self.budgets.values_mut() {
            budget.acted |= mechanism.bit();
        }
    }
}

impl Budget {
    /// How its tokens have been carried over to the version that decides now.
    fn followed(&mut self, policy: &Policy) -> u64 {
        if policy.is_inline() {
            return 0; // see `accounts.rs`
        }
        let (object, timeline) = (policy.shard().map_or(0, |shard| shard.index), policy.timeline());
        let version = Version { since: timeline.since(), hash: policy.version() };
        let Some(before) = self.versions.insert(object, version) else { return 0 };
        let is_changed = before.hash != version.hash;
        if version.since == 0 {
            return if is_changed && before.since == 0 { Mechanism::RollOut.bit() } else { 0 };
        }
        if version.since <= before.since {
            return 0;
        }
        let passed = timeline.earlier().iter().filter(|earlier| before.since != 0 && earlier.since > before.since);
        let passed: Vec<_> = passed.map(|earlier| earlier.carry).collect();
        let is_new = is_changed || !passed.is_empty();
        let carries = passed.into_iter().chain([timeline.carry()]).filter(|carry| is_new || *carry == Carry::Reset);
        carries.fold(0, |all, carry| all | of_carry(carry).bit())
    }
}

/// What the policy brings to each decision.
fn of_policy(policy: &Policy) -> u64 {
    let is_of = |kind| policy.limits().iter().any(|limit| !limit.is_slots() && limit.limit().config().kind == kind);
    let has_override = policy.is_of_key() && !matches!(policy.standing(), Standing::Banned { .. });
    bits([
        (is_of(Kind::TokenBucket), Mechanism::Bucket),
        (is_of(Kind::FixedWindow), Mechanism::Window),
        (is_of(Kind::FirstUseWindow), Mechanism::FirstUse),
        (is_of(Kind::RollingWindow), Mechanism::Rolling),
        (policy.limits().iter().any(|limit| limit.limit().config().calendar.is_some()), Mechanism::Calendar),
        (policy.limits().iter().any(NamedLimit::is_slots), Mechanism::Slots),
        (policy.limits().iter().any(|limit| limit.limit().is_soft()), Mechanism::Soft),
        (policy.shard().is_some(), Mechanism::Shard),
        (policy.is_inline(), Mechanism::Inline),
        (has_override, Mechanism::Override),
    ])
}

/// What was done, or refused because of a ban.
fn of_action(policy: &Policy, Exchange { request, decided }: Exchange<'_>) -> u64 {
    let verb = match request.action {
        Action::Take(verb) | Action::Reserve(verb) => Some(verb),
        Action::Hold(_) => Some(Verb::Consume),
        Action::Look(_) | Action::Settle(_) | Action::Cancel(_) | Action::Extend(_) => None,
    };
    if verb.is_some_and(Verb::takes) && policy.ban(None, decided.now).is_some() {
        return Mechanism::Ban.bit();
    }
    if verb.is_some() && policy.object().ban.is_some() && decided.limits.iter().any(|limit| limit.ban.is_some()) {
        return Mechanism::Lockout.bit();
    }
    let Decision::Allow { ready_at, .. } = decided.decision() else { return 0 };
    if decided.is_replayed {
        let is_lasting = request.request_id.as_ref().is_some_and(RequestId::is_lasting);
        return if is_lasting { Mechanism::Replay.bit() } else { Mechanism::Again.bit() };
    }
    let is_owed = decided.limits.iter().any(|limit| limit.owed > 0);
    bits([
        (matches!(verb, Some(Verb::Reserve { .. })) && ready_at > decided.now, Mechanism::Prepaid),
        (matches!(verb, Some(Verb::Borrow { .. })) && is_owed, Mechanism::Borrow),
        (verb == Some(Verb::Charge), Mechanism::Charge),
        (verb == Some(Verb::ConsumeUpTo), Mechanism::UpTo),
        (matches!(verb, Some(Verb::Refund | Verb::Reset)), Mechanism::GiveBack),
        (matches!(request.action, Action::Reserve(_)) && decided.reservation.is_some(), Mechanism::Reservation),
        (matches!(request.action, Action::Hold(_)), Mechanism::Hold),
        (matches!(request.action, Action::Extend(_)), Mechanism::Extension),
    ])
}

/// What else the reply about the policy at this position shows.
fn of_reply(index: usize, Exchange { request, decided }: Exchange<'_>) -> u64 {
    let is_leased = decided.lease.is_some() || request.lease.iter().any(|lease| !lease.ended.is_empty());
    let is_due = decided.notices.iter().any(|notice| usize::try_from(notice.policy) == Ok(index));
    bits([
        (decided.is_late, Mechanism::Late),
        (decided.shadow.iter().any(Option::is_some), Mechanism::Shadow),
        (is_leased, Mechanism::Lease),
        (is_due, Mechanism::Notice),
    ])
}

const fn of_carry(carry: Carry) -> Mechanism {
    match carry {
        Carry::AsIs => Mechanism::AsIs,
        Carry::Proportional => Mechanism::Proportional,
        Carry::Additive => Mechanism::Additive,
        Carry::Reset => Mechanism::Anew,
        _ => panic!("a new carry"),
    }
}

fn bits<const COUNT: usize>(seen: [(bool, Mechanism); COUNT]) -> u64 {
    seen.into_iter().filter(|(is_so, _)| *is_so).fold(0, |all, (_, mechanism)| all | mechanism.bit())
}

/// Shown without its content, which no failure depends on.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trace")
    }
}

/// Writes the table whenever it has grown, since there is no hook at the end of a process.
impl Drop for Trace {
    fn drop(&mut self) {
        let Some(folder) = &*FOLDER else { return };
        if thread::panicking() {
            return;
        }
        let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *met;
        for Budget { acted, .. } in self.keys.values().flat_map(|key| key.budgets.values()) {
            let those = met.iter_mut().enumerate().filter(|(index, _)| (acted >> index) & 1 == 1);
            those.for_each(|(_, met)| *met |= acted);
        }
        if *met != before {
            let names = |met: u64| Mechanism::ALL.iter().filter(move |other| met & other.bit() != 0);
            let line = |(mechanism, met): (&Mechanism, &u64)| {
                let names = names(*met).map(|other| format!(" {other:?}"));
                format!("{mechanism:?}:{}\n", names.collect::<String>())
            };
            let table: String = Mechanism::ALL.iter().zip(&*met).map(line).collect();
            fs::write(folder.join(concat!(env!("CARGO_CRATE_NAME"), ".txt")), table).unwrap();
        }
    }
}
