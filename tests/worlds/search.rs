//! The search of a world. Frontends and objects cannot be copied, so a state is the events that led to it, and each of its successors plays
//! them again from the start. States are compared by a hash of their printed form, which has every field except secrets, counters and caches.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stateright::{Checker, Model, Property};
use tollgate::policy::Policies;

use super::world::{Event, Plan, World};

pub(crate) struct Search {
    plan: &'static Plan,
    deployments: Vec<Arc<Policies>>,
    max_faults: usize,
    /// Where equal states are compared.
    histories: Option<Mutex<Histories>>,
}

#[derive(Debug, Default)]
struct Histories {
    /// The first of each fingerprint.
    firsts: BTreeMap<u64, Vec<Event>>,
    /// How many others have been compared with it.
    compared: usize,
    /// The first that differs.
    differs: Option<String>,
}

/// Maximum additional faults in a larger world.
const MOST_MORE_FAULTS: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct State {
    history: Vec<Event>,
    fingerprint: u64,
    events: Vec<Event>,
    /// What went wrong, if anything.
    wrong: Option<String>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.fingerprint, &self.wrong) == (other.fingerprint, &other.wrong)
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.fingerprint, &self.wrong).hash(state);
    }
}

impl Model for Search {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new()).0]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Event>) {
        if state.wrong.is_none() {
            actions.extend(state.events.iter().cloned());
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut history = state.history.clone();
        history.push(event);
        let (next, _) = self.state(history);
        self.compare(&next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing is wrong", |_, state: &State| state.wrong.is_none())]
    }
}

impl Search {
    pub(crate) fn new(plan: &'static Plan) -> Self {
        let deployments = plan.frontends.iter().map(|text| Arc::new(Policies::parse(text).unwrap())).collect();
        let (_, cases) = super::chance::chosen(0);
        let more = usize::try_from(cases).unwrap().min(MOST_MORE_FAULTS);
        Self { plan, deployments, max_faults: plan.max_faults + more, histories: None }
    }

    /// Searches the whole world, and reports its size.
    ///
    /// # Panics
    /// If something goes wrong, with one of the shortest histories after which it does.
    #[expect(clippy::disallowed_methods, reason = "the time taken is printed")]
    pub(crate) fn run(self) {
        let (name, began) = (self.plan.name, Instant::now());
        let checker = self.checker().threads(2).spawn_bfs().join();
        let (states, depth) = (checker.unique_state_count(), checker.max_depth());
        if let Some(path) = checker.discovery("nothing is wrong") {
            let last = path.last_state();
            let history: Vec<_> = last.history.iter().map(|event| format!("  {event:?}")).collect();
            panic!("{name}: {}\nafter\n{}", last.wrong.as_deref().unwrap_or_default(), history.join("\n"));
        }
        println!("world {name}: depth {depth}, {states} states, {} ms", began.elapsed().as_millis());
    }

    /// The same, with each history compared with the first one that has the same fingerprint. Returns how many were compared.
    pub(crate) fn compared(self) -> usize {
        let search = Self { histories: Some(Mutex::default()), ..self };
        let checker = search.checker().spawn_bfs().join();
        let histories = checker.model().histories.as_ref().unwrap().lock().unwrap();
        assert!(histories.differs.is_none(), "{:?}", histories.differs);
        histories.compared
    }

    /// The state after that history, and the answers to its last event.
    fn state(&self, history: Vec<Event>) -> (State, Vec<String>) {
        let mut state = State { history, fingerprint: 0, events: Vec::new(), wrong: None };
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(self.plan, &self.deployments);
            let mut answers = Vec::new();
            for event in &state.history {
                answers = world.step(self.plan, event);
            }
            let (fingerprint, events) = (fingerprint(&world), world.events(self.plan, self.max_faults));
            world.look(self.plan, &self.deployments);
            (fingerprint, events, answers)
        }));
        let mut answers = Vec::new();
        match played {
            Ok(played) => (state.fingerprint, state.events, answers) = played,
            Err(panic) => state.wrong = Some(text_of(&*panic)),
        }
        (state, answers)
    }

    /// Compares what happens after this history with what happens after the first one with its fingerprint.
    fn compare(&self, state: &State) {
        let Some(histories) = &self.histories else { return };
        let Histories { firsts, compared, differs } = &mut *histories.lock().unwrap();
        let first = firsts.entry(state.fingerprint).or_insert_with(|| state.history.clone());
        if *first == state.history {
            return;
        }
        *compared += 1;
        for event in &state.events {
            let [one, other] = [&*first, &state.history].map(|history| {
                let history = history.iter().chain([event]).cloned().collect();
                let (State { fingerprint, events, wrong, .. }, answers) = self.state(history);
                (fingerprint, events, wrong, answers)
            });
            if one != other {
                differs.get_or_insert_with(|| {
                    format!("{event:?}: {one:?} after {first:?}, {other:?} after {:?}", state.history)
                });
            }
        }
    }
}

fn fingerprint(world: &World) -> u64 {
    let mut hash = Hashed(DefaultHasher::new());
    write!(hash, "{world:?}").unwrap();
    hash.0.finish()
}

/// What is written is hashed.
struct Hashed(DefaultHasher);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn text_of(panic: &dyn Any) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_else(|| "a panic".to_owned())
}
