//! The names of rows, or what they begin with. Those of acts are in `log.rs`.

/// What the registry knows of itself.
pub(super) const MOMENTS: &str = "registry";
/// A policy, by its name.
pub(super) const POLICY: &str = "policy:";
/// A deployment, by its id.
pub(super) const DEPLOYMENT: &str = "deployment:";
/// An override, by its id.
pub(super) const OVERRIDE: &str = "override:";
