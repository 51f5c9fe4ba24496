//! Parses one table of fields and reports every error in it.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::calendar;
use super::error::PolicyError;
use super::mode::Mode;
use super::name::{is_name, name_rule};
use super::named_limit::{NamedLimit, SLOTS, slots_account};
use super::rate::{Burst, Rate};
use super::shard::{self, MAX_SHARDS};
use super::shown::{shortened, shown_name, shown_value};
use crate::json::{Fields, FieldsError, Json};
use crate::length::{self, LengthError};
use crate::limit::{Carry, Config, ConfigError, DEFAULT_GRAINS, Kind, Limit, MAX_GRAINS, MAX_TOKENS};

/// Maximum limits of one policy. Each is decided and answered with every request; in practice four is the most.
pub const MAX_LIMITS: usize = 8;

/// Parses the fields of one table and collects all errors.
pub(super) struct Reader<'a> {
    pub(super) place: String,
    pub(super) fields: &'a Fields<'a>,
    pub(super) errors: &'a mut Vec<PolicyError>,
}

impl Reader<'_> {
    /// The limits of a list, each with its mode, by default `mode`.
    pub(super) fn limits(&mut self, policy: &str, mode: Mode) -> Vec<(Mode, NamedLimit)> {
        let place = format!("{}.limits", self.place);
        let list = self.fields.get("limits").and_then(Json::array).unwrap_or_default();
        if list.is_empty() || list.len() > MAX_LIMITS {
            self.error("limits", format!("must be a list of 1 to {MAX_LIMITS} limits"));
            return Vec::new();
        }
        let mut names = Vec::new();
        let mut limits = Vec::new();
        for (index, value) in list.into_iter().enumerate() {
            let place = format!("{place}[{index}]");
            let Some(fields) = table(&place, value, "fields such as name, rate and period", self.errors) else {
                continue;
            };
            let mut error = |problem: String| self.errors.push(PolicyError { place: place.clone(), problem });
            match fields.get("name").and_then(Json::string) {
                Some(name) if !is_name(&name) => error(format!("name: {}", name_rule(&name))),
                Some(name) if names.contains(&name) => error(format!("a limit before it is named {name} too")),
                Some(name) => {
                    let mut reader = Reader { place, fields: &fields, errors: self.errors };
                    reader.only(&[&["name"], &LIMIT_FIELDS[..], &["mode"]].concat());
                    let mode = reader.mode().unwrap_or(mode);
                    limits.extend(reader.limit(policy, Some(&name), mode).map(|limit| (mode, limit)));
                    names.push(name);
                }
                None => error("must have a name: costs and answers refer to a limit by its name".to_owned()),
            }
        }
        limits
    }

    pub(super) fn limit(&mut self, policy: &str, name: Option<&str>, mode: Mode) -> Option<NamedLimit> {
        let before = self.errors.len();
        let is_slots = self.fields.get("kind").and_then(Json::string).is_some_and(|kind| kind == SLOTS);
        let is_soft = mode == Mode::Soft;
        let config = if is_slots { self.slots() } else { self.config(is_soft) };
        if is_slots && is_soft {
            self.error(self.field_of_mode(), "slots cannot be soft: a reservation has a slot or has none".to_owned());
        }
        let grains = self.grains(config.kind);
        let write_ahead = self.tokens("write_ahead").filter(|_| !is_slots);
        if self.errors.len() > before {
            return None;
        }
        let capacity = config.capacity;
        if let Some(tokens) = write_ahead.filter(|&tokens| tokens > capacity) {
            // Otherwise a crash would cost a key more than it can ever have, and leave it in debt.
            self.error("write_ahead", format!("{tokens} tokens are more than the capacity: at most {capacity}"));
        }
        let limit = Limit::of_any_kind(&config);
        if let Err(error) = &limit {
            let field = field_of(error);
            self.error(if field == "mode" { self.field_of_mode() } else { field }, error.to_string());
        }
        let write_ahead = write_ahead.unwrap_or_else(|| default_write_ahead(&config));
        let slots = is_slots.then(|| slots_account(name));
        let account = slots.as_deref().or(name);
        let limit = limit.ok().filter(|_| self.errors.len() == before)?;
        Some(NamedLimit::new(policy, account, limit, write_ahead).with_grains(grains))
    }

    /// The field that says of this kind that it is soft: the policy's mode counts for limits without one.
    fn field_of_mode(&self) -> &'static str {
        if self.fields.get("mode").is_some() { "mode" } else { "kind" }
    }

    /// A bucket of slots: nothing comes back by itself.
    fn slots(&mut self) -> Config {
        for field in LIMIT_FIELDS.into_iter().filter(|field| !["kind", "capacity"].contains(field)) {
            if self.fields.get(field).is_some() {
                let problem =
                    "is not for `kind = \"slots\"`, whose only number is `capacity`: how many may be taken at once";
                self.error(field, problem.to_owned());
            }
        }
        if self.fields.get("capacity").is_none() {
            self.error("capacity", "is missing: how many slots may be taken at once".to_owned());
        }
        let capacity = self.tokens("capacity").unwrap_or_default();
        Config { capacity, ..Config::token_bucket(0, SLOTS_PERIOD) }
    }

    fn config(&mut self, is_soft: bool) -> Config {
        let opens_when_used = self.fields.get("offset").and_then(Json::string).is_some_and(|text| text == FIRST_USE);
        let rolling = Kind::RollingWindow;
        let others = [("fixed_window", Kind::FixedWindow), (rolling.word(), rolling), (SLOTS, Kind::TokenBucket)];
        let kind = self.choice("kind", ("token_bucket", Kind::TokenBucket), &others);
        let kind = match kind {
            Kind::TokenBucket if opens_when_used && self.fields.get("calendar").is_none() => {
                self.error("offset", format!("\"{FIRST_USE}\" is for `kind = \"fixed_window\"`"));
                kind
            }
            Kind::FixedWindow if opens_when_used => Kind::FirstUseWindow,
            _ => kind,
        };
        let written = self.rate();
        let (tokens, parts) = written.tokens;
        let is_rolling = kind == Kind::RollingWindow;
        if is_rolling {
            self.only_rate_of_rolling(&written);
        }
        if kind != Kind::TokenBucket && parts > 1 {
            let why = if is_rolling { "" } else { ": a window that opens adds whole tokens" };
            self.error("rate", format!("must be whole{why}"));
        }
        let calendar = if is_rolling {
            None
        } else {
            calendar::read(self.fields, kind, |field, problem| self.error(field, problem))
        };
        let follows_calendar = !is_rolling && self.fields.get("calendar").is_some();
        if follows_calendar && written.period.is_some() {
            self.error(
                "rate",
                "includes a period, which `calendar` sets: write only the number of tokens, such as 5".to_owned(),
            );
        }
        let period_ms = match &written.period {
            _ if follows_calendar => calendar.map(|calendar| calendar.longest_ms()),
            Some(period) => self.length("rate", period),
            // A malformed rate may already include the period.
            None if self.fields.get("rate").and_then(Json::string).is_some() => self.millis("period"),
            None => self.required_millis("period"),
        };
        let capacity = match &written.burst {
            _ if is_rolling => None, // the rate
            Some(Burst::Tokens(tokens)) => Some(*tokens),
            Some(Burst::Time(_)) if follows_calendar => None,
            Some(Burst::Time(length)) => period_ms.and_then(|period_ms| self.burst(length, &written, period_ms)),
            None => self.tokens("capacity"),
        };
        let capacity = capacity.unwrap_or_else(|| written.rounded_up());
        let (max_debt, initial) =
            if is_rolling { (Some(0), None) } else { (self.max_debt(is_soft), self.tokens("initial")) };
        // A fraction of a token per period equals whole tokens per a multiple of it.
        let period_ms = period_ms.unwrap_or_default().saturating_mul(parts);
        let offset_ms = if opens_when_used || follows_calendar || is_rolling { None } else { self.millis("offset") };
        let config =
            Config { kind, rate: tokens, period_ms, capacity, initial, max_debt: 0, offset_ms, calendar, is_soft };
        Config { max_debt: max_debt.unwrap_or_else(|| Limit::largest_debt(&config)), ..config }
    }

    /// A rolling window has no other numbers: it never grants more than its rate, and nothing ahead of time.
    fn only_rate_of_rolling(&mut self, written: &Rate) {
        for field in ["capacity", "max_debt", "initial", "offset", "calendar", "starts", "zone"] {
            if self.fields.get(field).is_some() {
                let problem =
                    "is not for `kind = \"rolling_window\"`, which never grants more than its `rate` in any `period`";
                self.error(field, problem.to_owned());
            }
        }
        if written.burst.is_some() && self.fields.get("capacity").is_none() {
            let problem = "includes a burst, which a rolling window does not have: it never grants more than its rate in any period";
            self.error("rate", problem.to_owned());
        }
    }

    fn grains(&mut self, kind: Kind) -> u8 {
        if kind != Kind::RollingWindow && self.fields.get("grains").is_some() {
            self.error("grains", "is for `kind = \"rolling_window\"`".to_owned());
        }
        self.small("grains", "grains", 1..=MAX_GRAINS).unwrap_or(DEFAULT_GRAINS)
    }

    /// The refill in a length of time.
    fn burst(&mut self, text: &str, rate: &Rate, period_ms: u64) -> Option<u64> {
        let length_ms = self.length("rate", text)?;
        let (tokens, parts) = rate.tokens;
        let in_time = u128::from(tokens).saturating_mul(length_ms.into());
        // A period of zero has an error of its own.
        let period = u128::from(period_ms).saturating_mul(parts.into()).max(1);
        let (whole, rest) = (in_time.checked_div(period)?, in_time.checked_rem(period)?);
        let shown = shortened(format!("{text:?}"));
        let problem = match u64::try_from(whole) {
            _ if tokens == 0 => {
                format!(
                    "a rate of 0 adds nothing in a burst of {shown}: give the burst in tokens, such as \"burst 50\""
                )
            }
            Ok(whole) if whole <= MAX_TOKENS && rest == 0 => return Some(whole),
            Ok(whole) if whole < MAX_TOKENS => {
                let next = whole.saturating_add(1);
                format!(
                    "a burst of {shown} is not a whole number of tokens: write \"burst {whole}\" or \"burst {next}\""
                )
            }
            _ => format!("a burst of {shown} is too many tokens: at most {MAX_TOKENS}"),
        };
        self.error("rate", problem);
        None
    }

    /// `None` for the largest exact debt, which a soft limit has.
    fn max_debt(&mut self, is_soft: bool) -> Option<u64> {
        let Some(value) = self.fields.get("max_debt") else { return (!is_soft).then_some(0) };
        if is_soft {
            self.error("max_debt", "is not for soft limits, which count as far below zero as is exact".to_owned());
            return None;
        }
        if value.string().is_some_and(|word| word == UNLIMITED) {
            return None;
        }
        let tokens = value.integer().filter(|&tokens| tokens <= MAX_TOKENS);
        if tokens.is_none() {
            let rule = format!("must be a whole number from 0 to {MAX_TOKENS}, or \"{UNLIMITED}\"");
            self.error("max_debt", format!("{rule}, not {}", shown_value(value)));
        }
        Some(tokens.unwrap_or(0))
    }

    pub(super) fn only(&mut self, known: &[&str]) {
        for field in self.fields.names().filter(|field| !known.contains(field)) {
            self.error(&shown_name(field), format!("is not a known field; known fields are {}", known.join(", ")));
        }
    }

    /// One of the named values; `first` if the field is absent.
    pub(super) fn choice<T: Copy>(&mut self, field: &str, first: (&str, T), others: &[(&str, T)]) -> T {
        let Some(value) = self.fields.get(field) else { return first.1 };
        let mut choices = [&[first], others].concat().into_iter();
        let word = value.string();
        if let Some((_, chosen)) = choices.clone().find(|(choice, _)| word.as_deref() == Some(choice)) {
            return chosen;
        }
        let last = choices.next_back().map_or("", |(word, _)| word);
        let before: Vec<_> = choices.map(|(word, _)| format!("\"{word}\"")).collect();
        self.error(field, format!("must be {} or \"{last}\"", before.join(", ")));
        first.1
    }

    /// `None` if the field is absent or invalid.
    pub(super) fn mode(&mut self) -> Option<Mode> {
        let value = self.fields.get("mode")?;
        let mode = value.string().and_then(|word| Mode::of(&word));
        if mode.is_none() {
            let [first, second, third, last] = Mode::ALL.map(Mode::word);
            let shown = shown_value(value);
            let rule = format!("must be \"{first}\", \"{second}\", \"{third}\" or \"{last}\"");
            self.error("mode", format!("{rule}, not {shown}"));
        }
        mode
    }

    /// True or false; false if the field is absent.
    pub(super) fn flag(&mut self, field: &str) -> bool {
        let Some(value) = self.fields.get(field) else { return false };
        value.bool().unwrap_or_else(|| {
            self.error(field, format!("must be true or false, not {}", shown_value(value)));
            false
        })
    }

    fn rate(&mut self) -> Rate {
        let Some(value) = self.fields.get("rate") else {
            self.error("rate", "is missing".to_owned());
            return Rate::default();
        };
        let Some(rate) = Rate::of(value) else {
            let examples = "such as 100 or 2.5, or text such as \"100/1m\" or \"20/s burst 40\"";
            let shown = shown_value(value);
            self.error("rate", format!("must be a number from 0 to {MAX_TOKENS} {examples}, not {shown}"));
            return Rate::default();
        };
        for (field, is_given) in [("period", rate.period.is_some()), ("capacity", rate.burst.is_some())] {
            if is_given && self.fields.get(field).is_some() {
                self.error(field, "is given in `rate` already".to_owned());
            }
        }
        rate
    }

    pub(super) fn tokens(&mut self, field: &str) -> Option<u64> {
        let value = self.fields.get(field)?;
        let tokens = value.integer().filter(|&tokens| tokens <= MAX_TOKENS);
        if tokens.is_none() {
            self.error(field, format!("must be a whole number from 0 to {MAX_TOKENS}, not {}", shown_value(value)));
        }
        tokens
    }

    pub(super) fn millis(&mut self, field: &str) -> Option<u64> {
        let value = self.fields.get(field)?;
        let Some(text) = value.string() else {
            self.error(field, format!("must be text with a unit, such as \"90s\", not {}", shown_value(value)));
            return None;
        };
        self.length(field, &text)
    }

    fn required_millis(&mut self, field: &str) -> Option<u64> {
        if self.fields.get(field).is_none() {
            self.error(field, "is missing".to_owned());
        }
        self.millis(field)
    }

    /// A length of time in milliseconds.
    fn length(&mut self, field: &str, text: &str) -> Option<u64> {
        let shown = shortened(format!("{text:?}"));
        let millis = length::millis_of(text);
        if let Err(error) = millis {
            let calendar = match error {
                LengthError::Months if ["period", "rate"].contains(&field) => {
                    ", or `kind = \"fixed_window\"` with `calendar = \"month\"`"
                }
                LengthError::Years if ["period", "rate"].contains(&field) => {
                    ", or `kind = \"fixed_window\"` with `calendar = \"year\"`"
                }
                _ => "",
            };
            self.error(field, error.about(&shown) + calendar);
        }
        millis.ok()
    }

    /// A whole number of `unit` in this range.
    pub(super) fn small(&mut self, field: &str, unit: &str, range: RangeInclusive<u8>) -> Option<u8> {
        let value = self.fields.get(field)?;
        let number =
            value.integer().and_then(|number| u8::try_from(number).ok()).filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = range.into_inner();
            let problem =
                format!("must be a whole number of {unit} from {least} to {most}, not {}", shown_value(value));
            self.error(field, problem);
        }
        number
    }

    /// A lease would open a window before its tokens are used, and take slots without a reservation. Of a rolling window, it would not be
    /// known when each of its tokens was used. A soft limit at zero has nothing to set aside, and grants all the same.
    pub(super) fn require_leasable(&mut self, limits: &[(Mode, NamedLimit)]) {
        for (_, limit) in limits {
            let has = match limit.limit().config().kind {
                _ if limit.is_slots() => "limits slots",
                _ if limit.limit().is_soft() => "is soft",
                Kind::FirstUseWindow => "has windows from first use",
                Kind::RollingWindow => "is a rolling window",
                Kind::TokenBucket | Kind::FixedWindow => continue,
            };
            self.error("lease", format!("{} {has}, of which nothing can be leased", limit.full_name()));
        }
    }

    /// How many shards there are, if a policy of these limits can have them. The fields in `whole`, if they are there, need one object.
    pub(super) fn shards(&mut self, limits: &[(Mode, NamedLimit)], whole: &[(&str, bool)], carry: Option<Carry>) -> u8 {
        let Some(shards) = self.small("shards", "shards", 1..=MAX_SHARDS).filter(|shards| *shards > 1) else {
            return 1;
        };
        let mut errors = Vec::new();
        for (mode, limit) in limits {
            let name = limit.full_name();
            if limit.is_slots() {
                errors.push(format!("{name} limits slots, which cannot be divided"));
            } else if let Err(problem) = shard::check(limit.limit(), shards) {
                errors.push(format!("{name} {problem}"));
            }
            if *mode == Mode::Shadow {
                errors.push(format!("{name} is in shadow; limits in shadow cannot be divided"));
            }
        }
        for (field, is_there) in whole {
            if *is_there {
                errors.push(format!("a policy with shards cannot have `{field}`"));
            }
        }
        if let Some(carry @ (Carry::Additive | Carry::Proportional)) = carry {
            errors.push(format!("a policy with shards cannot have `carry = \"{}\"`", carry.word()));
        }
        for problem in errors {
            self.error("shards", problem);
        }
        shards
    }

    pub(super) fn error(&mut self, field: &str, problem: String) {
        self.errors.push(PolicyError { place: format!("{}.{field}", self.place), problem });
    }
}

