//! `corelane shards`: what each shard has to do, and partitions moved between the shards of a process.
//!
//! All by Kafka's own requests: who leads (Metadata), how large the logs are (DescribeLogDirs), how fast they grow (ListOffsets and
//! DescribeLogDirs twice), and AlterPartitionReassignments. A move inside a process copies nothing and takes milliseconds.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;

use super::Outcome;
use super::connect::{Connect, client};
use super::out::say;
use crate::client::admin::Named;
use crate::client::cluster::Metadata;
use crate::client::{Client, Error};
use crate::model::NodeId;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Action {
    /// Show the load of each shard (the default)
    List(List),
    /// Move one partition to another shard of its process
    Move(Move),
    /// Spread the partitions evenly over the shards of each process, by their load
    Rebalance(Rebalance),
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    watch: Watch,
}

#[derive(clap::Args)]
struct Watch {
    /// How long to watch, seconds: rates are of this time
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
}

#[derive(clap::Args)]
struct Move {
    #[command(flatten)]
    connect: Connect,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    partition: i32,
    /// The node that shall lead it: another shard of the process that does now
    #[arg(long, value_name = "NODE")]
    to: i32,
}

#[derive(clap::Args)]
struct Rebalance {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    watch: Watch,
    /// Only say what would move
    #[arg(long)]
    dry_run: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds between 0.1 and 3600".to_string()),
    }
}

pub fn run(args: Args) -> Outcome {
    let action = args.action.unwrap_or(Action::List(args.list));
    let result = match action {
        Action::List(args) => list(&args),
        Action::Move(args) => move_one(&args),
        Action::Rebalance(args) => rebalance(&args),
    };
    result.map(|()| ExitCode::SUCCESS)
}

fn text(error: Error) -> String {
    error.to_string()
}

/// What one partition costs its leader.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Load {
    bytes: i64,
    records_per_s: f64,
    bytes_per_s: f64,
}

/// The partitions of each node that leads any.
type Loads = BTreeMap<i32, BTreeMap<Named, Load>>;

fn leaders(metadata: &Metadata) -> BTreeMap<i32, Vec<Named>> {
    let mut led: BTreeMap<i32, Vec<Named>> = BTreeMap::new();
    for (name, topic) in &metadata.topics {
        for (index, partition) in (0..).zip(&topic.partitions) {
            if partition.leader >= 0 {
                let named = (name.clone(), index);
                led.entry(partition.leader).or_default().push(named);
            }
        }
    }
    led
}

type Seen = BTreeMap<Named, i64>;

fn ends(client: &mut Client, led: &BTreeMap<i32, Vec<Named>>) -> Result<Seen, String> {
    let mut all = Seen::new();
    for (node, partitions) in led {
        all.extend(client.ends(*node, partitions).map_err(text)?);
    }
    Ok(all)
}

fn sizes(client: &mut Client, led: &BTreeMap<i32, Vec<Named>>) -> Result<Seen, String> {
    let mut all = Seen::new();
    for node in led.keys() {
        all.extend(client.log_sizes(*node).map_err(text)?);
    }
    Ok(all)
}

fn watch(client: &mut Client, metadata: &Metadata, seconds: f64) -> Result<Loads, String> {
    client.adopt(metadata);
    let led = leaders(metadata);
    let start = Instant::now();
    let before = (ends(client, &led)?, sizes(client, &led)?);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let after = (ends(client, &led)?, sizes(client, &led)?);
    let passed = start.elapsed().as_secs_f64();
    // What shrank was cut by retention, which is no load.
    let rate = |before: &Seen, after: &Seen, of: &Named| match (before.get(of), after.get(of)) {
        (Some(before), Some(after)) => (after - before).max(0) as f64 / passed,
        (Some(_) | None, _) => 0.0,
    };
    let mut loads = Loads::new();
    for (node, partitions) in led {
        let of = partitions.into_iter().map(|named| {
            let load = Load {
                bytes: after.1.get(&named).copied().unwrap_or(0),
                records_per_s: rate(&before.0, &after.0, &named),
                bytes_per_s: rate(&before.1, &after.1, &named),
            };
            (named, load)
        });
        loads.insert(node, of.collect());
    }
    Ok(loads)
}

