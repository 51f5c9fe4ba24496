//! The registry of policies, over deployments, changes by operators, and crashes.

#[path = "../chance/mod.rs"]
mod chance;
#[path = "../chance/split_mix.rs"]
mod split_mix;

mod changes;
mod deployments;
mod kept;
mod laws;
mod overrides;
mod world;