/// The fields of a table of `what`, or `None` after adding an error.
pub(super) fn table<'a>(place: &str, value: Json<'a>, what: &str, errors: &mut Vec<PolicyError>) -> Option<Fields<'a>> {
    let problem = match value.fields() {
        Ok(fields) => return Some(fields),
        Err(FieldsError::NotAnObject) => format!("must be a table of {what}, not {}", shown_value(value)),
        Err(FieldsError::InvalidName) => "has a name with an unpaired surrogate".to_owned(),
        Err(FieldsError::Duplicate(name)) => format!("gives {} twice", shown_name(&name)),
    };
    errors.push(PolicyError { place: place.to_owned(), problem });
    None
}

/// The field that an error is about, as written.
const fn field_of(error: &ConfigError) -> &'static str {
    match error {
        ConfigError::RateTooLarge { .. } | ConfigError::RateZero => "rate",
        ConfigError::PeriodZero | ConfigError::PeriodTooLong { .. } => "period",
        ConfigError::CapacityTooLarge { .. } => "capacity",
        ConfigError::MaxDebtTooLarge { .. } => "max_debt",
        ConfigError::InitialTooLarge { .. } | ConfigError::InitialBeforeFirstUse => "initial",
        ConfigError::OffsetWithoutWindows | ConfigError::OffsetBesideCalendar => "offset",
        ConfigError::CalendarWithoutWindows => "calendar",
        ConfigError::WarmUpTooLong { .. } => "warm_up", // policies have none
        ConfigError::NeedsMoments => "kind",
        ConfigError::SoftRollingWindow => "mode",
        ConfigError::GrainsOutOfRange { .. } => "grains",
    }
}

