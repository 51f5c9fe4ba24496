//! The files of this folder. A browser has no folders to look into, so they are listed.

macro_rules! files {
    ($($name:literal)*) => {
        /// Their names and texts.
        pub(crate) const ALL: &[(&str, &str)] = &[$(($name, include_str!($name))),*];
    };
}

files! {
    "clock.json"
    "consume.json"
    "first_use.json"
    "reserve.json"
    "rolling.json"
    "verbs.json"
    "window.json"
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn none_is_missing() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors")).unwrap();
    let files = folder.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|it| it == "json"));
    let mut names: Vec<_> = files.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    let listed: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, names);
}