fn list(args: &List) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let metadata = client.metadata(None).map_err(text)?;
    let loads = watch(&mut client, &metadata, args.watch.seconds)?;
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    let names = [
        "node",
        "process",
        "shard",
        "address",
        "partitions",
        "MiB",
        "records/s",
        "MB/s",
        "share",
    ];
    table.set_header(names);
    let none = BTreeMap::new();
    let total: f64 = loads.values().flatten().map(|(_, l)| l.bytes_per_s).sum();
    for (id, node) in &metadata.nodes {
        let of = loads.get(id).unwrap_or(&none);
        let sum = |of_load: fn(&Load) -> f64| of.values().map(of_load).sum::<f64>();
        let (bytes_per_s, place) = (sum(|l| l.bytes_per_s), NodeId(*id));
        let share = match total > 0.0 {
            true => format!("{:.0} %", 100.0 * bytes_per_s / total),
            false => "-".to_string(),
        };
        table.add_row([
            id.to_string(),
            place.process().to_string(),
            place.shard().0.to_string(),
            format!("{}:{}", node.host, node.port),
            of.len().to_string(),
            format!("{:.1}", sum(|l| l.bytes as f64) / (1 << 20) as f64),
            format!("{:.0}", sum(|l| l.records_per_s)),
            format!("{:.2}", bytes_per_s / 1e6),
            share,
        ]);
    }
    for number in 4..names.len() {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    say!("{table}");
    Ok(())
}

fn move_one(args: &Move) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let metadata = client.metadata(Some(&[&args.topic])).map_err(text)?;
    let topic = metadata.topics.get(&args.topic);
    let topic = topic.filter(|topic| !topic.error.is_error());
    let topic = topic.ok_or_else(|| format!("there is no topic {}", args.topic))?;
    let index = usize::try_from(args.partition).ok();
    let partition = index.and_then(|index| topic.partitions.get(index));
    let partition =
        partition.ok_or_else(|| format!("{} has no partition {}", args.topic, args.partition))?;
    let target = NodeId(args.to);
    let replicas: Vec<i32> = partition
        .replicas
        .iter()
        .map(|node| match NodeId(*node).process() == target.process() {
            true => args.to,
            false => *node,
        })
        .collect();
    if !replicas.contains(&args.to) {
        return Err(format!(
            "{}-{} has no replica in process {}: partitions move between the shards of a process",
            args.topic,
            args.partition,
            target.process()
        ));
    }
    let named = (args.topic.clone(), args.partition);
    apply(&mut client, &[(named, partition.leader, args.to, replicas)])
}

type Planned = (Named, i32, i32, Vec<i32>);

fn apply(client: &mut Client, moves: &[Planned]) -> Result<(), String> {
    let asked: Vec<(Named, Vec<i32>)> = moves
        .iter()
        .map(|(named, _, _, replicas)| (named.clone(), replicas.clone()))
        .collect();
    let results = client.reassign(&asked).map_err(text)?;
    let mut failed = None;
    for (((topic, partition), from, to, _), result) in moves.iter().zip(results) {
        match result {
            Ok(()) => say!("Moved {topic}-{partition} from node {from} to node {to}."),
            Err(error) => failed = Some(format!("{topic}-{partition}: {error}")),
        }
    }
    failed.map_or(Ok(()), Err)
}

fn rebalance(args: &Rebalance) -> Result<(), String> {
    let mut client = client(&args.connect)?;
    let metadata = client.metadata(None).map_err(text)?;
    let loads = watch(&mut client, &metadata, args.watch.seconds)?;
    let mut processes: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for node in metadata.nodes.keys() {
        let process = NodeId(*node).process();
        processes.entry(process).or_default().push(*node);
    }
    let mut moves: Vec<Planned> = Vec::new();
    for nodes in processes.values() {
        for (named, from, to) in plan(nodes, &loads) {
            let topic = &metadata.topics[&named.0];
            let of = &topic.partitions[named.1 as usize];
            let replicas = of.replicas.iter();
            let replicas = replicas.map(|node| if *node == from { to } else { *node });
            let replicas = replicas.collect();
            moves.push((named, from, to, replicas));
        }
    }
    if moves.is_empty() {
        say!("The partitions are spread evenly; nothing moves.");
        return Ok(());
    }
    if args.dry_run {
        for ((topic, partition), from, to, _) in &moves {
            say!("{topic}-{partition} would move from node {from} to node {to}.");
        }
        return Ok(());
    }
    apply(&mut client, &moves)
}

/// A partition that does nothing still costs something: so spreads what is idle.
const IDLE_BYTES_PER_S: f64 = 1000.0;

/// A record costs about as much as so many bytes.
const RECORD_BYTES: f64 = 100.0;

