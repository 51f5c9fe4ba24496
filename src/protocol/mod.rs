//! What a frontend and an object say to each other: values on both sides, texts of numbers on the way.
//!
//! A text is the cheapest value to pass through JavaScript and from one object to another. A frontend calls
//! `decide(names, request, definitions)` of an object: the [wire names](crate::policy::Policy::wire_name) of the policies,
//! separated by commas; an [`ObjectRequest`]; and nothing else, at first. It gets an [`ObjectReply`].
//!
//! While a deployment spreads, frontends and objects of neighbouring versions and settings meet:
//!
//! * Numbers begin with their [`Format`]. An object answers in the format of the request. It answers a request in a format
//!   newer than its own with [`ObjectReply::FormatUnknown`], and the frontend repeats it in one that the object knows.
//! * Numbers end with sections, each with its kind and its length, and readers skip those that they do not know. So an
//!   addition that an older version may ignore needs no new format.
//! * An object decides under its own policies. It answers names that it does not have with
//!   [`ObjectReply::PolicyUnknown`], and the frontend repeats the request with the
//!   [definitions](crate::policy::Policy::definition) of the policies, one to a line. The object then decides under those.
//!
//! * Policies of a registry change while frontends run. A frontend asks for each by its [id](crate::policy::Policy::id): see
//!   [`Known`]. An object that has not been sent that version yet answers [`ObjectReply::PolicyUnknown`] too. One whose bucket
//!   has moved on to a newer version answers [`ObjectReply::PolicyOutdated`] with that one, and the frontend asks under it.
//!
//! None of these replies has done anything.
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

mod admin;
mod key_act;
mod key_state;
mod lease;
mod numbers;
mod policies;
mod registry;
mod reply;
mod request;
mod rows;

pub use admin::{
    AuditLine, ChangeError, Changed, Condition, OverrideStanding, OverridesChange, OverridesChanged, OverridesError,
    PolicyChange, Source, Standing,
};
pub use key_act::KeyAct;
pub use key_state::{BucketState, HoldState, KeyState, LimitState, PastDecision, PolicyTokens, ReservationState};
pub use lease::{EndedLease, LATE_MS, Lease, LeaseRequest};
pub use numbers::{Format, Unreadable};
pub use policies::Definitions;
pub use registry::{Poll, Update, Versioned, deployment_id};
pub use reply::{Decided, DueNotice, LimitAnswer, ObjectReply, Reserved, Spread};
pub use request::{Action, Known, ObjectRequest, RequestId};
pub use rows::Rows;
