//! The policies that an isolate answers under: those of its deployment and, with a registry, the changes since.
//!
//! It polls the registry in the background when its knowledge is older than [`REFRESH_MS`]. Only a request that finds it older than
//! [`FRESH_MS`] waits: the first of an isolate, or the first after a pause. So a change takes effect everywhere after [`FRESH_MS`], as long
//! as the registry answers. When it does not, later requests do not wait: the isolate continues with what it knows, says so in its answers,
//! and polls again in the background.

use std::mem;
use std::sync::Arc;

use crate::key_hash::KeyHasher;
use crate::policy::overrides::{MalformedRecords, Overrides};
use crate::policy::{Policies, Policy, Timeline};
use crate::protocol::{Poll, Update, Versioned, deployment_id};
use crate::sorted::SortedMap;

/// An isolate's policies.
#[derive(Debug)]
pub struct PolicySnapshot {
    /// The deployment's policies, as written, and their id.
    deployed: String,
    deployment: String,
    /// The policies for answering requests.
    policies: Arc<Policies>,
    /// The registry's policies known here, by name.
    known: SortedMap<String, (Versioned, Arc<Policy>)>,
    /// The registry's overrides of keys, and the cursor after them.
    overrides: Arc<Overrides>,
    hasher: KeyHasher,
    overrides_at: Option<String>,
    /// The overrides that replace these once all have arrived; where there were none, at once.
    loading: Option<Arc<Overrides>>,
    /// The latest known change of the registry, and the registry's identity: see [`Update`].
    as_of: i64,
    born_at: i64,
    /// When the current knowledge was requested.
    asked_at: Option<i64>,
    /// When the registry was last polled.
    tried_at: Option<i64>,
    /// Whether that poll is in flight.
    is_asking: bool,
    /// Whether the last poll failed.
    has_failed: bool,
    /// Whether there is more to know than [`PolicySnapshot::news`] has returned.
    has_news: bool,
    /// The live listeners, from the registry's last answer.
    listeners: Option<String>,
}

/// The policies that one request is answered under.
#[derive(Clone, Debug)]
pub struct InForce {
    policies: Arc<Policies>,
    /// The latest registry change reflected in them; `None` without a registry.
    as_of: Option<i64>,
    /// The names of policies learned from an object, and the latest change reflected in these.
    learned: Option<(Vec<String>, i64)>,
}

impl InForce {
    /// The policies of a deployment without a registry.
    #[must_use]
    pub const fn deployed(policies: Arc<Policies>) -> Self {
        Self { policies, as_of: None, learned: None }
    }

    /// The policies.
    #[must_use]
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The latest registry change reflected in all policies with these names; `None` without a registry.
    #[must_use]
    pub fn as_of<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<i64> {
        let as_of = self.as_of?;
        let of = |name: &str| match &self.learned {
            Some((names, learned)) if names.iter().any(|own| own == name) => *learned,
            _ => as_of,
        };
        Some(names.into_iter().map(of).min().unwrap_or(as_of))
    }
}

/// Whether to poll the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No.
    Nothing,
    /// Yes, while the request proceeds.
    InBackground,
    /// Yes, and the request waits for the answer, at most [`WAIT_MS`].
    BeforeAnswer,
}

/// The age from which policies are refreshed in the background.
pub const REFRESH_MS: i64 = 5_000;

/// The age up to which requests do not wait for a refresh.
pub const FRESH_MS: i64 = 10_000;

/// How long a request waits for the registry.
pub const WAIT_MS: u32 = 1_000;

/// Timeout of a poll in the background: enough to wake the registry at the other end of the world.
pub const POLL_MS: u32 = 4_000;

impl PolicySnapshot {
    /// The policies of a deployment, parsed from this JSON.
    #[must_use]
    pub fn new(deployed: &str, policies: &Policies) -> Self {
        Self {
            deployed: deployed.to_owned(),
            deployment: deployment_id(deployed),
            policies: Arc::new(Policies::of(policies.iter().cloned()).known_at(0)),
            known: SortedMap::new(),
            overrides: Arc::default(),
            hasher: KeyHasher::default(),
            overrides_at: None,
            loading: None,
            as_of: 0,
            born_at: 0,
            asked_at: None,
            tried_at: None,
            is_asking: false,
            has_failed: false,
            has_news: false,
            listeners: None,
        }
    }

