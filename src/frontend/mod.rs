//! One request from its arrival to its reply: what it is for, whether its caller may have that, which objects are asked, what is known
//! without them, and what a failure means.
//!
//! [`Service::head`] looks at what comes before the body, and [`Service::ask`] at the whole. Both find out what the request is for with
//! [`Address`] and [`Target`], and whatever carries one out calls [`Target::require`] first. A request about budgets becomes a [`Call`].
//!
//! [`Setup`] reads what a Worker is deployed with, [`KeyService`] answers in the object of a key, and [`RegistryService`] in the
//! registry's.
//!
//! Nothing in here waits, or reads a clock: time and randomness are arguments.
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
mod registry_service;
mod service;
mod settings;
mod shards;
mod target;

pub use address::Address;
pub use call::{After, Call, Left, Recording, Verification};
pub use environment::{Binding, Environment, Setup, Variable, hasher_in, own_policies};
pub use event::Event;
pub use isolate::Isolate;
pub use key_service::KeyService;
pub use memory::Memory;
pub use newer::Newer;
pub use registry_service::{AdminOutcome, RegistryService};
pub use service::{Arrival, Asked, Head, Service, Step};
pub use settings::{Callers, Receivers, Settings, SettingsErrors};
pub use target::Target;

/// When something happens, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// By the clock of decisions.
    pub at: i64,
    /// By the clock from which waiting is timed. On Workers it is the same; tests set the other.
    pub waiting: i64,
}

/// 64 random bits; `None` without a source of randomness.
pub type Random<'a> = &'a mut dyn FnMut() -> Option<u64>;
