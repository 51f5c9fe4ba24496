//! What a policy asks of the registry: no object knows of it, and no frontend acts by it.
//!
//! A field of these terms is here alone: its meaning, how it is read, and how a change of it is described.

use super::reader::Reader;
use super::shown::shown_value;
use crate::limit::Carry;

/// What a policy asks of the registry.
///
/// | field | meaning | default |
/// |---|---|---|
/// | `fixed` | `true`: operators cannot change it in the registry; only a deployment can | `false` |
/// | `carry` | how the tokens of a key come over when this policy takes the place of another, unless the change says otherwise: `"additive"`, `"as_is"` or `"proportional"` | `"additive"`; with shards `"as_is"` |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryTerms {
    /// Whether only a deployment can change it.
    pub is_fixed: bool,
    /// How tokens come over to it.
    pub carry: Option<Carry>,
}

impl RegistryTerms {
    /// Their fields.
    pub(super) const FIELDS: [&str; 2] = ["fixed", "carry"];

    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self { is_fixed: reader.flag("fixed"), carry: carry(reader) }
    }

    /// What changes when these take the place of `before`, line by line.
    pub(super) fn describe_change(self, before: Self, lines: &mut Vec<String>) {
        if before.carry != self.carry {
            let [new, old] = [self.carry, before.carry].map(|carry| carry.map_or("the default", Carry::word));
            lines.push(format!("carry: {new} instead of {old}, from this change on"));
        }
    }
}

/// `reset` is no choice: a word that is meant for one change would stay for the next.
fn carry(reader: &mut Reader<'_>) -> Option<Carry> {
    let value = reader.fields.get("carry")?;
    let carry = value.string().and_then(|word| Carry::from_word(&word)).filter(|carry| *carry != Carry::Reset);
    if carry.is_none() {
        let rule = "must be \"additive\", \"as_is\" or \"proportional\"";
        reader.error("carry", format!("{rule}, not {}", shown_value(value)));
    }
    carry
}
