//! Settings that a deployment may lack altogether. Callers see them too: they are no secret, and the deployer often sees only an answer.

/// A setting without which no decision is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The binding to the objects with the budgets.
    Objects,
    /// The same for a program that can also pass the objects' namespace.
    Namespace,
    /// The policies.
    Policies,
}

impl Missing {
    /// What is missing, and how to add it.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Objects => {
                "KEYS: no Durable Object namespace is bound under this name: add a binding for the class KeyObject to \
                 Wrangler's configuration, and to each [env.ENVIRONMENT] of it, which inherits no bindings"
            }
            Self::Namespace => {
                "KEYS: there is no Durable Object namespace: bind the class KeyObject under this name in Wrangler's configuration, or \
                 pass its namespace as the option `keys`"
            }
            Self::Policies => {
                "POLICIES: there are no policies: add some to Wrangler's configuration, as [vars.POLICIES.NAME], and to each \
                 environment of it, as [env.ENVIRONMENT.vars.POLICIES.NAME], which inherits no variables"
            }
        }
    }
}
