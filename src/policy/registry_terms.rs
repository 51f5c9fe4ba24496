//! A policy's terms for the registry: unknown to objects, and ignored by frontends.
//!
//! Everything about a field is here: its meaning, how it is parsed, and how a change of it is described.

use super::reader::Reader;
use super::shown::shown_value;
use crate::limit::Carry;

/// A policy's terms for the registry.
///
/// | field | meaning | default |
/// |---|---|---|
/// | `fixed` | `true`: operators cannot change it in the registry; only a deployment can | `false` |
/// | `carry` | how a key's tokens are carried over when this policy replaces another, by default: `"additive"`, `"as_is"` or `"proportional"` | `"additive"`; with shards `"as_is"` |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistryTerms {
    /// Whether only a deployment can change it.
    pub is_fixed: bool,
    /// How tokens are carried over to it, unless the change says otherwise; `None` for the default.
    pub carry: Option<Carry>,
}

impl RegistryTerms {
    /// The names of their fields.
    pub(super) const FIELDS: [&str; 2] = ["fixed", "carry"];

    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self { is_fixed: reader.flag("fixed"), carry: carry(reader) }
    }

    /// The changes when these replace `before`, one line each.
    pub(super) fn describe_change(self, before: Self, lines: &mut Vec<String>) {
        if before.carry != self.carry {
            let [new, old] = [self.carry, before.carry].map(|carry| carry.map_or("the default", Carry::word));
            lines.push(format!("carry: {new} instead of {old}, from this change on"));
        }
    }
}

/// `reset` is not allowed: meant for one change, it would apply to the next ones, too.
fn carry(reader: &mut Reader<'_>) -> Option<Carry> {
    let value = reader.fields.get("carry")?;
    let carry = value.string().and_then(|word| Carry::from_word(&word)).filter(|carry| *carry != Carry::Reset);
    if carry.is_none() {
        let rule = "must be \"additive\", \"as_is\" or \"proportional\"";
        reader.error("carry", format!("{rule}, not {}", shown_value(value)));
    }
    carry
}