    /// Sets how keys are hashed.
    #[must_use]
    pub fn hashing(self, hasher: KeyHasher) -> Self {
        Self { hasher, ..self }
    }

    /// The policies, as far as known.
    #[must_use]
    pub const fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// The policies to answer a request under.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        InForce { policies: Arc::clone(&self.policies), as_of: Some(self.as_of), learned: None }
    }

    /// Whether to poll the registry at `now`.
    #[must_use]
    pub fn due(&self, now: i64) -> Due {
        if self.is_younger(now, REFRESH_MS) {
            Due::Nothing
        } else if self.is_stale(now) && !self.has_failed && !self.is_late(now) {
            Due::BeforeAnswer
        } else if self.was_tried(now) {
            Due::Nothing
        } else {
            Due::InBackground
        }
    }

    /// Whether a change that should be in effect at `now` may have been missed.
    #[must_use]
    pub fn is_stale(&self, now: i64) -> bool {
        !self.is_younger(now, FRESH_MS.saturating_add(1))
    }

    /// The poll to send at `now`; `None` while one is in flight. Then call [`PolicySnapshot::update`] or [`PolicySnapshot::fail`].
    pub fn poll(&mut self, now: i64) -> Option<String> {
        if self.is_asking && self.was_tried(now) {
            return None;
        }
        (self.tried_at, self.is_asking) = (Some(now), true);
        Some(self.question(None))
    }

    /// Takes the registry's answer. Returns the next poll, if there is one.
    ///
    /// # Errors
    /// A line for each policy that this version cannot read, because it is from a later one. The previous one stays in force.
    pub fn update(&mut self, answer: &str) -> Result<Option<String>, Vec<String>> {
        if !mem::take(&mut self.is_asking) {
            return Ok(None); // the answer to an earlier instance, whose memory was lost
        }
        self.listeners = None; // their last state holds for a time
        let Some(mut update) = Update::from_text(answer) else {
            self.has_failed = true;
            return Err(vec!["the registry's answer cannot be read".to_owned()]);
        };
        self.listeners = update.listeners.take();
        if update.wants_policies {
            self.is_asking = true;
            return Ok(Some(self.question(Some(&self.deployed))));
        }
        if self.take_overrides(&update).is_err() {
            self.has_failed = true;
            return Err(vec!["the registry's overrides cannot be read".to_owned()]);
        }
        if update.has_more {
            if update.is_whole {
                _ = self.apply(update); // the last page has the policies again, and so the errors
            }
            self.is_asking = true;
            return Ok(Some(self.question(None)));
        }
        (self.asked_at, self.has_failed) = (self.tried_at, false);
        self.apply(update)
    }

    /// The live listeners in the registry's last answer: JSON, for [`Tap::on_listeners`](super::Tap::on_listeners).
    #[must_use]
    pub fn listeners(&self) -> Option<&str> {
        self.listeners.as_deref()
    }

    /// Records that the registry did not answer.
    pub fn fail(&mut self) {
        (self.is_asking, self.has_failed) = (false, true);
    }

    /// The policies for a retry, after a frontend that knew the registry's changes up to `as_of` called an object under newer policies.
    /// Their [definitions](Policy::definition) are given, one to a line. They do not suffice for other requests: that frontend may know of
    /// overrides, too.
    #[must_use]
    pub fn in_force_with(&self, definitions: &str, as_of: i64) -> InForce {
        if as_of <= self.as_of {
            return self.in_force(); // a late answer: already known, or superseded
        }
        let mut policies: Vec<_> = self.policies.iter().cloned().collect();
        let mut names = Vec::new();
        for newer in definitions.lines().filter_map(|definition| Policy::from_definition(definition).ok()) {
            if newer.is_of_key() || newer.shard().is_some() {
                continue; // specific to one key or shard, so the registry must be polled
            }
            let newer = match self.policies.get(newer.name()) {
                Some(known) => newer.with_frontend(*known.frontend()),
                None => newer,
            };
            names.push(newer.name().to_owned());
            policies.push(Arc::new(newer)); // replaces the one with the same name
        }
        InForce { policies: self.overridden(policies), as_of: Some(self.as_of), learned: Some((names, as_of)) }
    }

    /// [`PolicySnapshot::known`], if that has changed since the last call.
    pub fn news(&mut self) -> Option<String> {
        mem::take(&mut self.has_news).then(|| self.known())
    }

    /// The known state of the registry, as text for [`PolicySnapshot::restore`].
    #[must_use]
    pub fn known(&self) -> String {
        let policies = self.known.iter().map(|(name, (versioned, _))| (name.clone(), Some(versioned.clone())));
        let (as_of, born_at, policies) = (self.as_of, self.born_at, policies.collect());
        Update { as_of, born_at, is_whole: true, policies, ..Update::default() }.to_text()
    }

    /// Takes over another instance's policies. Their age is unknown, so they count as stale. Overrides are not included, so no change
    /// counts as known, and an object that knows of a ban does not take this instance for newer.
    pub fn restore(&mut self, known: &str) {
        if let Some(update) = Update::from_text(known) {
            // What the other instance could read, this one can.
            _ = self.apply(Update { as_of: 0, ..update });
        }
    }

    /// Takes a page of overrides.
    fn take_overrides(&mut self, update: &Update) -> Result<(), MalformedRecords> {
        if update.overrides_are_first {
            let loading = Arc::new(Overrides::new(self.hasher.clone()));
            if self.overrides_at.is_none() {
                // None are known yet, and some are better than none.
                self.overrides = Arc::clone(&loading);
                self.policies = self.overridden(self.policies.iter().cloned());
            }
            self.loading = Some(loading);
        }
        self.loading.as_ref().unwrap_or(&self.overrides).update(&update.overrides)?;
        if !update.overrides_at.is_empty() {
            self.overrides_at = Some(update.overrides_at.clone());
        }
        if !update.has_more
            && let Some(loaded) = self.loading.take()
        {
            self.overrides = loaded;
            self.policies = self.overridden(self.policies.iter().cloned());
        }
        Ok(())
    }

    fn apply(&mut self, update: Update) -> Result<Option<String>, Vec<String>> {
        let Update { as_of, born_at, is_whole, policies, .. } = update;
        let before = if is_whole { mem::take(&mut self.known) } else { SortedMap::new() };
        let mut errors = Vec::new();
        let is_changed = is_whole || !policies.is_empty();
        for (name, versioned) in policies {
            match versioned.map(|versioned| (policy(&name, &versioned), versioned)) {
                None => _ = self.known.remove(&name),
                Some((Ok(policy), versioned)) => _ = self.known.insert(name, (versioned, Arc::new(policy))),
                Some((Err(error), _)) => {
                    errors.push(format!("policy {name} is of a later version: {error}"));
                    if let Some(known) = before.get(&name) {
                        self.known.insert(name, known.clone());
                    }
                }
            }
        }
        self.has_news |= is_changed;
        (self.as_of, self.born_at) = (as_of, born_at);
        if is_changed || self.policies.as_of() == Some(0) {
            self.policies = self.overridden(self.known.values().map(|(_, policy)| Arc::clone(policy)));
        }
        if errors.is_empty() { Ok(None) } else { Err(errors) }
    }

    /// These policies, with the known changes. Of several with one name, the last counts.
    fn overridden(&self, policies: impl IntoIterator<Item = Arc<Policy>>) -> Arc<Policies> {
        Arc::new(Policies::of(policies).known_at(self.as_of).with_overrides(Arc::clone(&self.overrides)))
    }

    fn question(&self, policies: Option<&str>) -> String {
        let (as_of, born_at) = (self.as_of, self.born_at);
        let overrides_at = self.overrides_at.as_deref().map(Into::into);
        let (deployment, is_loading) = (self.deployment.as_str().into(), self.loading.is_some());
        Poll { as_of, born_at, deployment, policies, overrides_at, is_loading }.to_text()
    }

    /// Whether the knowledge is younger than `ms`. After a step back of the clock its age is unknown.
    fn is_younger(&self, now: i64, ms: i64) -> bool {
        self.asked_at.is_some_and(|at| (0..ms).contains(&now.saturating_sub(at)))
    }

    /// Whether a poll has been in flight for longer than a request waits.
    fn is_late(&self, now: i64) -> bool {
        let asks_for = self.tried_at.map(|at| now.saturating_sub(at));
        self.is_asking && asks_for.is_some_and(|ms| (i64::from(WAIT_MS)..REFRESH_MS).contains(&ms))
    }

    /// Whether a poll was just sent, or is in flight.
    fn was_tried(&self, now: i64) -> bool {
        self.tried_at.is_some_and(|at| (0..REFRESH_MS).contains(&now.saturating_sub(at)))
    }
}

