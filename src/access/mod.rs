//! Authentication, authorization, and the names of objects.
//!
//! [`Credentials`] turns a header into a [`Caller`], before anything else of a request is read. A [`Caller`] has rights: to endpoints,
//! policies and a [`Key`]. [`Names`] maps keys to objects. [`Sessions`] makes grants for visitors who have solved a captcha. [`Webhook`]
//! signs notices to the operator's receiver.
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

mod address;
#[cfg(feature = "service")]
mod caller;
#[cfg(feature = "service")]
mod credentials;
mod denied;
#[cfg(feature = "service")]
mod error;
#[cfg(feature = "service")]
mod grants;
#[cfg(feature = "service")]
mod key;
#[cfg(feature = "service")]
mod names;
#[cfg(feature = "service")]
mod numeric_date;
#[cfg(feature = "service")]
mod rights;
mod scope;
#[cfg(feature = "service")]
mod session;
pub mod setting;
#[cfg(feature = "service")]
mod tokens;
#[cfg(feature = "service")]
mod url;
#[cfg(feature = "service")]
mod webhook;

#[cfg(feature = "tower")]
pub(crate) use address::parse as parse_address;
pub use address::{AddressError, Network};
#[cfg(feature = "service")]
pub use caller::Caller;
#[cfg(feature = "service")]
pub use credentials::{CredentialSettings, Credentials};
pub use denied::{CaptchaError, Denied, Forbidden, GrantError, Holder};
#[cfg(feature = "service")]
pub use error::SettingError;
#[cfg(feature = "service")]
pub use key::{Key, KeyError, KeyMisfit, MAX_KEY_LEN, MAX_KEY_PARTS, key_json};
#[cfg(feature = "service")]
pub use names::{Names, key_hash_in, shard_name};
pub use scope::Scope;
#[cfg(feature = "service")]
pub use session::{Session, SessionSettings, Sessions};
#[cfg(feature = "service")]
pub use webhook::Webhook;
