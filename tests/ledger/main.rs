//! The state of a key, over crashes.

mod alarms;
mod ban_model;
mod bans;
mod calendar_pairs;
mod calendars;
#[path = "../chance/mod.rs"]
mod chance;
mod covers;
mod crash_laws;
mod disk;
mod extend;
mod first_use;
mod holds;
mod inline;
mod inspect;
mod kept;
mod late;
mod late_budgets;
mod late_carries;
mod late_pairs;
mod leases;
mod model;
mod notices;
#[path = "../oracle/mod.rs"]
mod oracle;
mod overrides;
#[path = "../pairs/mod.rs"]
mod pairs;
mod plans;
mod policies;
mod quotas;
mod replays;
mod reservations;
mod rolling;
#[path = "../oracle/rolling.rs"]
mod rolling_oracle;
mod rolling_pairs;
mod rows;
mod shadow;
mod slots;
mod soft;
mod steps;
mod timelines;
mod world;