/// A policy of the registry.
fn policy(name: &str, versioned: &Versioned) -> Result<Policy, String> {
    let policy = Policy::parse(name, &versioned.text).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        errors.join("; ")
    })?;
    let timeline = Timeline::from_json(&versioned.timeline).map_err(|error| format!("its timeline: {error}"))?;
    Ok(policy.with_timeline(timeline))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{"api":{"rate":"9/1s"},"daily":{"rate":"9/1day"}}"#;

    fn snapshot() -> PolicySnapshot {
        PolicySnapshot::new(OWN, &Policies::parse(OWN).unwrap())
    }

    /// A snapshot that polled at `at`, and got an answer.
    fn answered(at: i64) -> PolicySnapshot {
        let mut snapshot = snapshot();
        snapshot.poll(at).unwrap();
        assert_eq!(snapshot.update(r#"{"as_of":5,"born_at":5}"#), Ok(None));
        snapshot
    }

    fn shown(snapshot: &PolicySnapshot) -> Vec<String> {
        snapshot.policies().iter().map(|policy| shown_policy(policy)).collect()
    }

    fn shown_policy(policy: &Policy) -> String {
        policy.to_string().split(',').take(2).collect()
    }

    #[test]
    fn a_change_takes_effect_within_ten_seconds_and_requests_wait_only_after_a_pause() {
        let snapshot = answered(1_000);
        for (now, due, is_stale) in [
            (1_000, Due::Nothing, false),
            (5_999, Due::Nothing, false),
            (6_000, Due::InBackground, false),
            (11_000, Due::InBackground, false),
            (11_001, Due::BeforeAnswer, true),
            (i64::MAX, Due::BeforeAnswer, true),
            (999, Due::BeforeAnswer, true), // the clock stepped back
        ] {
            assert_eq!((snapshot.due(now), snapshot.is_stale(now)), (due, is_stale), "{now}");
        }
    }

    #[test]
    fn an_unreachable_registry_delays_only_the_first_request() {
        let mut snapshot = snapshot();
        assert_eq!(snapshot.due(0), Due::BeforeAnswer);
        assert!(snapshot.poll(0).is_some());
        assert_eq!(snapshot.due(0), Due::BeforeAnswer, "those beside it wait for the same answer");
        assert_eq!(snapshot.poll(0), None);
        assert_eq!((snapshot.due(999), snapshot.due(1_000)), (Due::BeforeAnswer, Due::Nothing));
        snapshot.fail();
        for (now, due) in [(1, Due::Nothing), (4_999, Due::Nothing), (5_000, Due::InBackground)] {
            assert_eq!((snapshot.due(now), snapshot.is_stale(now)), (due, true), "{now}");
        }
        assert!(snapshot.poll(5_000).is_some());
        assert_eq!(snapshot.due(5_001), Due::Nothing);
        assert_eq!(shown(&snapshot).len(), 2, "its own policies");
        assert_eq!(snapshot.update(r#"{"as_of":5,"born_at":5}"#), Ok(None));
        assert_eq!((snapshot.due(5_001), snapshot.is_stale(5_001)), (Due::Nothing, false));
    }

    #[test]
    fn an_unanswered_poll_does_not_stop_the_next() {
        let mut snapshot = answered(0);
        assert!(snapshot.poll(6_000).is_some());
        assert_eq!(snapshot.poll(10_999), None);
        assert!(snapshot.poll(11_000).is_some());
    }

    #[test]
    fn a_poll_names_the_deployments_policies_and_sends_them_when_asked() {
        let mut snapshot = snapshot();
        let question = snapshot.poll(0).unwrap();
        let (own, id) = (Poll::from_text(&question).unwrap(), deployment_id(OWN));
        let (deployment, policies) = ((&*id).into(), None);
        assert_eq!(own, Poll { as_of: 0, born_at: 0, deployment, policies, overrides_at: None, is_loading: false });
        let question = snapshot.update(r#"{"as_of":5,"born_at":5,"wants_policies":true}"#).unwrap().unwrap();
        assert_eq!(Poll::from_text(&question).unwrap().policies, Some(OWN));
        assert_eq!(snapshot.update(r#"{"as_of":5,"born_at":5}"#), Ok(None));
        let next = snapshot.poll(9_000).unwrap();
        assert_eq!(Poll::from_text(&next).map(|poll| (poll.as_of, poll.born_at)), Some((5, 5)));
    }

    #[test]
    fn updates_accumulate() {
        let timeline = r#"{"since":1,"carry":"as_is"}"#;
        let policy =
            |name: &str, rate: u32| format!(r#"{{"name":"{name}","policy":"{rate}/1s","timeline":{timeline}}}"#);
        let mut snapshot = snapshot();
        let mut update = |at: i64, rest: &str| {
            snapshot.poll(at).unwrap();
            let answer = snapshot.update(&format!(r#"{{"as_of":{at},"born_at":1{rest}}}"#));
            (answer, shown(&snapshot))
        };
        let of = |name: &str, rate: u32| format!("{name}: token bucket {rate} per 1s");
        let whole = format!(r#","is_whole":true,"policies":[{},{}]"#, policy("a", 1), policy("b", 2));
        assert_eq!(update(1, &whole), (Ok(None), vec![of("a", 1), of("b", 2)]));
        let some = format!(r#","policies":[{},{},{{"name":"a"}}]"#, policy("b", 3), policy("c", 4));
        assert_eq!(update(2, &some), (Ok(None), vec![of("b", 3), of("c", 4)]));
        assert_eq!(update(3, ""), (Ok(None), vec![of("b", 3), of("c", 4)]));
        let later = format!(
            r#","is_whole":true,"policies":[{},{},{}]"#,
            policy("b", 5),
            r#"{"name":"c","policy":{"colour":1},"timeline":{}}"#,
            policy("d", 6)
        );
        let (answer, known) = update(4, &later);
        assert!(answer.unwrap_err()[0].starts_with("policy c is of a later version: POLICIES.c.colour: is not"));
        assert_eq!(known, [of("b", 5), of("c", 4), of("d", 6)]);

        let mut other = self::snapshot();
        assert_eq!((snapshot.news(), snapshot.news()), (Some(snapshot.known()), None));
        other.restore(&snapshot.known());
        // It knows no overrides, so newer policies may exist for any key.
        assert_eq!((shown(&other), other.as_of, other.born_at), (shown(&snapshot), 0, 1));
        assert!(other.is_stale(4));
        snapshot.poll(5);
        assert!(snapshot.update("x").is_err() && snapshot.has_failed);
        assert_eq!(shown(&snapshot), shown(&other), "the last known");
    }

    #[test]
    fn a_policy_learned_from_an_object_applies_to_the_retry() {
        let mut snapshot = snapshot();
        snapshot.poll(1_000);
        let policy = r#"{"rate":"9/1s","on_error":"open","ipv6_prefix":56,"show_key_prefix":8}"#;
        let whole = format!(r#"[{{"name":"api","policy":{policy},"timeline":{{"since":5,"carry":"as_is"}}}}]"#);
        let answer = format!(r#"{{"as_of":5,"born_at":1,"is_whole":true,"policies":{whole}}}"#);
        assert_eq!(snapshot.update(&answer), Ok(None));
        let newer = Policy::parse("api", "\"7/1s\"").unwrap().in_force_since(8);
        let taught = snapshot.in_force_with(&newer.definition(), 9);
        let api = taught.policies().get("api").unwrap();
        assert_eq!((api.id(), api.numbers(), api.timeline().since()), (newer.id(), newer.numbers(), 8));
        let found = (api.frontend().on_error, api.frontend().ipv6_prefix, api.frontend().shown_key_prefix);
        assert_eq!(found, (crate::policy::OnError::OPEN, 56, 8), "what only frontends know");
        let as_of = |names: &[&str]| taught.as_of(names.iter().copied());
        assert_eq!((as_of(&["api"]), as_of(&["daily"]), as_of(&["api", "daily"])), (Some(9), Some(5), Some(5)));
        for (others, why) in [
            (snapshot.in_force(), "another request"),
            (snapshot.in_force_with(&newer.definition(), 5), "a late answer"),
        ] {
            let api = shown_policy(others.policies().get("api").unwrap());
            assert_eq!((api, others.as_of(["api"])), ("api: token bucket 9 per 1s".to_owned(), Some(5)), "{why}");
        }
        assert_eq!(InForce::deployed(Arc::clone(snapshot.policies())).as_of(["api"]), None, "without a registry");
    }

    #[test]
    fn an_answer_to_no_poll_is_ignored() {
        let mut snapshot = snapshot();
        assert_eq!(snapshot.update(r#"{"as_of":5,"born_at":5,"is_whole":true}"#), Ok(None));
        assert_eq!((shown(&snapshot).len(), snapshot.as_of), (2, 0));
    }
}
