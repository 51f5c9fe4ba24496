//! The rights of an API token or a service binding, from settings.

use super::error::{Errors, SettingError, shown};
use super::key::{Key, MAX_KEY_LEN};
use super::scope::Scope;
use crate::json::{Fields, Json};

/// The rights of an API token or a service binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) scopes: Vec<Scope>,
    /// The only policies that requests may name, unless all.
    pub(super) policies: Option<Vec<String>>,
    /// Whether requests may have limits of their own.
    pub(super) may_inline: bool,
    /// The required start of keys in requests, which must be text, if any.
    pub(super) key_prefix: Option<String>,
}

/// The fields of settings for rights.
pub(super) const RIGHTS: [&str; 4] = ["scopes", "policies", "inline", "key_prefix"];

impl Default for Rights {
    fn default() -> Self {
        Self { scopes: DEFAULT_SCOPES.to_vec(), policies: None, may_inline: false, key_prefix: None }
    }
}

/// All that an application needs: an operator's scope must be given by name.
const DEFAULT_SCOPES: [Scope; 2] = [Scope::Consume, Scope::Adjust];

impl Rights {
    /// The rights of a service binding with this JSON as `props`; the defaults without any.
    ///
    /// # Errors
    /// All [`SettingError`]s.
    pub(super) fn of_binding(props: Option<&str>) -> Result<Self, Vec<SettingError>> {
        let Some(props) = props.filter(|props| !matches!(*props, "{}" | "null")) else { return Ok(Self::default()) };
        let (mut errors, known) = (Errors::default(), RIGHTS.join(", "));
        let rights = if let Ok(json) = Json::parse(props) {
            let fields = errors.fields_of(PROPS, json, &known, &RIGHTS);
            fields.and_then(|fields| Self::read(PROPS, &fields, Some(&DEFAULT_SCOPES), &mut errors))
        } else {
            errors.add(PROPS, &format!("must be an object of {known}"));
            None
        };
        rights.filter(|_| errors.0.is_empty()).ok_or(errors.0)
    }

    /// Parses the [`RIGHTS`] among `fields`. Without `scopes` they are the `default` ones, if any.
    pub(super) fn read(
        place: &str,
        fields: &Fields<'_>,
        default: Option<&[Scope]>,
        errors: &mut Errors,
    ) -> Option<Self> {
        let before = errors.0.len();
        let known = Scope::ALL.map(Scope::word).join(", ");
        let mut scopes = Vec::new();
        match (fields.get("scopes").map(texts), default) {
            (None, Some(default)) => scopes.extend_from_slice(default),
            (None | Some(None), _) => {
                errors.add(&format!("{place}.scopes"), &format!("must be a list of one or more of {known}"));
            }
            (Some(Some(words)), _) => {
                for word in words {
                    if let Some(scope) = Scope::from_word(&word) {
                        scopes.push(scope);
                    } else {
                        let problem = format!("there is no scope {}; there are {known}", shown(&word));
                        errors.add(&format!("{place}.scopes"), &problem);
                    }
                }
            }
        }
        let policies = fields.get("policies").map(texts);
        if policies == Some(None) {
            let problem = "must be a list of one or more names of policies; leave it out for all of them";
            errors.add(&format!("{place}.policies"), problem);
        }
        let may_inline = fields.get("inline").map_or(Some(false), Json::bool);
        if may_inline.is_none() {
            let problem = "must be true or false: whether requests may bring numbers of their own";
            errors.add(&format!("{place}.inline"), problem);
        }
        let key_prefix = key_prefix(place, fields, errors);
        if fields.get("key_prefix").is_some() && scopes.contains(&Scope::Admin) {
            let problem = "is for consume and adjust: admin is about all keys, so leave one of the two out";
            errors.add(&format!("{place}.key_prefix"), problem);
        }
        let may_inline = may_inline.filter(|_| errors.0.len() == before)?;
        Some(Self { scopes, policies: policies.flatten(), may_inline, key_prefix })
    }

    /// The rights of a service binding that only takes tokens, under this policy. Its `props` may have a `key_prefix`.
    ///
    /// # Errors
    /// All [`SettingError`]s.
    pub(super) fn of_limiter(policy: &str, props: &Fields<'_>) -> Result<Self, Vec<SettingError>> {
        let mut errors = Errors::default();
        let key_prefix = key_prefix(PROPS, props, &mut errors);
        let policies = Some(vec![policy.to_owned()]);
        let rights = Self { scopes: vec![Scope::Consume], policies, may_inline: false, key_prefix };
        if errors.0.is_empty() { Ok(rights) } else { Err(errors.0) }
    }

    /// Whether requests may name this key, if any.
    pub(super) fn have_key(&self, key: Option<&Key<'_>>) -> bool {
        match (&self.key_prefix, key) {
            (None, _) => true,
            (Some(prefix), Some(Key::Text(text))) => text.starts_with(prefix.as_str()),
            (Some(_), _) => false,
        }
    }
}

/// The required start of keys, if any.
fn key_prefix(place: &str, fields: &Fields<'_>, errors: &mut Errors) -> Option<String> {
    let prefix = fields.get("key_prefix")?.string().filter(|prefix| (1..=MAX_KEY_LEN).contains(&prefix.len()));
    if prefix.is_none() {
        let problem =
            format!("must be the beginning of text keys, 1 to {MAX_KEY_LEN} bytes; leave it out for all keys");
        errors.add(&format!("{place}.key_prefix"), &problem);
    }
    prefix.map(String::from)
}