pub(super) const LIMIT_FIELDS: [&str; 12] = [
    "kind",
    "rate",
    "period",
    "calendar",
    "starts",
    "zone",
    "capacity",
    "max_debt",
    "initial",
    "offset",
    "grains",
    "write_ahead",
];

/// The kind and the offset with which a policy has windows of this kind.
pub(crate) const fn written(kind: Kind) -> (&'static str, Option<&'static str>) {
    match kind {
        Kind::TokenBucket => ("token_bucket", None),
        Kind::FixedWindow => ("fixed_window", None),
        Kind::FirstUseWindow => ("fixed_window", Some(FIRST_USE)),
        Kind::RollingWindow => ("rolling_window", None),
    }
}

/// The period of slots. None comes back in it.
const SLOTS_PERIOD: Duration = Duration::from_millis(1);

/// The `offset` of windows that open when a full bucket is used.
const FIRST_USE: &str = "first_use";

/// The largest exact `max_debt`.
const UNLIMITED: &str = "unlimited";

/// A twentieth of the burst, or a second's refill if that is more. A crash that costs a key this little goes unnoticed, and a busy key
/// writes only once per block.
pub(crate) fn default_write_ahead(config: &Config) -> u64 {
    let Config { rate, period_ms, capacity, .. } = *config;
    let in_a_second = u128::from(rate).saturating_mul(1_000).checked_div(period_ms.into()).unwrap_or(0);
    match rate {
        0 => 0, // lost tokens would never be refilled
        _ => u64::try_from(in_a_second).unwrap_or(capacity).max(capacity / 20).min(capacity),
    }
}
