//! One request from arrival to reply: its target, its caller's rights, the objects it calls, answers from memory, and the meaning of
//! failures.
//!
//! [`Service::head`] handles everything before the body, and [`Service::ask`] the whole request. Both find the target with [`Address`] and
//! [`Target`], and every handler calls [`Target::require`] first. A request about budgets becomes a [`Call`].
//!
//! [`Setup`] reads a Worker's deployment, [`KeyService`] answers in a key's object, and [`RegistryService`] in the registry's.
//!
//! Nothing here waits or reads a clock: time and randomness are arguments.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod address;
mod call;
mod environment;
mod event;
mod isolate;
mod key_service;
mod keys;
mod memory;
mod newer;
mod object;
mod platform_limit;
mod registry_service;
mod request_id;
mod service;
mod settings;
mod shards;
mod target;

pub use address::Address;
pub use call::{Call, LastStep, Left, Point, Recording, SentRequest, Verification};
pub use environment::{Binding, Environment, Setup, Variable, hasher_in, own_policies};
pub use isolate::Isolate;
pub use key_service::KeyService;
pub use memory::Memory;
pub use newer::Newer;
pub use registry_service::{AdminOutcome, RegistryService};
pub use request_id::is_request_id;
pub use service::{Arrival, Asked, Head, Service, Step, Undecided};
pub use settings::{Callers, Receivers, Settings, SettingsErrors};
pub use target::{BODY_MS, Target, key_verbs, verbs};

/// The current time, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The clock for decisions.
    pub at: i64,
    /// The clock for timeouts. On Workers it is the same; tests set the other.
    pub waiting: i64,
}

/// 64 random bits; `None` without a source of randomness.
pub type Random<'a> = &'a mut dyn FnMut() -> Option<u64>;
