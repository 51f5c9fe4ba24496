//! Names and prefixes of rows. Those of acts are in `log.rs`.

/// The registry's own state.
pub(super) const MOMENTS: &str = "registry";
/// Prefix of a policy's row, before its name.
pub(super) const POLICY: &str = "policy:";
/// Prefix of a deployment's row, before its id.
pub(super) const DEPLOYMENT: &str = "deployment:";
/// Prefix of an override's row, before its id.
pub(super) const OVERRIDE: &str = "override:";
