//! The registry with failing storage.

use std::collections::BTreeMap;
use std::ops::Bound;

use tollgate::key_hash::KeyHasher;
use tollgate::protocol::{Condition, PolicyChange};
use tollgate::registry::{Kept, MAX_POLICIES, Registry, Storage, Writes};

use super::world::{START, World};

/// Rows, and failures.
#[derive(Default)]
struct Disk {
    rows: BTreeMap<String, String>,
    pages: Vec<usize>,
    unreadable: Vec<String>,
    /// How many pages can be read before one fails, once.
    pages_left: Option<usize>,
    is_full: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Failed;

impl Storage for &mut Disk {
    type Error = Failed;

    fn rows(&mut self, after: &str, count: u32) -> Result<Vec<(String, String)>, Failed> {
        match self.pages_left.take() {
            Some(0) => return Err(Failed),
            left => self.pages_left = left.map(|left| left - 1),
        }
        let above = self.rows.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).take(count as usize);
        let page: Vec<_> = above.map(|(name, row)| (name.clone(), row.clone())).collect();
        self.pages.push(page.len());
        Ok(page)
    }

    fn rows_of(&mut self, names: &[String]) -> Result<Vec<String>, Failed> {
        Ok(names.iter().filter_map(|name| self.rows.get(name).cloned()).collect())
    }

    fn write(&mut self, rows: &Writes) -> Result<(), Failed> {
        if self.is_full {
            return Err(Failed);
        }
        for (name, row) in rows {
            match row {
                Some(row) => _ = self.rows.insert(name.clone(), row.clone()),
                None => _ = self.rows.remove(name),
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, names: &[String]) {
        self.unreadable.extend_from_slice(names);
    }
}

/// Adds a policy of that name.
fn add(registry: &mut Registry, name: &str) -> Writes {
    let change = PolicyChange {
        name,
        text: Some("\"1/1s\""),
        condition: Condition::Absent,
        carry: None,
        by: "ops",
        is_dry_run: false,
    };
    registry.change(&change, START).unwrap().1
}

fn names(kept: &mut Kept<&mut Disk>) -> Result<Vec<String>, Failed> {
    kept.step(|registry, _| {
        Ok((registry.policies().map(|standing| standing.policy.name().to_owned()).collect(), Writes::new()))
    })
}

#[test]
fn rows_are_read_once_in_pages_except_those_of_the_audit_log() {
    let mut world = World::new();
    for number in 0..MAX_POLICIES {
        let writes = add(&mut world.registry, &format!("p{number:03}"));
        world.write(writes);
    }
    let logged = world.storage.keys().filter(|name| name.starts_with("audit:")).count();
    assert!(logged >= 500, "they would be a page of their own");
    world.storage.insert("policy:p000".to_owned(), "{".to_owned());
    let loaded = world.storage.len() - logged;
    let mut disk = Disk { rows: world.storage, ..Disk::default() };
    let mut kept = Kept::new(&mut disk, KeyHasher::default());
    for _ in 0..2 {
        assert_eq!(names(&mut kept).unwrap().len(), MAX_POLICIES - 1);
    }
    assert_eq!(disk.pages, [500, loaded - 500, 0]);
    assert_eq!(disk.unreadable, ["policy:p000"]);
}

#[test]
fn rows_that_could_not_be_read_are_read_again() {
    for pages_left in 0..2 {
        let mut world = World::new();
        let writes = add(&mut world.registry, "api");
        world.write(writes);
        let mut disk = Disk { rows: world.storage, pages_left: Some(pages_left), ..Disk::default() };
        let mut kept = Kept::new(&mut disk, KeyHasher::default());
        assert_eq!(names(&mut kept), Err(Failed), "half of a registry is none");
        assert_eq!(names(&mut kept).unwrap(), ["api"]);
    }
}

/// A change in memory without written rows would be lost in the next crash.
#[test]
fn after_a_failure_the_earlier_rows_are_in_force() {
    let mut disk = Disk::default();
    let mut kept = Kept::new(&mut disk, KeyHasher::default());
    kept.step(|registry, _| Ok(((), add(registry, "first")))).unwrap();
    let failed = kept.step(|registry, disk| {
        disk.is_full = true;
        Ok(((), add(registry, "second")))
    });
    assert_eq!(failed, Err(Failed));
    assert_eq!(names(&mut kept).unwrap(), ["first"]);
    // A step that fails may have changed something already.
    let failed: Result<(), _> = kept.step(|registry, disk| {
        disk.is_full = false;
        add(registry, "third");
        Err(Failed)
    });
    assert_eq!(failed, Err(Failed));
    assert_eq!(names(&mut kept).unwrap(), ["first"]);
    kept.step(|registry, _| Ok(((), add(registry, "fourth")))).unwrap();
    assert_eq!(names(&mut kept).unwrap(), ["first", "fourth"]);
}
