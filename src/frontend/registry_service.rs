//! The registry's object without the runtime: answers frontends and operators from the [`Registry`](crate::registry::Registry) and the
//! frontends' counters, and passes live decisions to listening operators.

use super::environment::{Environment, declared_in};
use crate::api::{AdminQuestion, AdminRequest, Problem, Reply};
use crate::hex::hex_of;
use crate::metrics::{Audience, INLINE_POLICIES, LiveBatch, Report, Totals};
use crate::policy::FrontendTerms;
use crate::protocol::{KeyAct, OverridesChange, Poll, Update};
use crate::registry::{Kept, PollError, Registry, Storage, Writes};

/// The registry, and what its object keeps only in memory.
#[derive(Debug)]
pub struct RegistryService<S> {
    registry: Kept<S>,
    /// Frontends' counts since it woke.
    totals: Totals,
    /// The listeners to live decisions, and their pending decisions.
    audience: Audience,
}

/// The result of an operator's request.
#[derive(Debug)]
pub struct AdminOutcome {
    /// The reply.
    pub reply: Reply,
    /// Who changed what, for the log.
    pub changed: Option<String>,
    /// Whether the frontend must poll at once, for its next request: something was to be changed, or an operator starts to listen to
    /// decisions.
    pub is_news: bool,
}

impl<S: Storage> RegistryService<S> {
    /// A service that woke at `now`. Its listeners' numbers start at `random` or, without randomness, at that moment: both differ from those
    /// of the instance before it.
    #[must_use]
    pub fn new(registry: Kept<S>, now: i64, random: Option<u64>) -> Self {
        let first = random.unwrap_or_else(|| now.unsigned_abs() << 12); // which makes room for numbers
        Self { registry, totals: Totals::new(now), audience: Audience::new(first) }
    }

    /// Answers a frontend's [`Poll`] with an [`Update`], both as text. `report` is a [`Report`] of its counts, as text: it counts even if the
    /// poll fails, unless it is of another version.
    ///
    /// # Errors
    /// The storage's; within, why the poll fails. Nothing has changed then.
    pub fn poll(&mut self, poll: &str, report: Option<&str>, now: i64) -> Result<Result<String, PollError>, S::Error> {
        if let Some(report) = report.and_then(Report::from_text) {
            self.totals.add(report, now);
        }
        let Some(poll) = Poll::from_text(poll) else { return Ok(Err(PollError::Unreadable)) };
        let update = self.registry.attempt(|registry| registry.poll(&poll, now))?;
        Ok(update.map(|update| Update { listeners: self.listeners(now), ..update }.to_text()))
    }

    /// Takes over the policies of its own deployment, as if a frontend had polled. Call it every [`BEAT_MS`](crate::registry::BEAT_MS).
    ///
    /// # Errors
    /// The storage's; within, those of the policies. Nothing has changed then.
    pub fn beat(&mut self, env: &dyn Environment, now: i64) -> Result<Result<(), PollError>, S::Error> {
        match declared_in(env) {
            Some(policies) => self.registry.attempt(|registry| Ok(((), registry.beat(&policies, now)?))),
            None => Ok(Ok(())), // policies in code are unknown to the registry
        }
    }

    /// Records an operator's act on a key.
    ///
    /// # Errors
    /// The storage's.
    pub fn record(&mut self, act: &KeyAct, now: i64) -> Result<(), S::Error> {
        self.registry.step(|registry, _| Ok(((), registry.record_key_act(act, now))))
    }

    /// Passes decisions to the listeners. Returns them as text of [`Listeners`](crate::metrics::Listeners); `None` if there are none.
    pub fn take_batch(&mut self, batch: &LiveBatch, now: i64) -> Option<String> {
        self.audience.take(batch, now);
        self.listeners(now)
    }

    fn listeners(&mut self, now: i64) -> Option<String> {
        let isolates = self.totals.isolates(now);
        self.audience.listeners(isolates, now).map(|listeners| listeners.to_text())
    }

