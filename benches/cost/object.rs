//! An object as Cloudflare runs it: woken by calls and alarms, kept awake by timers, evicted when idle.

use std::mem;
use std::rc::Rc;

use tollgate::edge::ObjectCall;
use tollgate::frontend::Call;
use tollgate::ledger::Writes;
use tollgate::protocol::Rows;

use crate::bill::Usage;
use crate::disk::Disk;
use crate::frontend::decide;
use crate::key::Key;

/// How long an idle object stays in memory. This is not billed.
const IDLE_MS: i64 = 10_000;

/// How long a call takes, and one whose answer waits for a row: time is billed, not work. These are assumptions, the same for all
/// designs.
const CALL_MS: i64 = 1;
const WRITE_MS: i64 = 10;

/// Until when an object is billed and in memory.
#[derive(Debug)]
pub(crate) struct Presence {
    billed_until: i64,
    in_memory_until: i64,
}

impl Presence {
    pub(crate) const fn new() -> Self {
        Self { billed_until: i64::MIN, in_memory_until: i64::MIN }
    }

    pub(crate) const fn is_in_memory(&self, now: i64) -> bool {
        now < self.in_memory_until
    }

    /// An event at `now`, which may wait for a row or set a timer.
    pub(crate) fn happens(&mut self, now: i64, waits_for_row: bool, timer_at: Option<i64>, usage: &mut Usage) {
        let end = now + if waits_for_row { WRITE_MS } else { CALL_MS };
        let end = timer_at.map_or(end, |at| end.max(at));
        usage.awake_ms += u64::try_from(end - now.max(self.billed_until)).unwrap_or(0);
        self.billed_until = self.billed_until.max(end);
        self.in_memory_until = self.billed_until + IDLE_MS;
    }
}

/// The object of a key: the real service, and the duties of `src/worker/key_object.mjs`.
pub(crate) struct KeyObject {
    policies: Rc<str>,
    key: Key,
    presence: Presence,
    timer_at: Option<i64>,
    /// The number of the latest call, which is random enough for an id.
    ids: u64,
}

impl KeyObject {
    /// The object of a deployment with these policies.
    pub(crate) fn new(policies: &Rc<str>) -> Self {
        let key = Key::new(policies, Disk::default(), 0);
        Self { policies: Rc::clone(policies), key, presence: Presence::new(), timer_at: None, ids: 0 }
    }

    pub(crate) fn decide(&mut self, call: &mut Call, next: &ObjectCall, now: i64, usage: &mut Usage) {
        self.pass(now, usage);
        usage.calls += 1;
        self.ids += 1;
        self.wake(now);
        let rows = decide(call, next, &mut self.key, now, self.ids);
        self.count(rows, now, usage);
    }

    /// Timers and alarms up to `now`.
    pub(crate) fn pass(&mut self, now: i64, usage: &mut Usage) {
        loop {
            let timer = self.timer_at.filter(|&at| at <= now);
            let alarm = self.alarm_at().filter(|&at| at <= now);
            let at = match (timer, alarm) {
                (Some(at), alarm) if alarm.is_none_or(|alarm| at <= alarm) => {
                    self.timer_at = None;
                    self.key.service.kept().flush_idle(at).expect("the storage does not fail");
                    at
                }
                (_, Some(at)) => {
                    self.wake(at);
                    self.key.disk.get_mut().alarm_at = None;
                    usage.alarms += 1;
                    self.key.service.kept().clean(at).expect("the storage does not fail");
                    at
                }
                _ => return,
            };
            let rows = self.key.service.kept().take_rows();
            self.count(rows, at, usage);
        }
    }

    pub(crate) fn alarm_at(&self) -> Option<i64> {
        self.key.disk.get().alarm_at
    }

    fn wake(&mut self, now: i64) {
        if !self.presence.is_in_memory(now) {
            self.key = Key::new(&self.policies, self.key.disk.clone(), 0);
        }
    }

    /// The cost of a step at `now`. Its rows arrive at once.
    fn count(&mut self, Rows { read, written }: Rows, now: i64, usage: &mut Usage) {
        self.key.arrive(usize::MAX);
        let mut state = self.key.disk.get_mut();
        usage.rows_read += read;
        usage.rows_written += written + mem::take(&mut state.cleared) as u64;
        if mem::take(&mut state.timers) > 0 {
            self.timer_at = Some(now + i64::try_from(Writes::IDLE_MS).expect("a short time"));
        }
        self.presence.happens(now, mem::take(&mut state.waits) > 0, self.timer_at, usage);
    }
}
