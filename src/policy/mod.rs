//! Policies: named sets of limits, as written and as stored beside a bucket.
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

mod ban;
mod calendar;
mod change;
#[cfg(feature = "service")]
mod definition;
mod error;
mod frontend_terms;
mod inline;
#[cfg(feature = "service")]
mod labels;
mod lint;
mod mode;
mod name;
mod named;
mod named_limit;
mod notify;
mod object_terms;
mod on_error;
#[cfg(feature = "service")]
#[doc(hidden)]
pub mod overrides;
mod parse;
mod rate;
mod reader;
mod registry_terms;
mod shard;
mod shards;
mod shown;
mod stored;
mod timeline;
mod weakest;

pub(crate) use calendar::shown_period;
#[cfg(feature = "kinds")]
pub(crate) use calendar::{CalendarField, calendar_in};
#[cfg(feature = "service")]
pub(crate) use error::POLICIES;
pub use error::{PolicyError, PolicyErrors};
pub use lint::{Admitted, BanFacts, Code, CrashCost, DebtFacts, Finding, Level, LimitFacts, Lint, LongRun};
pub use named::Policy;
pub use named_limit::NamedLimit;
#[cfg(feature = "service")]
pub(crate) use named_limit::{is_of_slots, name_of, names_in};
pub use parse::Policies;
pub use reader::MAX_LIMITS;
#[cfg(feature = "service")]
pub(crate) use reader::{default_write_ahead, written};

// For the service only, like everything hidden in here: no public API.
#[doc(hidden)]
pub use ban::{Ban, BanTerms};
#[doc(hidden)]
pub use change::describe_change;
#[doc(hidden)]
pub use frontend_terms::{FrontendTerms, LeaseTerms};
#[doc(hidden)]
pub use named::{Standing, shadow_of, without_shadow};
#[doc(hidden)]
pub use notify::{NoticeKind, Notify};
#[doc(hidden)]
pub use object_terms::{ObjectTerms, ReservationTerms, Unsettled};
#[doc(hidden)]
pub use on_error::{Cause, OnError};
#[doc(hidden)]
pub use registry_terms::RegistryTerms;
#[doc(hidden)]
pub use shard::{MAX_SHARDS, Shard};
#[doc(hidden)]
pub use stored::{StoredConfigError, numbers_of, stored_limits};
#[doc(hidden)]
pub use timeline::{Merged, Timeline, Version};
