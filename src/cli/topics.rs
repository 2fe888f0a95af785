//! `corelane topics`: flags and output as of `kafka-topics`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;

use super::Outcome;
use super::connect::{Connect, client};
use super::out::say;
use crate::client::admin::{NewTopic, RESOURCE_TOPIC};
use crate::client::cluster::Topic;
use crate::client::{Client, Error};
use crate::model::ErrorCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create topics
    Create(Create),
    /// List the names of topics
    List(List),
    /// Show topics with their partitions and settings
    Describe(Describe),
    /// Let topics have more partitions
    Alter(Alter),
    /// Delete the oldest records
    Trim(super::trim::Args),
    /// Delete topics
    Delete(Delete),
}

#[derive(clap::Args)]
struct Create {
    #[command(flatten)]
    connect: Connect,
    /// Name; may be given more than once
    #[arg(long, required = true)]
    topic: Vec<String>,
    /// Number of partitions; the broker's default if not given
    #[arg(long)]
    partitions: Option<i32>,
    /// Copies of each partition; the broker's default if not given
    #[arg(long)]
    replication_factor: Option<i16>,
    /// Nodes of each partition by hand: 1:2,2:3
    #[arg(long, conflicts_with_all = ["partitions", "replication_factor"])]
    replica_assignment: Option<String>,
    /// A setting of the topic; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// A topic that is there is no error
    #[arg(long)]
    if_not_exists: bool,
    /// Only check
    #[arg(long)]
    validate_only: bool,
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    connect: Connect,
    /// Names, with `.*` for anything and `,` or `|` between several
    #[arg(long)]
    topic: Option<String>,
    /// Without the topics that the cluster keeps for itself
    #[arg(long)]
    exclude_internal: bool,
}

#[derive(clap::Args)]
struct Describe {
    #[command(flatten)]
    connect: Connect,
    /// Names, with `.*` for anything and `,` or `|` between several
    #[arg(long)]
    topic: Option<String>,
    /// Without the topics that the cluster keeps for itself
    #[arg(long)]
    exclude_internal: bool,
    /// Only partitions with fewer in-sync replicas than replicas
    #[arg(long)]
    under_replicated_partitions: bool,
    /// Only partitions without a leader
    #[arg(long)]
    unavailable_partitions: bool,
    /// Only topics with settings of their own
    #[arg(long)]
    topics_with_overrides: bool,
    /// A missing topic is no error
    #[arg(long)]
    if_exists: bool,
}

#[derive(clap::Args)]
struct Alter {
    #[command(flatten)]
    connect: Connect,
    /// Names, with `.*` for anything and `,` or `|` between several
    #[arg(long, required = true)]
    topic: Vec<String>,
    /// Number of partitions in all; more than there are
    #[arg(long)]
    partitions: i32,
    /// Nodes of each partition by hand, those that are there first: 1,2,3
    #[arg(long)]
    replica_assignment: Option<String>,
    /// A missing topic is no error
    #[arg(long)]
    if_exists: bool,
}

#[derive(clap::Args)]
struct Delete {
    #[command(flatten)]
    connect: Connect,
    /// Names, with `.*` for anything and `,` or `|` between several
    #[arg(long, required = true)]
    topic: Vec<String>,
    /// A missing topic is no error
    #[arg(long)]
    if_exists: bool,
}

/// `topics --create ...`, as `kafka-topics` has it, means `topics create ...`.
pub fn kafka_style(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_none_or(|a| a != "topics") {
        return args;
    }
    let action = args.iter().position(|a| {
        ["--create", "--list", "--describe", "--alter", "--delete"]
            .iter()
            .any(|action| a == action)
    });
    if let Some(at) = action {
        let action = args.remove(at);
        let action = action.to_string_lossy().trim_start_matches('-').to_string();
        args.insert(2, action.into());
    }
    args
}

pub fn run(args: Args) -> Outcome {
    let result = match args.action {
        Action::Create(args) => create(args),
        Action::List(args) => list(args),
        Action::Describe(args) => describe(args),
        Action::Alter(args) => alter(args),
        Action::Trim(args) => super::trim::run(&args),
        Action::Delete(args) => delete(args),
    };
    result.map(|()| ExitCode::SUCCESS)
}

fn text(error: Error) -> String {
    error.to_string()
}

fn create(args: Create) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let pair = |c: &String| {
        let (k, v) = c
            .split_once('=')
            .ok_or_else(|| format!("'{c}' is not KEY=VALUE"))?;
        Ok((k.trim().to_string(), v.to_string()))
    };
    let configs = args
        .config
        .iter()
        .map(pair)
        .collect::<Result<Vec<_>, String>>()?;
    let assignment = match &args.replica_assignment {
        None => Vec::new(),
        Some(text) => text.split(',').map(nodes).collect::<Result<_, _>>()?,
    };
    let topics: Vec<NewTopic> = args
        .topic
        .iter()
        .map(|name| NewTopic {
            name: name.clone(),
            partitions: args.partitions.unwrap_or(-1),
            replication_factor: args.replication_factor.unwrap_or(-1),
            configs: configs.clone(),
            assignment: assignment.clone(),
        })
        .collect();
    for topic in &topics {
        if topic.name.contains('.') || topic.name.contains('_') {
            say!(
                "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To avoid issues it is best to use either, but not both."
            );
        }
    }
    let results = client
        .create_topics(&topics, args.validate_only)
        .map_err(text)?;
    let mut failed = None;
    for (topic, result) in topics.iter().zip(results) {
        match result {
            Ok(()) => say!("Created topic {}.", topic.name),
            Err(e) if args.if_not_exists && e.code() == Some(ErrorCode::TopicAlreadyExists) => {}
            Err(e) => failed = Some(format!("topic {}: {e}", topic.name)),
        }
    }
    failed.map_or(Ok(()), Err)
}