    /// Answers an operator's request. A malformed one is refused without reading the registry.
    ///
    /// # Errors
    /// The storage's.
    pub fn administer(&mut self, question: &AdminQuestion<'_>, now: i64) -> Result<AdminOutcome, S::Error> {
        let request = match question.request() {
            Ok(request) => request,
            Err(problem) => return Ok(AdminOutcome { reply: problem.reply(), changed: None, is_news: false }),
        };
        let is_change = request.changes();
        let only = question.only.as_deref();
        let Self { registry, totals, audience } = self;
        registry.step(|registry, storage| {
            let (mut writes, mut changed, mut starts_listening) = (Writes::new(), None, false);
            let mut done = |who: &str, what: &str, rows: Writes| {
                changed = (!rows.is_empty()).then(|| format!("{who} has changed {what}"));
                writes = rows;
            };
            let mut change_overrides = |registry: &mut Registry, change: OverridesChange<'_>| {
                let OverridesChange { by, carry, is_dry_run, .. } = change;
                let result = registry.change_overrides(change, now).map(|(changed, rows)| {
                    done(by, "overrides", rows);
                    changed
                });
                question.overrides_changed(carry, is_dry_run, result)
            };
            let is_known = |registry: &Registry, name: &str| registry.policy(name).is_some() && question.may_name(name);
            let reply = match request {
                AdminRequest::Policies => question.policies(registry.as_of(), registry.policies()),
                AdminRequest::Policy { name } => question.policy(name, registry.policy(name)),
                AdminRequest::Change(change) => match registry.change(&change, now) {
                    Ok((changed, rows)) => {
                        done(change.by, &format!("the policy {}", change.name), rows);
                        Ok(question.changed(&change, &changed))
                    }
                    Err(error) => Err(Problem::of_change(change.name, error)),
                },
                AdminRequest::Metrics => Ok(question.metrics(totals, Some(totals.isolates(now)))),
                AdminRequest::TopRefused => Ok(question.top_refused(totals, now)),
                AdminRequest::Decisions { policy, outcomes, after } => {
                    let is_inline = |name: &str| name == INLINE_POLICIES && question.may_name(name);
                    let is_wrong = |name: &&String| !is_known(registry, name) && !is_inline(name);
                    if let Some(name) = policy.as_ref().filter(is_wrong) {
                        Err(question.unknown_policy(name, registry.policies()))
                    } else {
                        let restricted = question.only.as_ref().map(|_| &*question.by);
                        let filter = question.live_filter(policy, outcomes);
                        let page = audience.listen(filter, restricted, after, now);
                        starts_listening = page.as_ref().is_ok_and(|page| after.is_none() || page.is_interrupted);
                        question.decisions(page)
                    }
                }
                AdminRequest::Overrides { policy, after, limit } => {
                    let is_asked =
                        |name: &str| policy.as_ref().is_none_or(|policy| policy == name) && question.may_name(name);
                    let (overrides, has_more) = registry.overrides(is_asked, after.as_deref(), limit, now);
                    Ok(question.overrides(registry.as_of(), &overrides, has_more))
                }
                AdminRequest::Override(keys) => match registry.override_for(&keys, only, now) {
                    Ok(found) => Ok(question.overrides(registry.as_of(), found.as_slice(), false)),
                    Err(detail) => Err(Problem::BadRequest { detail }),
                },
                AdminRequest::ChangeOverrides(change) => change_overrides(registry, change),
                AdminRequest::Block(block) if !is_known(registry, &block.policy) => {
                    Err(question.unknown_policy(&block.policy, registry.policies()))
                }
                AdminRequest::Block(block) => {
                    let change = question.overrides_change(vec![Ok(block.into_change(now))], None, false);
                    change_overrides(registry, change)
                }
                AdminRequest::Audit { key, before, limit } => {
                    let hash = key.map(|key| hex_of(&registry.hash_of_key(&key, FrontendTerms::IPV6_PREFIX)));
                    let most = if hash.is_some() { usize::MAX } else { limit };
                    let rows = storage.rows_of(&registry.audit_rows(before, most, hash.is_some()))?;
                    Ok(question.audit(&rows, limit, hash.as_deref()))
                }
            };
            let reply = reply.unwrap_or_else(|problem| problem.reply());
            let is_news = is_change || starts_listening;
            Ok((AdminOutcome { reply, changed, is_news }, writes))
        })
    }
}
