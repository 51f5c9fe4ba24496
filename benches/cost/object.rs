//! An object as Cloudflare runs it: woken by calls and alarms, kept awake by timers, evicted when nothing is going on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::ledger::{Ledger, Writes};
use tollgate::policy::Policy;
use tollgate::protocol::{ObjectReply, ObjectRequest};

use crate::bill::Usage;

/// How long an object that has nothing to do stays in memory. It is not billed for that.
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

    /// Something happens at `now`, which may wait for a row, or set a timer.
    pub(crate) fn happens(&mut self, now: i64, waits_for_row: bool, timer_at: Option<i64>, usage: &mut Usage) {
        let end = now + if waits_for_row { WRITE_MS } else { CALL_MS };
        let end = timer_at.map_or(end, |at| end.max(at));
        usage.awake_ms += u64::try_from(end - now.max(self.billed_until)).unwrap_or(0);
        self.billed_until = self.billed_until.max(end);
        self.in_memory_until = self.billed_until + IDLE_MS;
    }
}

/// The object of a key: the real ledger, and what `src/worker/key_object.mjs` does for it.
pub(crate) struct KeyObject {
    ledger: Option<Ledger>,
    rows: BTreeMap<String, Vec<u8>>,
    presence: Presence,
    alarm_at: Option<i64>,
    timer_at: Option<i64>,
    /// The number of the latest call, which is random enough for an id.
    ids: u64,
}

impl KeyObject {
    pub(crate) const fn new() -> Self {
        let presence = Presence::new();
        Self { ledger: None, rows: BTreeMap::new(), presence, alarm_at: None, timer_at: None, ids: 0 }
    }

    pub(crate) fn ask(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        usage: &mut Usage,
    ) -> ObjectReply {
        self.pass(now, usage);
        usage.calls += 1;
        self.ids += 1;
        let id = self.ids;
        let random = || Some(id);
        let (reply, writes) = self.awake(now, usage).ask(asked, request, now, random).expect("it can be decided");
        self.write(writes, now, usage);
        reply
    }

    /// Timers and alarms up to `now`.
    pub(crate) fn pass(&mut self, now: i64, usage: &mut Usage) {
        loop {
            let timer = self.timer_at.filter(|&at| at <= now);
            let alarm = self.alarm_at.filter(|&at| at <= now);
            match (timer, alarm) {
                (Some(at), alarm) if alarm.is_none_or(|alarm| at <= alarm) => {
                    self.timer_at = None;
                    let writes = self.awake(at, usage).flush_idle(at);
                    self.write(writes, at, usage);
                }
                (_, Some(at)) => {
                    self.alarm_at = None;
                    usage.alarms += 1;
                    let writes = self.awake(at, usage).clean(at);
                    self.write(writes, at, usage);
                }
                _ => return,
            }
        }
    }

    pub(crate) const fn alarm_at(&self) -> Option<i64> {
        self.alarm_at
    }

    fn awake(&mut self, now: i64, usage: &mut Usage) -> &mut Ledger {
        if !self.presence.is_in_memory(now) {
            self.ledger = None;
        }
        let Self { ledger, rows, .. } = self;
        ledger.get_or_insert_with(|| {
            usage.rows_read += rows.len() as u64;
            Ledger::new(rows.clone(), 0)
        })
    }

    fn write(&mut self, writes: Writes, now: i64, usage: &mut Usage) {
        let Writes { mut before_reply, notices, background, clear, alarm_at, wants_flush } = writes;
        before_reply.extend(notices);
        let waits_for_row = clear || !before_reply.is_empty();
        usage.rows_written += (before_reply.len() + background.len() + usize::from(alarm_at.is_some())) as u64;
        if clear {
            usage.rows_written += self.rows.len() as u64;
            self.rows.clear();
            self.alarm_at = None;
        }
        for (name, row) in before_reply {
            match row {
                Some(row) => _ = self.rows.insert(name, row),
                None => _ = self.rows.remove(&name),
            }
        }
        for background in background {
            self.rows.insert(background.name.clone(), background.row);
            if let Some(ledger) = &mut self.ledger {
                ledger.confirm(&background.name, background.ticket);
            }
        }
        self.alarm_at = alarm_at.or(self.alarm_at);
        if wants_flush {
            let idle_ms = i64::try_from(Writes::IDLE_MS).expect("a short time");
            self.timer_at.get_or_insert(now + idle_ms);
        }
        self.presence.happens(now, waits_for_row, self.timer_at, usage);
    }
}
