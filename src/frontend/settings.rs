//! A frontend's settings.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::memory::Memory;
use super::newer::Newer;
use crate::access::{Caller, Credentials, Key, Names, Sessions, SettingError};
use crate::api::{Missing, Problem};
use crate::edge::{InForce, PolicySnapshot, Receiver};
use crate::policy::{POLICIES, Policies};

/// Valid settings of a frontend.
pub struct Settings {
    /// The policies of the deployment, or those in code.
    pub policies: Arc<Policies>,
    /// The known state of the registry, if there is one.
    pub registry: Option<RefCell<PolicySnapshot>>,
    /// Whether the first call already includes the policies' definitions: objects do not have those of policies in code.
    pub sends_definitions: bool,
    /// How objects are named.
    pub names: Names,
    /// The receivers of notices.
    pub receivers: Receivers,
    /// The share of decisions written as data points; 0 without a data set.
    pub sample: f64,
    /// How callers authenticate.
    pub callers: Callers,
    /// The frontend's knowledge of budgets.
    pub memory: Rc<RefCell<Memory>>,
}

/// How callers authenticate.
pub enum Callers {
    /// With a header.
    WithCredentials(Box<Credentials>),
    /// With a service binding, whose `props` give their rights.
    Bound,
    /// Not at all: the service is in their own program.
    Trusted,
    /// Not at all: they are code of an application's own Durable Object, which has this key. See [`Caller::inside`].
    Inside(Key<'static>),
}

/// The receivers of notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receivers {
    /// Whether a queue is bound.
    pub has_queue: bool,
    /// Whether there is a webhook.
    pub has_webhook: bool,
    /// Whether they receive keys as callers write them, instead of hashes.
    pub get_keys: bool,
}

impl Receivers {
    /// Those that there are.
    pub fn all(self) -> impl Iterator<Item = Receiver> {
        let all = [(self.has_queue, Receiver::Queue), (self.has_webhook, Receiver::Webhook)];
        all.into_iter().filter_map(|(is_there, receiver)| is_there.then_some(receiver))
    }

    /// Whether there is any.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.has_queue || self.has_webhook
    }
}

/// Errors in settings.
#[derive(Debug)]
pub struct SettingsErrors {
    /// One line per error.
    pub lines: Vec<String>,
    /// The settings missing altogether; each also has a line.
    pub missing: Vec<Missing>,
}

impl SettingsErrors {
    /// A missing setting has no other errors: each line of `others` starts with its setting's name.
    #[must_use]
    pub fn new(missing: Vec<Missing>, others: Vec<String>) -> Self {
        let hidden = missing.contains(&Missing::Policies).then_some(POLICIES);
        let others = others.into_iter().filter(|line| hidden.is_none_or(|name| !line.starts_with(name)));
        let lines = missing.iter().map(|missing| missing.advice().to_owned()).chain(others).collect();
        Self { lines, missing }
    }
}

/// All of it but how callers authenticate and how keys are hashed, which are secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policies, registry, sends_definitions, names: _, receivers, sample, callers: _, memory } = self;
        let parts = (policies, registry, sends_definitions, receivers, sample, memory);
        f.debug_tuple("Settings").field(&parts).finish()
    }
}

impl Settings {
    /// The settings with these policies and nothing else: no credentials, secret, registry, receivers of notices or data points. Use this where all
    /// callers are in the same program.
    #[must_use]
    pub fn trusting(policies: Arc<Policies>) -> Self {
        Self {
            policies,
            registry: None,
            sends_definitions: false,
            names: Names::without_secret(),
            receivers: Receivers::default(),
            sample: 0.0,
            callers: Callers::Trusted,
            memory: Rc::default(),
        }
    }

    /// The policies to answer under: the registry's as far as known, else the deployment's. `newer` are those under which an object was
    /// called: see [`PolicySnapshot::in_force_with`].
    pub(super) fn in_force(&self, newer: Option<&Newer>) -> InForce {
        match (&self.registry, newer) {
            (None, _) => InForce::deployed(Arc::clone(&self.policies)),
            (Some(known), None) => known.borrow().in_force(),
            (Some(known), Some(newer)) => known.borrow().in_force_with(&newer.definitions, newer.as_of),
        }
    }

    /// Whether newer policies may exist at `now`, since the registry has not answered for too long.
    pub(super) fn is_stale(&self, now: i64) -> bool {
        self.registry.as_ref().is_some_and(|known| known.borrow().is_stale(now))
    }

    /// The sessions that visitors may open, if enabled.
    pub(super) fn sessions(&self) -> Option<&Sessions> {
        match &self.callers {
            Callers::WithCredentials(credentials) => credentials.sessions(),
            Callers::Bound | Callers::Trusted | Callers::Inside(_) => None,
        }
    }

    /// Authenticates the caller of a request at `now`. One that came through a service binding has only the rights in `props`: its header may
    /// be that of a visitor whose request the caller has forwarded.
    pub(super) fn caller(
        &self,
        (authorization, props): (Option<&str>, Option<&str>),
        now: i64,
    ) -> Result<Caller<'_>, Problem> {
        match &self.callers {
            Callers::WithCredentials(credentials) => {
                credentials.check(authorization, now).map_err(|denied| Problem::Unauthorized { denied })
            }
            Callers::Bound => Caller::binding(props).map_err(wrong_binding),
            Callers::Trusted => Ok(Caller::TRUSTED),
            Callers::Inside(own) => Ok(Caller::inside(own)),
        }
    }
}

/// The problem of a caller whose binding has these errors in its `props`.
#[expect(clippy::needless_pass_by_value, reason = "for errors")]
pub(super) fn wrong_binding(errors: Vec<SettingError>) -> Problem {
    Problem::WrongBinding { errors: errors.iter().map(|error| format!("the service binding's {error}")).collect() }
}