fn weight(load: &Load) -> f64 {
    IDLE_BYTES_PER_S + load.bytes_per_s + RECORD_BYTES * load.records_per_s
}

/// A move that spares the most loaded shard less than this part of what a shard carries on average is not made.
const GAIN_MIN: f64 = 0.02;

/// Moves that make the shards of one process carry as much as each other: from the most to the least loaded shard goes the partition that
/// makes the most loaded one lightest, as long as there is one. Each partition moves once at most.
fn plan(nodes: &[i32], loads: &Loads) -> Vec<(Named, i32, i32)> {
    let none = BTreeMap::new();
    let mut held: BTreeMap<i32, Vec<(&Named, f64)>> = BTreeMap::new();
    for node in nodes {
        let of = loads.get(node).unwrap_or(&none);
        let mut of: Vec<(&Named, f64)> = of.iter().map(|(n, load)| (n, weight(load))).collect();
        of.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        held.insert(*node, of);
    }
    let mut totals: BTreeMap<i32, f64> = held
        .iter()
        .map(|(node, of)| (*node, of.iter().map(|(_, weight)| weight).sum()))
        .collect();
    let average = totals.values().sum::<f64>() / totals.len().max(1) as f64;
    let mut moves = Vec::new();
    loop {
        let most = totals.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let least = totals.iter().min_by(|a, b| a.1.total_cmp(b.1));
        let (Some((from, high)), Some((to, low))) = (most, least) else {
            return moves;
        };
        let (from, to, gap) = (*from, *to, high - low);
        let of = held.get_mut(&from).expect("every node has its list");
        // What the most loaded shard is spared: a heavier one than the gap would only change who is behind.
        let gain = |weight: f64| weight.min(gap - weight);
        let best = (0..of.len()).max_by(|a, b| gain(of[*a].1).total_cmp(&gain(of[*b].1)));
        let Some(index) = best.filter(|index| gain(of[*index].1) > GAIN_MIN * average) else {
            return moves;
        };
        let (named, weight) = of.remove(index);
        *totals.get_mut(&from).expect("it is there") -= weight;
        *totals.get_mut(&to).expect("it is there") += weight;
        moves.push((named.clone(), from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(nodes: &[(i32, &[f64])]) -> Loads {
        let of = |(node, rates): &(i32, &[f64])| {
            let partitions = (0..).zip(rates.iter()).map(|(index, rate)| {
                let load = Load {
                    bytes_per_s: *rate,
                    ..Load::default()
                };
                ((format!("t{node}"), index), load)
            });
            (*node, partitions.collect())
        };
        nodes.iter().map(of).collect()
    }

    fn after(nodes: &[i32], loads: &Loads) -> (usize, Vec<f64>) {
        let mut now = loads.clone();
        let moves = plan(nodes, loads);
        for (named, from, to) in &moves {
            let load = now
                .get_mut(from)
                .unwrap()
                .remove(named)
                .expect("it is there");
            now.entry(*to).or_default().insert(named.clone(), load);
        }
        let sum = |node: &i32| {
            now.get(node)
                .into_iter()
                .flatten()
                .map(|(_, l)| l.bytes_per_s)
        };
        let sums = nodes.iter().map(|node| sum(node).sum());
        (moves.len(), sums.collect())
    }

    #[test]
    fn a_shard_that_is_new_takes_its_part() {
        let idle = loads(&[(0, &[0.0; 8])]);
        let (moved, _) = after(&[0, 1], &idle);
        assert_eq!(moved, 4);
        let busy = loads(&[(0, &[1e6; 8]), (1, &[1e6; 4])]);
        let (moved, sums) = after(&[0, 1, 2], &busy);
        assert_eq!((moved, sums), (4, vec![4e6; 3]));
    }

    #[test]
    fn one_hot_partition_gets_a_shard_for_itself() {
        let hot = loads(&[(0, &[1e8, 1e6, 1e6, 1e6]), (1, &[])]);
        let (_, sums) = after(&[0, 1], &hot);
        assert_eq!(sums, [3e6, 1e8]);
    }

    #[test]
    fn what_is_even_stays() {
        for nodes in [
            loads(&[(0, &[1e6, 1e6]), (1, &[1e6, 1e6])]),
            loads(&[(0, &[1e6]), (1, &[])]),
            loads(&[(0, &[1e6, 1.05e6]), (1, &[1e6, 1e6])]),
            loads(&[]),
        ] {
            assert!(plan(&[0, 1], &nodes).is_empty(), "{nodes:?}");
        }
    }
}