/// A non-empty list of non-empty texts.
pub(super) fn texts(json: Json<'_>) -> Option<Vec<String>> {
    let texts: Option<Vec<_>> = json.array()?.into_iter().map(|item| item.string().map(String::from)).collect();
    texts.filter(|texts| !texts.is_empty() && texts.iter().all(|text| !text.is_empty()))
}

const PROPS: &str = "props";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(props: &str) -> Result<Rights, Vec<String>> {
        Rights::of_binding(Some(props)).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_binding_without_props_may_consume_and_adjust_and_nothing_else() {
        let scopes = vec![Scope::Consume, Scope::Adjust];
        let default = Rights { scopes, policies: None, may_inline: false, key_prefix: None };
        assert_eq!(Rights::of_binding(None), Ok(default.clone()));
        for none in ["{}", "null", " {} "] {
            assert_eq!(read(none), Ok(default.clone()), "{none}");
        }
    }

    #[test]
    fn each_prop_sets_its_right_and_leaves_the_others() {
        let default = Rights::default;
        for (props, expected) in [
            (r#"{"scopes":["consume"]}"#, Rights { scopes: vec![Scope::Consume], ..default() }),
            (r#"{"scopes":["admin","consume"]}"#, Rights { scopes: vec![Scope::Admin, Scope::Consume], ..default() }),
            (r#"{"policies":["api"]}"#, Rights { policies: Some(vec!["api".to_owned()]), ..default() }),
            (r#"{"inline":true}"#, Rights { may_inline: true, ..default() }),
            (r#"{"key_prefix":"acme:"}"#, Rights { key_prefix: Some("acme:".to_owned()), ..default() }),
        ] {
            assert_eq!(read(props), Ok(expected), "{props}");
        }
        let prefix = "k".repeat(MAX_KEY_LEN);
        assert_eq!(read(&format!(r#"{{"key_prefix":"{prefix}"}}"#)).unwrap().key_prefix, Some(prefix));
    }

    #[test]
    fn malformed_props_are_errors_and_never_more_rights() {
        let scopes = "props.scopes: must be a list of one or more of consume, adjust, admin";
        let policies = "props.policies: must be a list of one or more names of policies; leave it out for all of them";
        let inline = "props.inline: must be true or false: whether requests may bring numbers of their own";
        let prefix = "props.key_prefix: must be the beginning of text keys, 1 to 512 bytes; leave it out for all keys";
        let both = "props.key_prefix: is for consume and adjust: admin is about all keys, so leave one of the two out";
        let object = "props: must be an object of scopes, policies, inline, key_prefix";
        for (props, expected) in [
            ("", vec![object]),
            ("[]", vec![object]),
            ("true", vec![object]),
            (r#""admin""#, vec![object]),
            (
                r#"{"scope":["admin"]}"#,
                vec!["props: scope is not a field of it; its fields are scopes, policies, inline, key_prefix"],
            ),
            (
                r#"{"sha256":""}"#,
                vec!["props: sha256 is not a field of it; its fields are scopes, policies, inline, key_prefix"],
            ),
            (r#"{"scopes":["consume"],"scopes":["admin"]}"#, vec!["props: gives scopes twice"]),
            (r#"{"scopes":[]}"#, vec![scopes]),
            (r#"{"scopes":"consume"}"#, vec![scopes]),
            (r#"{"scopes":null}"#, vec![scopes]),
            (
                r#"{"scopes":["Admin"]}"#,
                vec!["props.scopes: there is no scope Admin; there are consume, adjust, admin"],
            ),
            (r#"{"policies":[]}"#, vec![policies]),
            (r#"{"policies":null}"#, vec![policies]),
            (r#"{"policies":"api"}"#, vec![policies]),
            (r#"{"inline":1}"#, vec![inline]),
            (r#"{"inline":null}"#, vec![inline]),
            (r#"{"key_prefix":""}"#, vec![prefix]),
            (r#"{"key_prefix":null}"#, vec![prefix]),
            (r#"{"key_prefix":["acme"]}"#, vec![prefix]),
            (r#"{"key_prefix":"a","scopes":["admin"]}"#, vec![both]),
            (r#"{"scopes":[1],"policies":[],"inline":0,"key_prefix":0}"#, vec![scopes, policies, inline, prefix]),
        ] {
            assert_eq!(read(props), Err(expected.into_iter().map(str::to_owned).collect()), "{props}");
        }
        let long = format!(r#"{{"key_prefix":"{}"}}"#, "k".repeat(MAX_KEY_LEN + 1));
        assert_eq!(read(&long), Err(vec![prefix.to_owned()]));
    }

    #[test]
    fn a_prefix_matches_text_keys_byte_for_byte() {
        let rights = read(r#"{"key_prefix":"acme:"}"#).unwrap();
        let text = |text: &'static str| Key::Text(text.into());
        for key in ["acme:", "acme:alice", "acme:\u{301}"] {
            assert!(rights.have_key(Some(&text(key))), "{key}");
        }
        let list = Key::List(vec!["acme:".into()]);
        for key in [text(""), text("acme"), text("Acme:alice"), text(" acme:"), text("other:acme:"), list] {
            assert!(!rights.have_key(Some(&key)), "{key:?}");
        }
        assert!(!rights.have_key(Some(&Key::Ip("192.0.2.1".parse().unwrap()))));
        assert!(!rights.have_key(None), "a budget of all keys is not one of these");
        assert!(Rights::default().have_key(None));
    }
}
