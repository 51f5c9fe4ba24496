//! A law of repeated requests: whatever happens beside them, they are carried out once, and their callers get the same answer each time.

use tollgate::frontend::Asked;
use tollgate::policy::Cause;

use super::random;
use super::random::Random;
use super::world::{Answer, CONSUMER, World, failure};

/// A request with its own `Idempotency-Key`.
struct Order {
    name: String,
    cost: u64,
    /// Whether it was granted; `None` before its first answer.
    is_granted: Option<bool>,
}

/// One key of a policy, and the tokens taken from it.
struct Budget {
    world: World,
    capacity: u64,
    taken: u64,
    seen: Seen,
}

/// Counts of the interesting cases.
#[derive(Debug, Default)]
struct Seen {
    repeated: u64,
    lost: u64,
    from_leases: u64,
    from_memory: u64,
}

impl Budget {
    /// A token comes back in a day, so that none does while a case lasts.
    fn new(random: &mut Random) -> Self {
        let largest = [20, 200, 2_000][random.below(3)];
        let capacity = 1 + random.below(largest) as u64;
        let lease = if random.once_in(3) { "" } else { r#","lease":"1s""# };
        let world = World::new(&format!(r#"{{"api":{{"rate":"1/1day burst {capacity}"{lease}}}}}"#));
        Self { world, capacity, taken: 0, seen: Seen::default() }
    }

    fn ask(&mut self, cost: u64, idempotency_key: Option<&str>) -> Answer {
        let body = format!(r#"{{"policy":"api","key":"k","cost":{cost}}}"#);
        let body = body.as_bytes();
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), idempotency_key, body, ..Asked::default() };
        let mut call = self.world.begin(&asked).ok().unwrap();
        self.world.carry_out(&mut call);
        if let Some(mut renewal) = call.renewal(self.world.now()) {
            self.world.carry_out(&mut renewal);
        }
        self.world.reply_of(&mut call)
    }

    /// A request that is not repeated: mostly small, so that leases have enough, and at times too large.
    fn ask_once(&mut self, random: &mut Random) {
        let cost = if random.once_in(40) { 1 + self.capacity / 2 } else { 1 };
        let answer = self.ask(cost, None);
        let source = answer.body["source"].as_str();
        self.seen.from_leases += u64::from(source == Some("lease"));
        self.seen.from_memory += u64::from(source == Some("cache"));
        self.taken += if answer.status == 200 { cost } else { 0 };
    }

    /// An order for the first time or repeated. Now and then its answer is lost, after the object has decided.
    fn repeat(&mut self, order: &mut Order, is_lost: bool) {
        if is_lost {
            self.lose_answer(order);
            self.seen.lost += 1;
            return;
        }
        let Answer { status, body, .. } = self.ask(order.cost, Some(&order.name));
        let (is_granted, is_replayed) = (status == 200, body.get("replayed").is_some());
        assert!(is_granted || status == 429, "{body}");
        assert_eq!(body.get("source"), None, "only the object knows of replays: {body}");
        match order.is_granted {
            Some(true) => assert!(is_granted && is_replayed, "it was granted before: {body}"),
            Some(false) => assert!(!is_replayed, "it was refused before, which took nothing: {body}"),
            None => {}
        }
        assert!(is_granted || !is_replayed, "{body}");
        assert_eq!(body["cost"], order.cost);
        self.seen.repeated += u64::from(order.is_granted == Some(true));
        self.taken += if is_granted && order.is_granted != Some(true) { order.cost } else { 0 };
        order.is_granted = Some(is_granted);
    }

    /// The caller learns nothing, unless it knows already that the order was granted.
    fn lose_answer(&mut self, order: &mut Order) {
        let body = format!(r#"{{"policy":"api","key":"k","cost":{}}}"#, order.cost);
        let asked = Asked {
            url: "/v1/consume",
            authorization: Some(CONSUMER),
            idempotency_key: Some(&order.name),
            body: body.as_bytes(),
            ..Asked::default()
        };
        let mut call = self.world.begin(&asked).ok().unwrap();
        let next = call.next(self.world.now()).unwrap();
        self.world.object_reply(&call, &next);
        self.world.fail(&mut call, next.object, failure(Cause::Timeout));
        assert_eq!(call.reply(self.world.now()).status, 503);
        order.is_granted = order.is_granted.filter(|is_granted| *is_granted);
    }

    /// Untaken tokens are still available: a request that leases cannot grant gives them back.
    fn check(mut self) -> Seen {
        assert!(self.taken <= self.capacity, "more than there ever was");
        let left = self.capacity - self.taken;
        for (cost, status) in [(left, 200), (1, 429)].into_iter().filter(|(cost, _)| *cost > 0) {
            assert_eq!(self.ask(cost, None).status, status, "{left} of {} are left", self.capacity);
        }
        self.seen
    }
}

/// Plain requests for the same key are granted by leases and by its object, and refused from memory. An order takes its tokens once, and each
/// repetition says that it was granted; a refused one may be granted later.
#[test]
fn a_request_takes_its_tokens_once_and_each_replay_says_so() {
    let mut seen = Seen::default();
    random::cases(100, |random| {
        let mut budget = Budget::new(random);
        let costs: Vec<_> = (0..6).map(|_| (1 + random.below(5) as u64).min(budget.capacity)).collect();
        let order = |(number, cost)| Order { name: format!("order {number}"), cost, is_granted: None };
        let mut orders: Vec<_> = costs.into_iter().enumerate().map(order).collect();
        for _ in 0..200 {
            budget.world.now += i64::try_from(random.below(10)).unwrap();
            if random.once_in(3) {
                let number = random.below(orders.len());
                budget.repeat(&mut orders[number], random.once_in(5));
            } else {
                budget.ask_once(random);
            }
        }
        for order in &mut orders {
            budget.repeat(order, false);
        }
        let Seen { repeated, lost, from_leases, from_memory } = budget.check();
        seen.repeated += repeated;
        seen.lost += lost;
        seen.from_leases += from_leases;
        seen.from_memory += from_memory;
    });
    println!("{seen:?}");
    if seen.repeated > 1_000 {
        assert!(seen.lost.min(seen.from_leases).min(seen.from_memory) > 500, "too few to show anything");
    }
}

/// It names the limits that there were.
#[test]
fn a_request_is_repeated_under_a_policy_that_has_other_limits() {
    let limit = |name: &str| format!(r#"{{"name":"{name}","rate":100,"period":"1day"}}"#);
    let policy = |names: &[&str]| {
        let limits: Vec<_> = names.iter().map(|name| limit(name)).collect();
        format!(r#"{{"api":{{"limits":[{}]}}}}"#, limits.join(","))
    };
    let body = |cost: &str| format!(r#"{{"policy":"api","key":"k","cost":{{{cost}}}}}"#);
    let ask = |world: &mut World, cost: &str, key| {
        let (body, idempotency_key) = (body(cost), Some(key));
        let authorization = Some(CONSUMER);
        world.ask(&Asked {
            url: "/v1/consume",
            authorization,
            idempotency_key,
            body: body.as_bytes(),
            ..Asked::default()
        })
    };
    let both = r#""a":1,"b":50"#;
    for after in [&["a"][..], &["a", "b", "c"], &["a", "d"], &["d"]] {
        let mut world = World::new(&policy(&["a", "b"]));
        assert_eq!(ask(&mut world, both, "order").status, 200);
        world.deploy(&policy(after));
        let again = ask(&mut world, both, "order");
        assert_eq!((again.status, &again.body["replayed"]), (200, &true.into()), "{after:?}: {}", again.body);
        // What was not done before is still wrong, and so is another request with the same name.
        assert_eq!(ask(&mut world, both, "another").status, 400, "{after:?}");
        assert_eq!(ask(&mut world, r#""a":1,"b":51"#, "order").status, 422, "{after:?}");
    }
}
