//! The names of settings about callers, keys and the webhook.

/// Tokens by name.
pub const TOKENS: &str = "TOLLGATE_TOKENS";

/// The keys that verify grants.
pub const GRANT_KEYS: &str = "TOLLGATE_GRANT_KEYS";

/// The `aud` of grants.
pub const AUDIENCE: &str = "TOLLGATE_AUDIENCE";

/// Sessions for visitors.
pub const SESSIONS: &str = "TOLLGATE_SESSIONS";

/// The secret that authenticates the operator to the captcha's verifier.
pub const TURNSTILE_SECRET: &str = "TURNSTILE_SECRET";

/// The secret in the names of objects.
pub const KEY_SECRET: &str = "TOLLGATE_KEY_SECRET";

/// Where notices are sent.
pub const WEBHOOK_URL: &str = "TOLLGATE_WEBHOOK_URL";

/// The secret that signs them.
pub const WEBHOOK_SECRET: &str = "TOLLGATE_WEBHOOK_SECRET";
