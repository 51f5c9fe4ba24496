//! Authentication, authorization, and the names of objects.
//!
//! [`Credentials`] turns a header into a [`Caller`], before anything else of a request is read. A [`Caller`] has rights: to endpoints,
//! policies and a [`Key`]. [`Names`] maps keys to objects. [`Sessions`] makes grants for visitors who have solved a captcha. [`Webhook`]
//! signs notices to the operator's receiver.
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
mod caller;
mod credentials;
mod error;
mod grants;
mod key;
mod names;
mod numeric_date;
mod rights;
mod scope;
mod session;
mod tokens;
mod url;
mod webhook;

#[cfg(feature = "tower")]
pub(crate) use address::parse as parse_address;
pub use address::{AddressError, Network};
pub use caller::{Caller, Forbidden, Holder};
pub use credentials::{CredentialSettings, Credentials, Denied};
pub use error::SettingError;
pub use grants::GrantError;
pub use key::{Key, KeyError, KeyMisfit, MAX_KEY_LEN, MAX_KEY_PARTS, key_json};
pub use names::{Names, key_hash_in, shard_name};
pub use scope::Scope;
pub use session::{CaptchaError, Session, SessionSettings, Sessions};
pub use webhook::Webhook;
