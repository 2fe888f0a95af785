//! The pages under `docs/` say what the tables of the source say. `CORELANE_WRITE_DOCS=1 cargo test --test docs` writes the
//! generated ones anew.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use corelane::meta::config::{
    Def, Effect, Valid, broker_defs, changes_while_running, group_defs, topic_defs,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const HEAD: &str = "\
# Configuration

This page is generated from the tables that the broker reads (`src/meta/config/*.txt`); a test holds it to them.

`corelane serve --config server.properties name=value ...` reads a file in Kafka's format; values on the command line come
over it. An unknown name ends the start and is told the nearest name that exists; a setting of Apache Kafka that has no
effect here is accepted and named in a warning. `kafka-configs` describes all of them, and changes what may change while the
broker runs: for one node, or for all of them. Limits that Apache Kafka has per broker are per *node* here: a process with
8 shards is 8 nodes.

Times are in milliseconds and sizes in bytes where the name does not say otherwise. `-` is \"not set\".
";

const TOPICS: &str = "
## Topics

Set when a topic is created, and changed while it exists (`kafka-configs --alter --topic`). A topic that does not set one has
the value of the broker configs in the last column, the first that is set.

| name | type | default | values | meaning | default from |
|---|---|---|---|---|---|
";

const NODES: &str = "
## Nodes

`live` settings change while the broker runs (`kafka-configs --alter`), the others with the next start; a change of those is
refused.

| name | type | default | values | meaning | changes |
|---|---|---|---|---|---|
";

const WITHOUT: &str = "
## Settings of Apache Kafka without effect

They are accepted, so that old files work, and shown as set. The broker names those that a file sets when it starts, and
`kafka-configs --describe` says of each that it has no effect. What would change what is stored or promised is refused
instead: `remote.storage.enable=true`, an authorizer, several log directories, several voters of the quorum, and a listener
with a security protocol that is not there.
";

fn values(def: &Def) -> String {
    match &def.valid {
        Valid::Any => String::new(),
        Valid::AtLeast(min) => format!("from {min} up"),
        Valid::Between(min, max) => format!("{min} to {max}"),
        Valid::OneOf(of) => of.join(", "),
        Valid::Level { min, max, or } => format!("{min} to {max}, or {or}"),
        Valid::Throttled => "partition:broker pairs, or *".into(),
        Valid::List { of, .. } => of.join(", "),
    }
}

fn default(def: &Def) -> String {
    match def.default {
        None => "-".into(),
        Some("") => "(empty)".into(),
        // Such a name would be as wide as the page.
        Some(text) if text.len() > 40 => format!("`{}`", text.replace(',', ", ")),
        Some(text) => format!("`{text}`"),
    }
}

fn row(page: &mut String, def: &Def) {
    let kind = def.kind.name().to_lowercase();
    let doc = def.doc.replace('|', "\\|");
    write!(
        page,
        "| `{}` | {kind} | {} | {} | {doc} |",
        def.name,
        default(def),
        values(def)
    )
    .expect("text");
}

