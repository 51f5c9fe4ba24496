//! Messages between a frontend and an object: values on both sides, texts of numbers in transit.
//!
//! A text is the cheapest value to pass through JavaScript and between objects. A frontend calls an object's `decide(names, request,
//! definitions)`: the [wire names](crate::policy::Policy::wire_name) of the policies, separated by commas; an [`ObjectRequest`]; and at
//! first no definitions. It gets an [`ObjectReply`].
//!
//! During a roll-out, frontends and objects of neighbouring versions and settings meet:
//!
//! * Numbers start with their [`Format`]. An object answers in the format of the request. It answers a request in a format newer than its
//!   own with [`ObjectReply::FormatUnknown`], and the frontend retries in one that the object knows.
//! * Numbers end with sections, each with its kind and length, and readers skip unknown ones. So an addition that an older version may
//!   ignore needs no new format.
//! * An object decides under its own policies. If it lacks one, it answers [`ObjectReply::PolicyUnknown`], and the frontend retries with
//!   the [definitions](crate::policy::Policy::definition) of the policies, one to a line. The object then decides under those.
//!
//! * Policies of a registry change while frontends run. A frontend requests each by its [id](crate::policy::Policy::id): see [`Known`]. An
//!   object that has not received that version yet also answers [`ObjectReply::PolicyUnknown`]. One whose bucket is at a newer version
//!   answers [`ObjectReply::PolicyOutdated`] with that one, and the frontend retries under it.
//!
//! After any of these replies, nothing was done.
#![forbid(unsafe_code)]
// Links to what only the service has.
#![cfg_attr(not(feature = "service"), allow(rustdoc::broken_intra_doc_links))]
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

mod admin;
mod coming_back;
mod key_act;
mod key_state;
mod lease;
mod numbers;
#[cfg(feature = "service")]
mod overrides;
#[cfg(feature = "service")]
mod policies;
#[cfg(feature = "service")]
mod registry;
mod reply;
mod request;
mod rows;

pub use admin::{AuditLine, ChangeError, Changed, Condition, PolicyChange, Source, Standing};
pub use coming_back::ComingBack;
pub use key_act::KeyAct;
pub use key_state::{BucketState, HoldState, KeyState, LimitState, PastDecision, PolicyTokens, ReservationState};
pub use lease::{EndedLease, LEASE_GRACE_MS, Lease, LeaseRequest};
pub use numbers::{Format, Unreadable};
#[cfg(feature = "service")]
pub(crate) use overrides::MAX_ERROR_LINES;
#[cfg(feature = "service")]
pub use overrides::{
    MAX_OVERRIDE_LEN, MAX_OVERRIDES_AT_ONCE, NamedKeys, NewOverride, OverrideChange, OverrideKeys, OverrideStanding,
    OverridesChange, OverridesChanged, OverridesError,
};
#[cfg(feature = "service")]
pub use policies::{Definitions, definitions_of, names_of};
#[cfg(feature = "service")]
pub use registry::{Poll, Update, Versioned, deployment_id};
pub use reply::{Decided, DueNotice, LimitAnswer, ObjectReply, Reserved, Spread, take_part};
pub use request::{Action, Known, ObjectRequest, RequestId};
pub use rows::Rows;
