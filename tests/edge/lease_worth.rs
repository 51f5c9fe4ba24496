//! When leases are taken: only for keys with enough requests in an isolate that they save more than they cost. `cargo test --features
//! lint,tower --test edge lease_worth -- --nocapture` prints the tables.

use super::leasing::{Seen, World};
use super::random::Random;

/// A row costs an object about as much as this many calls: the ratio of their prices.
const CALLS_PER_ROW: u64 = 7;

const AMPLE: &str = r#""rate":2000,"period":"1s","capacity":4000"#;

/// An isolate with these requests for one token, at milliseconds from the start, in chronological order.
fn play(limit: &str, lease: Option<&str>, moments: &[i64]) -> Seen {
    let lease = lease.map(|lease| format!(r#","lease":"{lease}""#)).unwrap_or_default();
    let mut random = Random(7);
    let mut world = World::new(&mut random, &format!(r#"{{"p":{{{limit}{lease}}}}}"#), 1);
    world.takes_ms = (2, 10);
    let (start, mut moments) = (world.now, moments.iter().peekable());
    while moments.peek().is_some() || !world.network.is_empty() {
        while let Some(index) = world.network.iter().position(|message| message.arrives_at <= world.now) {
            world.deliver(index);
        }
        while let Some(index) = world.timers.iter().position(|timer| timer.at <= world.now) {
            world.ring(index);
        }
        if world.now % 200 == 0 {
            world.object.flush(world.now);
        }
        while moments.next_if(|at| start + **at <= world.now).is_some() {
            world.ask(0, &[1], true);
        }
        world.now += 1;
    }
    world.seen
}

const fn cost(seen: &Seen) -> u64 {
    seen.calls + CALLS_PER_ROW * seen.rows
}

fn per_thousand(count: u64, seen: &Seen) -> u64 {
    count * 1_000 / seen.asked
}

/// This many requests per second, evenly spaced, for this many seconds.
fn steady(per_second: i64, seconds: i64) -> Vec<i64> {
    (0..per_second * seconds).map(|number| number * 1_000 / per_second).collect()
}

/// Requests, a tenth of a second apart or less, each time after a pause.
fn bursts(size: i64, pause_ms: i64) -> Vec<i64> {
    let step_ms = 100.min(700 / size);
    (0..20).flat_map(|burst| (0..size).map(move |number| burst * pause_ms + number * step_ms)).collect()
}

#[test]
fn a_lease_is_taken_if_24_requests_or_more_come_in_its_time() {
    println!("| requests a second | lease | calls for 1 000 | rows for 1 000 | rows without leases |");
    println!("|---|---|---|---|---|");
    for per_second in [1, 2, 5, 10, 20, 50, 200, 1_000] {
        let moments = steady(per_second, 60);
        let exact = play(AMPLE, None, &moments);
        assert_eq!((exact.granted, exact.calls), (exact.asked, exact.asked));
        for (lease, lease_ms) in [("500ms", 500), ("2s", 2_000), ("10s", 10_000)] {
            let seen = play(AMPLE, Some(lease), &moments);
            let [calls, rows] = [seen.calls, seen.rows].map(|count| per_thousand(count, &seen));
            println!("| {per_second} | {lease} | {calls} | {rows} | {} |", per_thousand(exact.rows, &exact));
            assert_eq!(seen.granted, seen.asked, "{per_second}/s, {lease}");
            if per_second * lease_ms >= 24_000 {
                assert!(calls < 400, "{per_second}/s, {lease}: {calls} calls");
                assert!(cost(&seen) < cost(&exact), "{per_second}/s, {lease}: {seen:?}");
            } else {
                assert_eq!((seen.calls, seen.rows), (exact.calls, exact.rows), "{per_second}/s, {lease}");
            }
        }
    }
}

/// As many requests as it takes may come: with tokens for a few of them, a lease costs more than it saves.
#[test]
fn a_lease_is_taken_where_it_can_have_tokens_for_24_requests() {
    let moments = steady(20, 60);
    for (capacity, more, is_taken) in [
        (4_000, r#","max_lease":1"#, false),
        (4_000, r#","max_lease":23"#, false),
        (4_000, r#","max_lease":24"#, true),
        (46, "", false),
        (48, "", true),
    ] {
        let limit = format!(r#""rate":2000,"period":"1s","capacity":{capacity}"#);
        let exact = play(&limit, None, &moments);
        let seen = play(&(limit + more), Some("10s"), &moments);
        assert_eq!(seen.granted, seen.asked, "{capacity}{more}");
        if is_taken {
            assert!(cost(&seen) < cost(&exact), "{capacity}{more}: {seen:?} instead of {exact:?}");
        } else {
            assert_eq!((seen.calls, seen.rows), (exact.calls, exact.rows), "{capacity}{more}");
        }
    }
}

/// As `npm run bench` asks 200 keys: some requests in less than a second, then nothing for many.
#[test]
fn a_short_burst_takes_no_lease() {
    for size in [4, 7, 14, 31, 47] {
        for pause_ms in [5_000, 7_000, 60_000] {
            let moments = bursts(size, pause_ms);
            let [exact, seen] = [None, Some("2s")].map(|lease| play(AMPLE, lease, &moments));
            assert_eq!((seen.calls, seen.rows), (exact.calls, exact.rows), "{size} each {pause_ms} ms");
        }
    }
}