fn listed(defs: &'static [Def]) -> Vec<&'static Def> {
    let mut all: Vec<&Def> = defs.iter().filter(|def| !def.internal).collect();
    all.sort_by_key(|def| def.name);
    all
}

fn configuration() -> String {
    let mut page = String::from(HEAD);
    page.push_str(TOPICS);
    for def in listed(topic_defs())
        .into_iter()
        .filter(|def| def.effect == Effect::Used)
    {
        row(&mut page, def);
        let from: Vec<String> = def
            .synonyms
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        writeln!(page, " {} |", from.join(", ")).expect("text");
    }
    page.push_str(NODES);
    for def in listed(broker_defs())
        .into_iter()
        .filter(|def| def.effect == Effect::Used)
    {
        row(&mut page, def);
        let changes = match changes_while_running(def) {
            true => "live",
            false => "at a start",
        };
        writeln!(page, " {changes} |").expect("text");
    }
    groups(&mut page);
    page.push_str(WITHOUT);
    let effects = [
        Effect::Later,
        Effect::Class,
        Effect::Threads,
        Effect::Inside,
        Effect::Quorum,
        Effect::Tiered,
    ];
    for effect in effects {
        let reason = effect.reason();
        let (first, rest) = reason.split_at(1);
        write!(page, "\n{}{rest}:\n", first.to_uppercase()).expect("text");
        let both = listed(topic_defs()).into_iter().map(|def| ("topic ", def));
        let both = both.chain(listed(broker_defs()).into_iter().map(|def| ("", def)));
        for (whose, def) in both.filter(|(_, def)| def.effect == effect) {
            writeln!(page, "- {whose}`{}`: {}", def.name, def.doc).expect("text");
        }
    }
    page
}

const GROUPS: &str = "
## Groups

Kept and described (`kafka-configs --group`); they take effect when there are groups.

| name | type | default from | meaning |
|---|---|---|---|
";

fn groups(page: &mut String) {
    page.push_str(GROUPS);
    for def in group_defs() {
        let kind = def.kind.name().to_lowercase();
        let from = match (def.broker, def.default) {
            (Some(broker), _) => format!("`{broker}`"),
            (None, "") => "(empty)".to_string(),
            (None, text) => text.to_string(),
        };
        let (name, doc) = (def.name, def.doc);
        writeln!(page, "| `{name}` | {kind} | {from} | {doc} |").expect("text");
    }
}

fn holds(path: &str, expected: &str) {
    let path = root().join(path);
    if std::env::var_os("CORELANE_WRITE_DOCS").is_some() {
        fs::write(&path, expected).expect("the page can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differs = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{} differs from the tables, first at {differs:?}: run `CORELANE_WRITE_DOCS=1 cargo test --test docs`",
        path.display()
    );
}

#[test]
fn the_page_of_configs_is_that_of_the_tables() {
    holds("docs/configuration.md", &configuration());
}

const METRICS: &str = "\
# Metrics

This page is generated from the table that the broker writes `/metrics` by; a test holds it to that.

Every process has a port for its operator (`metrics.listener`, by default 127.0.0.1:9644; where that is taken, any free one, which the
broker names when it starts). It has no authentication and changes no data.

| path | answers |
|---|---|
| `/metrics` | all numbers, in the text format of Prometheus |
| `/health/live` | 200 while every shard answers within a second, else 503 with the shards that do not |
| `/health/ready` | 200 while every shard serves and can write, else 503 with the reasons |
| `/status` | JSON: version, ports, shards, what is out of use and why |
| `/log-level` | the filter of logs; `PUT /log-level?filter=warn,corelane::log=debug` changes it until the next start |

Numbers are per shard, and a shard is a Kafka node: `sum without (shard) (...)` gives those of the process. Series are bounded: the first
100 topics by name have series of their own, the others are together in `topic=\"_other\"`; at most 1,000 partitions a shard have theirs.
Histograms have buckets that double, from 16 us to 16.8 s.

| name | kind | labels | meaning |
|---|---|---|---|
";

fn metrics() -> String {
    let mut page = METRICS.to_string();
    for family in corelane::node::http::FAMILIES {
        let labels = family.labels.join(", ");
        let (name, kind, help) = (family.name, family.kind, family.help);
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").expect("a string");
    }
    page
}

#[test]
fn the_page_of_metrics_is_that_of_the_table() {
    holds("docs/metrics.md", &metrics());
}

/// The rows of the page's table of APIs are what a shard serves.
#[test]
fn the_page_of_differences_lists_what_is_served() {
    let page = fs::read_to_string(root().join("docs/differences.md")).expect("the page");
    let listed: Vec<&str> = page
        .lines()
        .skip_while(|line| *line != "|---|---|---|")
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let served = corelane::shard::api::advertised()
        .into_iter()
        .map(|(api, min, max)| {
            let min = min.max(api.versions().0);
            format!("| {} | {} | {min}-{max} |", api.name(), api.code())
        });
    assert_eq!(listed, served.collect::<Vec<_>>());
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            out.push(path);
        }
    }
}

/// Prefixes of configs that are read together, by a name put together.
const TOGETHER: &[&str] = &[
    "offsets.topic",
    "transaction.state.log",
    "share.coordinator.state.topic",
];

/// A node config that claims an effect is read somewhere: by its name, or as the default of a topic config.
#[test]
fn a_config_that_claims_an_effect_is_read() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let text: String = files
        .iter()
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    let read = |def: &Def| {
        let together = TOGETHER.iter().find(|prefix| def.name.starts_with(*prefix));
        !def.synonyms.is_empty() || text.contains(&format!("\"{}\"", together.unwrap_or(&def.name)))
    };
    // Only one value is possible; the table refuses the others.
    let fixed = |def: &Def| matches!(&def.valid, Valid::OneOf(of) if of.len() == 1);
    let unread: Vec<&str> = broker_defs()
        .iter()
        .filter(|def| def.effect == Effect::Used && !fixed(def) && !read(def))
        .map(|def| def.name)
        .collect();
    assert!(
        unread.is_empty(),
        "claim an effect and are read nowhere: {unread:?}"
    );
}

#[test]
fn every_config_says_what_it_does() {
    let silent: Vec<&str> = topic_defs()
        .iter()
        .chain(broker_defs())
        .filter(|def| def.doc.is_empty())
        .map(|def| def.name)
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}