fn nodes(text: &str) -> Result<Vec<i32>, String> {
    let parse = |n: &str| {
        n.trim()
            .parse()
            .map_err(|_| format!("'{n}' is not a node id"))
    };
    text.split(':').map(parse).collect()
}

/// The topics that `pattern` names, sorted; all without one.
fn matching(client: &mut Client, pattern: Option<&str>) -> Result<Vec<(String, Topic)>, String> {
    let metadata = client.metadata(None).map_err(text)?;
    let named = |name: &str| pattern.is_none_or(|p| p.split([',', '|']).any(|p| matches(p, name)));
    Ok(metadata
        .topics
        .into_iter()
        .filter(|(name, _)| named(name))
        .collect())
}

/// Literal but for `.*` (or `*`), which is anything.
fn matches(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern
        .split('*')
        .map(|p| p.strip_suffix('.').unwrap_or(p))
        .collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return pattern == name;
    };
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn list(args: List) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    for (name, topic) in matching(&mut client, args.topic.as_deref())? {
        if !(args.exclude_internal && topic.is_internal) {
            say!("{name}");
        }
    }
    Ok(())
}

fn describe(args: Describe) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let mut topics = matching(&mut client, args.topic.as_deref())?;
    topics.retain(|(_, topic)| !(args.exclude_internal && topic.is_internal));
    if topics.is_empty()
        && let Some(pattern) = &args.topic
        && !args.if_exists
    {
        return Err(format!("Topic '{pattern}' does not exist as expected"));
    }
    let names: Vec<String> = topics.iter().map(|(name, _)| name.clone()).collect();
    let configs = if names.is_empty() {
        Vec::new()
    } else {
        client
            .describe_configs(RESOURCE_TOPIC, &names)
            .map_err(text)?
    };
    let only_partitions = args.under_replicated_partitions || args.unavailable_partitions;
    for ((name, topic), configs) in topics.iter().zip(configs) {
        let own = configs.map_err(text)?.into_iter().filter(|c| c.is_own);
        let own: Vec<String> = own
            .map(|c| format!("{}={}", c.name, c.value.unwrap_or_default()))
            .collect();
        if args.topics_with_overrides && own.is_empty() {
            continue;
        }
        if !only_partitions {
            let replicas = topic.partitions.first().map_or(0, |p| p.replicas.len());
            say!(
                "Topic: {name}\tTopicId: {}\tPartitionCount: {}\tReplicationFactor: {replicas}\tConfigs: {}",
                topic.id,
                topic.partitions.len(),
                own.join(",")
            );
        }
        if args.topics_with_overrides {
            continue;
        }
        for (index, p) in topic.partitions.iter().enumerate() {
            let hidden = args.under_replicated_partitions && p.isr.len() >= p.replicas.len()
                || args.unavailable_partitions && p.leader >= 0;
            if hidden {
                continue;
            }
            let leader = match p.leader {
                ..0 => "none".to_string(),
                leader => leader.to_string(),
            };
            say!(
                "\tTopic: {name}\tPartition: {index}\tLeader: {leader}\tReplicas: {}\tIsr: {}\tElr: N/A\tLastKnownElr: N/A",
                joined(&p.replicas),
                joined(&p.isr)
            );
        }
    }
    Ok(())
}

fn alter(args: Alter) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let pattern = args.topic.join(",");
    let topics = matching(&mut client, Some(&pattern))?;
    if topics.is_empty() {
        if args.if_exists {
            return Ok(());
        }
        return Err(format!("Topic '{pattern}' does not exist as expected"));
    }
    let by_hand = match &args.replica_assignment {
        None => None,
        Some(text) => Some(text.split(',').map(nodes).collect::<Result<Vec<_>, _>>()?),
    };
    let mut failed = None;
    for (name, topic) in &topics {
        // As kafka-topics has it: those of the partitions that are there come first, and are passed over.
        let new = by_hand
            .as_ref()
            .map(|all| all.get(topic.partitions.len()..).unwrap_or(&[]));
        if let Err(error) = client.create_partitions(name, args.partitions, new) {
            failed = Some(format!("topic {name}: {error}"));
        }
    }
    failed.map_or(Ok(()), Err)
}

fn joined(nodes: &[i32]) -> String {
    let nodes: Vec<String> = nodes.iter().map(i32::to_string).collect();
    nodes.join(",")
}

fn delete(args: Delete) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let pattern = args.topic.join(",");
    let names: Vec<String> = matching(&mut client, Some(&pattern))?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    if names.is_empty() {
        if args.if_exists {
            return Ok(());
        }
        return Err(format!("Topic '{pattern}' does not exist as expected"));
    }
    let results = client.delete_topics(&names).map_err(text)?;
    let mut failed = None;
    for (name, result) in names.iter().zip(results) {
        match result {
            Ok(()) => say!("Deleted topic {name}."),
            Err(e) if args.if_exists && e.code() == Some(ErrorCode::UnknownTopicOrPartition) => {}
            Err(e) => failed = Some(format!("topic {name}: {e}")),
        }
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_literal_but_for_stars() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a.*", "ab", true),
            (".*", "anything", true),
            ("a*z", "abcz", true),
            ("a.*m.*z", "a-m-z", true),
            ("a.*m.*z", "a-z", false),
            ("a.b", "axb", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn kafkas_way_of_naming_the_action_is_understood() {
        let args = ["corelane", "topics", "--bootstrap-server", "x:1", "--list"];
        let args = kafka_style(args.iter().map(OsString::from).collect());
        assert_eq!(
            args,
            ["corelane", "topics", "list", "--bootstrap-server", "x:1"]
        );
    }
}
