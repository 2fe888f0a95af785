//! The shape of the tree, as laws: who may import whom, which crate is named where, what pure rooms must not know.
//!
//! It reads the source text, so it holds for code that the compiler does not build (features, platforms) too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Room -> the rooms it may import. Rooms of one level do not import each other, and `client` is a Kafka client, not a
/// part of the broker: only the simulator and the tools use it.
const IMPORTS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("wire", &["model"]),
    ("batch", &["model"]),
    ("log", &["model", "wire", "batch"]),
    ("meta", &["model", "wire", "batch"]),
    ("client", &["model", "wire", "batch"]),
    ("replica", &["model", "wire", "batch", "log", "meta"]),
    ("quorum", &["model", "wire", "batch", "log", "meta"]),
    (
        "shard",
        &["model", "wire", "batch", "log", "meta", "replica", "quorum"],
    ),
    (
        "net",
        &[
            "model", "wire", "batch", "log", "meta", "replica", "quorum", "shard",
        ],
    ),
    (
        "disk",
        &[
            "model", "wire", "batch", "log", "meta", "replica", "quorum", "shard",
        ],
    ),
    (
        "node",
        &[
            "model", "wire", "batch", "log", "meta", "replica", "quorum", "shard", "net", "disk",
        ],
    ),
    (
        "sim",
        // net: only the pure part that cuts a stream into frames.
        &[
            "model", "wire", "batch", "log", "meta", "client", "replica", "quorum", "shard", "net",
        ],
    ),
    (
        "cli",
        &[
            "model", "wire", "batch", "log", "meta", "client", "replica", "quorum", "shard", "net",
            "disk", "node", "sim",
        ],
    ),
];

