//! A listener's filter for decisions.

use super::super::words::{Outcome, Word};

/// A listener's filter for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveFilter {
    /// Only of these policies; `None` for all.
    pub policies: Option<Vec<String>>,
    /// Only with these outcomes; `None` for all.
    pub outcomes: Option<Vec<Outcome>>,
}

impl LiveFilter {
    /// Whether a decision passes.
    #[must_use]
    pub fn passes(&self, policy: &str, outcome: Outcome) -> bool {
        self.outcomes.as_ref().is_none_or(|outcomes| outcomes.contains(&outcome))
            && self.policies.as_ref().is_none_or(|policies| policies.iter().any(|name| name == policy))
    }

    /// Parses a list of outcomes such as `refused,never`.
    ///
    /// # Errors
    /// The word that is not an outcome.
    pub fn outcomes(list: &str) -> Result<Vec<Outcome>, &str> {
        let mut outcomes = Vec::new();
        for word in list.split(',').map(str::trim) {
            outcomes.push(Outcome::from_word(word).ok_or(word)?);
        }
        Ok(Outcome::ALL.iter().copied().filter(|outcome| outcomes.contains(outcome)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Allowed, Banned, Refused};

    #[test]
    fn both_the_policy_and_the_outcome_must_pass() {
        let filter = |policies: Option<&[&str]>, outcomes: Option<&[Outcome]>| LiveFilter {
            policies: policies.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
            outcomes: outcomes.map(<[_]>::to_vec),
        };
        for (filter, passes) in [
            (filter(None, None), [true, true, true]),
            (filter(Some(&["api"]), None), [true, true, false]),
            (filter(None, Some(&[Refused, Banned])), [false, true, true]),
            (filter(Some(&["api", "llm"]), Some(&[Refused])), [false, true, true]),
            (filter(Some(&[]), None), [false; 3]),
        ] {
            let found = [("api", Allowed), ("api", Refused), ("llm", Refused)];
            assert_eq!(found.map(|(policy, outcome)| filter.passes(policy, outcome)), passes, "{filter:?}");
        }
    }

    #[test]
    fn a_list_of_outcomes_is_normalized_to_one_order() {
        assert_eq!(LiveFilter::outcomes("banned, refused,banned"), Ok(vec![Refused, Banned]));
        for (list, word) in [("", ""), ("refused,", ""), ("denied", "denied"), ("refused banned", "refused banned")] {
            assert_eq!(LiveFilter::outcomes(list), Err(word));
        }
    }
}
