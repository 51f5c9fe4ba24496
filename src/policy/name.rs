//! Valid names of policies and limits.

/// Whether it is a valid name of a policy or a limit.
pub(super) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_LEN && name.chars().all(is_allowed) && !is_path_step(name)
}

/// Why `name` is invalid.
pub(super) fn name_rule(name: &str) -> String {
    if is_path_step(name) {
        return format!("a name must not be {name:?}: in a URL it would be a step of the path");
    }
    format!("a name must be 1 to {MAX_NAME_LEN} ASCII letters, digits, '_', '-' or '.'")
}

/// Names that clients resolve away in paths, so that the policy would have no URL.
fn is_path_step(name: &str) -> bool {
    matches!(name, "." | "..")
}

/// Maximum length of a policy's or limit's name: names go into headers and logs.
const MAX_NAME_LEN: usize = 64;