/// Crate -> where it may be named (a room, or one file).
const CRATES: &[(&str, &[&str])] = &[
    ("glommio", &["node", "net", "disk"]),
    ("io_uring", &["node", "net", "disk"]),
    ("raft", &["quorum/raft"]),
    ("protobuf", &["quorum/raft"]),
    ("slog", &["quorum/raft"]),
    ("flume", &["node", "net", "disk"]),
    ("rustix", &["node", "net", "disk", "client", "cli"]),
    ("libc", &["node", "net", "disk", "client", "cli"]),
    ("socket2", &["node", "net", "client", "cli"]),
    ("signal_hook", &["node", "cli"]),
    ("getrandom", &["node", "client", "cli"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("comfy_table", &["cli"]),
    ("flate2", &["batch"]),
    ("snap", &["batch"]),
    ("lz4_flex", &["batch"]),
    ("zstd", &["batch"]),
    ("mimalloc", &["main"]),
    ("tokio", &["node/http"]),
    ("hyper", &["node/http"]),
    ("hyper_util", &["node/http"]),
    ("http_body_util", &["node/http"]),
];

/// Rooms in which nothing waits and nothing comes from outside but events.
const PURE: &[&str] = &[
    "model", "wire", "batch", "log", "meta", "replica", "quorum", "shard",
];

/// What a pure room must not name. Iterating std's `HashMap` has a random order: two runs of one seed would differ.
const IMPURE: &[&str] = &[
    "std::time",
    "std::fs",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "std::thread",
    "std::env",
    "std::process",
    "std::os",
    "SystemTime",
    ".await",
    "async fn",
    "async move",
    "HashMap",
    "HashSet",
    "Mutex",
    "thread_local!",
    "println!",
];

/// Everything that may stand at the root.
const ROOT: &[&str] = &[
    ".ci",
    ".git",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "NOTICE",
    "README.md",
    "benches",
    "docs",
    "perf",
    "scripts",
    "src",
    "tests",
    // Ignored by git.
    "target",
    "corelane-data",
];

const LINES_MAX: usize = 1_000;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` with one of the endings, as (path relative to the root, text).
fn files(dir: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != "node_modules" && name != "__pycache__" {
                    open.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending))
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.push((relative(&path), text));
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .to_string_lossy()
        .replace('\\', "/")
}

/// The room of a source file: `src/log/store.rs` -> `log`, `src/disk.rs` -> `disk`.
fn room(path: &str) -> String {
    let below = path.trim_start_matches("src/");
    below
        .split('/')
        .next()
        .unwrap_or(below)
        .trim_end_matches(".rs")
        .to_string()
}

/// The code without comments and string literals, up to the unit tests at the bottom. Line breaks stay.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            '/' if chars.peek() == Some(&'*') => {
                let mut last = ' ';
                for c in chars.by_ref() {
                    if c == '\n' {
                        out.push('\n');
                    }
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
            }
            '"' => {
                out.push('"');
                while let Some(c) = chars.next() {
                    match c {
                        '\\' if chars.next() == Some('\n') => out.push('\n'),
                        '\\' => {}
                        '"' => break,
                        '\n' => out.push('\n'),
                        _ => {}
                    }
                }
                out.push('"');
            }
            // A quote as a char literal must not open a string.
            '\'' => {
                let mut ahead = chars.clone();
                match (ahead.next(), ahead.next(), ahead.next()) {
                    (Some('\\'), Some(_), Some('\'')) => {
                        chars.nth(2);
                    }
                    (Some(_), Some('\''), _) => {
                        chars.nth(1);
                    }
                    _ => {}
                }
                out.push('\'');
            }
            c => out.push(c),
        }
    }
    match out.find("#[cfg(test)]\nmod ") {
        Some(at)
            if out[at..]
                .lines()
                .nth(1)
                .is_some_and(|line| line.ends_with('{')) =>
        {
            out[..at].to_string()
        }
        _ => out,
    }
}

/// Source files of the crate's rooms. The code generator is a build script, not a part of the crate.
fn sources() -> Vec<(String, String)> {
    files("src", &[".rs"])
        .into_iter()
        .filter(|(path, _)| {
            path != "src/wire/build.rs"
                && !path.starts_with("src/wire/build/")
                && !path.starts_with("src/wire/generator")
        })
        .collect()
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

/// Every occurrence of `name` that is not a part of a longer word, as line numbers.
fn occurrences(code: &str, name: &str) -> Vec<usize> {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut lines = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut from = 0;
        while let Some(at) = line[from..].find(name) {
            let (start, end) = (from + at, from + at + name.len());
            let starts_a_word = !name.starts_with(|c: char| c.is_alphanumeric())
                || !word(line[..start].chars().next_back());
            let ends_a_word =
                !name.ends_with(|c: char| c.is_alphanumeric()) || !word(line[end..].chars().next());
            if starts_a_word && ends_a_word {
                lines.push(number + 1);
            }
            from = end;
        }
    }
    lines
}

/// The rooms that `crate::...` paths name, with the line: `use crate::{a::b, c}` names a and c.
fn imported_rooms(code: &str) -> Vec<(usize, String)> {
    let mut rooms = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("crate::") {
        let start = from + at + "crate::".len();
        let line = code[..start].matches('\n').count() + 1;
        from = start;
        let rest = &code[start..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            let mut fresh = true;
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => fresh = true,
                    c if fresh && (c.is_alphanumeric() || c == '_') => name.push(c),
                    c if c.is_whitespace() => {}
                    _ => {
                        fresh = false;
                    }
                }
                if !(name.is_empty() || c.is_alphanumeric() || c == '_') {
                    rooms.push((line, std::mem::take(&mut name)));
                    fresh = c == ',' && depth == 0;
                }
            }
            if !name.is_empty() {
                rooms.push((line, name));
            }
        } else {
            rooms.push((
                line,
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect(),
            ));
        }
    }
    rooms
}

fn fail_with(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn rooms_import_only_rooms_of_lower_levels() {
    let table: BTreeMap<&str, BTreeSet<&str>> = IMPORTS
        .iter()
        .map(|(room, may)| (*room, may.iter().copied().collect()))
        .collect();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let own = room(&path);
        if own == "lib" || own == "main" {
            continue;
        }
        let Some(may) = table.get(own.as_str()) else {
            faults.push(format!(
                "{path}: room `{own}` is not in the table of tests/tidy.rs"
            ));
            continue;
        };
        for (line, named) in imported_rooms(&code(&text)) {
            if named != own && table.contains_key(named.as_str()) && !may.contains(named.as_str()) {
                faults.push(format!(
                    "{path}:{line}: room `{own}` must not import `{named}`"
                ));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        if is_test_file(&path) {
            continue;
        }
        let below = path.trim_start_matches("src/").trim_end_matches(".rs");
        let text = code(&text);
        for (name, places) in CRATES {
            let at_home = places
                .iter()
                .any(|place| below == *place || below.starts_with(&format!("{place}/")));
            // Inside quorum, `raft::` is the room's own module.
            if at_home || (*name == "raft" && below.starts_with("quorum/")) {
                continue;
            }
            for line in occurrences(&text, &format!("{name}::")) {
                let line_text = text.lines().nth(line - 1).unwrap_or_default();
                if !line_text.contains(&format!("::{name}::"))
                    && !line_text.contains(&format!("crate::{name}"))
                {
                    faults.push(format!(
                        "{path}:{line}: `{name}` belongs to {places:?} only"
                    ));
                }
            }
        }
    }
    fail_with(faults);
}

#[test]
fn pure_rooms_know_no_clock_no_file_no_socket_no_thread() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        if !PURE.contains(&room(&path).as_str()) || is_test_file(&path) {
            continue;
        }
        let text = code(&text);
        for name in IMPURE {
            // The switch of planted bugs is not in a broker: it belongs to one feature, for tests and the simulator.
            if *name == "thread_local!" && path == "src/log/planted.rs" {
                continue;
            }
            for line in occurrences(&text, name) {
                faults.push(format!("{path}:{line}: a pure room names `{name}`"));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let blocks = occurrences(&code(&text), "unsafe").len();
        let reasons = text.matches("SAFETY:").count();
        if blocks > 0 && !text.contains("#![allow(unsafe_code)]") {
            faults.push(format!(
                "{path}: unsafe code outside a file that opens with #![allow(unsafe_code)]"
            ));
        }
        if blocks > 0 && reasons == 0 {
            faults.push(format!("{path}: unsafe code without a SAFETY text"));
        }
    }
    fail_with(faults);
}

#[test]
fn the_root_holds_only_what_the_design_names() {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root())
        .expect("the root is readable")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !ROOT.contains(&name.as_str()) {
            faults.push(format!("{name}: not an entry of the root"));
        }
    }
    fail_with(faults);
}

#[test]
fn files_are_short_and_finished() {
    // Spelled in two pieces, so that this file passes.
    let unfinished = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    let mut faults = Vec::new();
    let mut all = files("src", &[".rs"]);
    for dir in ["tests", "benches", "perf", "scripts"] {
        all.extend(files(dir, &[".rs", ".py", ".java", ".go", ".js", ".sh"]));
    }
    for (path, text) in all {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            faults.push(format!(
                "{path}: {lines} lines, a room is missing (at most {LINES_MAX})"
            ));
        }
        for word in unfinished {
            for line in occurrences(&text, word) {
                faults.push(format!("{path}:{line}: {word}: finish it or file it"));
            }
        }
        for line in occurrences(&text, concat!("#[", "ignore")) {
            faults.push(format!("{path}:{line}: a test that nobody runs"));
        }
    }
    fail_with(faults);
}

#[test]
fn every_room_opens_with_what_it_owns() {
    let mut faults = Vec::new();
    for (room, _) in IMPORTS {
        let (dir, file) = (format!("src/{room}/mod.rs"), format!("src/{room}.rs"));
        let text = fs::read_to_string(root().join(&dir))
            .or_else(|_| fs::read_to_string(root().join(&file)));
        match text {
            Ok(text) if text.starts_with("//!") => {}
            Ok(_) => faults.push(format!("{dir}: opens without a word on what the room owns")),
            Err(_) => faults.push(format!("{dir}: missing")),
        }
    }
    fail_with(faults);
}

#[test]
fn the_reader_of_imports_sees_groups_and_paths() {
    let names = |code: &str| {
        imported_rooms(code)
            .into_iter()
            .map(|(_, room)| room)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("use crate::model::Uuid;"), ["model"]);
    assert_eq!(
        names("use crate::{batch::{Batch, check}, wire};"),
        ["batch", "wire"]
    );
    assert_eq!(names("fn f(x: crate::log::Store) {}"), ["log"]);
    assert_eq!(
        names(&code("// use crate::node::X;\nlet s = \"crate::node\";")),
        Vec::<String>::new()
    );
    assert_eq!(
        code("a\n#[cfg(test)]\nmod tests {\n  use std::time;\n}").trim(),
        "a"
    );
}
