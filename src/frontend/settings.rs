//! What a frontend is set up with.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::memory::Memory;
use super::newer::Newer;
use crate::access::{Caller, Credentials, Key, Names, Sessions};
use crate::api::{Missing, Problem};
use crate::edge::{InForce, PolicySnapshot};
use crate::policy::Policies;

/// What a frontend answers with, without errors.
pub struct Settings {
    /// The policies of the deployment, or those in code.
    pub policies: Arc<Policies>,
    /// What is known of the registry, if there is one.
    pub registry: Option<RefCell<PolicySnapshot>>,
    /// Whether objects are sent the definitions of the policies at once: those that are written in code, no object has.
    pub sends_definitions: bool,
    /// How objects are called.
    pub names: Names,
    /// Who is told of notices.
    pub receivers: Receivers,
    /// How callers show who they are.
    pub callers: Callers,
    /// What it knows of budgets.
    pub memory: Rc<RefCell<Memory>>,
}

/// How callers show who they are.
pub enum Callers {
    /// By a header.
    WithCredentials(Box<Credentials>),
    /// By a service binding, whose `props` say what they may do.
    Bound,
    /// Not at all: they have the service in their own program.
    Trusted,
    /// Not at all: they are code of an application's own Durable Object, which has this key. See [`Caller::inside`].
    Inside(Key<'static>),
}

/// Who is told of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// Nobody.
    None,
    /// Some, who are told hashes of keys.
    OfHashes,
    /// Some, who are told keys as callers write them.
    OfKeys,
}

/// What is wrong with settings.
pub struct SettingsErrors {
    /// A line for each error.
    pub lines: Vec<String>,
    /// What is missing altogether; there is a line for each.
    pub missing: Vec<Missing>,
}

impl SettingsErrors {
    /// What is missing has no other errors: a line of `others` begins with the name of its setting.
    #[must_use]
    pub fn new(missing: Vec<Missing>, others: Vec<String>) -> Self {
        let hidden = missing.contains(&Missing::Policies).then_some("POLICIES");
        let others = others.into_iter().filter(|line| hidden.is_none_or(|name| !line.starts_with(name)));
        let lines = missing.iter().map(|missing| missing.advice().to_owned()).chain(others).collect();
        Self { lines, missing }
    }
}

impl Settings {
    /// Those of a deployment that has these policies and nothing else: no credentials, no secret, no registry and no receivers of notices.
    /// Use this where all callers are in the same program.
    #[must_use]
    pub fn trusting(policies: Arc<Policies>) -> Self {
        Self {
            policies,
            registry: None,
            sends_definitions: false,
            names: Names::without_secret(),
            receivers: Receivers::None,
            callers: Callers::Trusted,
            memory: Rc::default(),
        }
    }

    /// The policies to answer under: those of the registry as far as it is known, else those of the deployment. `newer` are those under
    /// which an object has been asked: see [`PolicySnapshot::in_force_with`].
    pub(super) fn in_force(&self, newer: Option<&Newer>) -> InForce {
        match (&self.registry, newer) {
            (None, _) => InForce::deployed(Arc::clone(&self.policies)),
            (Some(known), None) => known.borrow().in_force(),
            (Some(known), Some(newer)) => known.borrow().in_force_with(&newer.definitions, newer.as_of),
        }
    }

    /// Whether there may be newer policies at `now`, since the registry has not answered for too long.
    pub(super) fn is_stale(&self, now: i64) -> bool {
        self.registry.as_ref().is_some_and(|known| known.borrow().is_stale(now))
    }

    /// The sessions that visitors may open, if there are any.
    pub(super) fn sessions(&self) -> Option<&Sessions> {
        match &self.callers {
            Callers::WithCredentials(credentials) => credentials.sessions(),
            Callers::Bound | Callers::Trusted | Callers::Inside(_) => None,
        }
    }

    /// Who sends this `Authorization` header at `now`, or holds a binding with these `props`.
    pub(super) fn caller(&self, authorization: Option<&str>, now: i64) -> Result<Caller<'_>, Problem> {
        match &self.callers {
            Callers::WithCredentials(credentials) => {
                credentials.check(authorization, now).map_err(|denied| Problem::Unauthorized { denied })
            }
            Callers::Bound => Caller::binding(authorization).map_err(|errors| {
                let errors = errors.iter().map(|error| format!("the service binding's {error}")).collect();
                Problem::WrongBinding { errors }
            }),
            Callers::Trusted => Ok(Caller::TRUSTED),
            Callers::Inside(own) => Ok(Caller::inside(own)),
        }
    }
}
