//! What is kept of a key, over crashes.

mod alarms;
mod crash_laws;
mod holds;
mod policies;
mod replays;
mod reservations;
mod rows;
mod world;
