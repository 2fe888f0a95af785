//! `corelane demo`: one command that shows what the broker does and checks that it does it right.
//!
//! It starts this binary's own `serve` in a temporary folder, sends records of several sizes with every acks level, reads every one
//! back and compares it, kills the broker with SIGKILL while it is written to and looks whether anything acknowledged is gone, and
//! measures throughput and latency. Whatever is off ends it with exit code 1, and the folder with the broker's log stays.

mod broker;
mod records;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use self::broker::Broker;
use self::records::Payload;
use self::workload::{Delivery, Topic, ends, produce, produce_until, verify};
use super::Outcome;
use super::perf::report::{Report, grouped, time};

#[derive(clap::Args)]
pub struct Args {
    /// Shards of the broker; unset, one for each CPU that this process may run on
    #[arg(long)]
    shards: Option<u16>,
    /// Records in all, about
    #[arg(long, default_value_t = 3_000_000)]
    records: u64,
    /// Where to put the temporary folder, on the disk that is to be shown
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Leave the folder
    #[arg(long)]
    keep: bool,
}

/// Sizes of records, and the share of all records that has it, in thousandths.
const SIZES: &[(&str, usize, u64)] = &[
    ("100b", 100, 700),
    ("1k", 1024, 180),
    ("16k", 16 * 1024, 6),
    ("500k", 500 * 1024, 0),
];

/// Of the largest size.
const LARGE_RECORDS: u64 = 60;

/// Of the shares, what goes to each round in which the broker is killed.
const CRASH_SHARE: u64 = 57;

const ACKS: [(i16, &str); 3] = [(0, "0"), (1, "1"), (-1, "all")];

pub fn run(args: Args) -> Outcome {
    let begin = Instant::now();
    let mut broker = Broker::start(args.dir.as_deref(), args.shards)?;
    println!("{}", broker.describe());
    let result = show(&args, &mut broker);
    match result {
        Ok(()) => {
            if args.keep {
                println!("The data is in {}.", broker.folder().display());
            } else {
                broker.remove()?;
            }
            println!(
                "\nAll is well, in {:.0} s.",
                begin.elapsed().as_secs_f64().ceil()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => Err(format!(
            "{}{why}\nThe end of the broker's log, all of which is in {}:\n{}",
            full_disk(broker.folder()).unwrap_or_default(),
            broker.folder().display(),
            broker.log_tail()
        )),
    }
}

/// Space that the demo may need in one step, bytes.
const SPACE_BYTES: u64 = 64 << 20;

/// The likely reason when the disk has no room left: then requests are refused until they time out.
fn full_disk(folder: &std::path::Path) -> Option<String> {
    let info = rustix::fs::statvfs(folder).ok()?;
    let free = info.f_bavail * info.f_frsize;
    (free < SPACE_BYTES).then(|| {
        format!(
            "the disk of {} is full ({} MiB are free): make room, or choose another one with --dir. What came of it: ",
            folder.display(),
            free >> 20
        )
    })
}

fn show(args: &Args, broker: &mut Broker) -> Result<(), String> {
    let payload = Payload::new();
    let sent = every_acks_level(args, broker, &payload)?;
    killed(args, broker, &payload)?;
    let bar = bar("read again", sent.iter().map(|(_, records)| records).sum());
    read_back(&sent, broker, &payload, &bar)?;
    println!("   everything of step 1 is there as well, unchanged");
    figures(broker)?;
    let stopped = broker.stop()?;
    println!("\nSIGTERM: stopped cleanly in {} ms.", stopped.as_millis());
    Ok(())
}

/// Everything that is sent arrives once, in order and unchanged. Gives what was sent.
fn every_acks_level(
    args: &Args,
    broker: &Broker,
    payload: &Payload,
) -> Result<Vec<(Topic, u64)>, String> {
    println!(
        "\n1. Send records of 100 B to 500 KiB with every acks level, read all back, compare every byte"
    );
    let partitions = broker.partitions();
    let mut sent = Vec::new();
    for (acks, acks_name) in ACKS {
        let topics = SIZES.iter().map(|(size_name, bytes, share)| {
            let records = match share {
                0 => LARGE_RECORDS,
                share => (args.records * share / 1000 / ACKS.len() as u64).max(1),
            };
            let topic = Topic {
                name: format!("demo-acks-{acks_name}-{size_name}"),
                acks,
                record_bytes: *bytes,
                partitions,
            };
            (topic, records)
        });
        let topics: Vec<(Topic, u64)> = topics.collect();
        let (records, megabytes) = amount(&topics);
        let bar = bar(&format!("acks={acks_name}"), records);
        let begin = Instant::now();
        for (topic, records) in &topics {
            broker.create(topic)?;
            produce(&broker.cluster(), topic, 0, *records, payload, &bar)?;
        }
        bar.finish_and_clear();
        println!(
            "   acks={acks_name:<4} sent {} records, {} MB, in {:.1} s",
            grouped(records),
            grouped(megabytes),
            begin.elapsed().as_secs_f64()
        );
        sent.extend(topics);
    }
    let (records, megabytes) = amount(&sent);
    let bar = bar("read back", records);
    let begin = Instant::now();
    read_back(&sent, broker, payload, &bar)?;
    println!(
        "   read back {} records, {} MB, in {:.1} s: each is there once, in order, unchanged",
        grouped(records),
        grouped(megabytes),
        begin.elapsed().as_secs_f64()
    );
    Ok(sent)
}

/// Records and megabytes.
fn amount(topics: &[(Topic, u64)]) -> (u64, u64) {
    let bytes = topics.iter().map(|(t, n)| n * t.record_bytes as u64);
    (
        topics.iter().map(|(_, n)| n).sum(),
        bytes.sum::<u64>() / 1_000_000,
    )
}

fn read_back(
    sent: &[(Topic, u64)],
    broker: &Broker,
    payload: &Payload,
    bar: &ProgressBar,
) -> Result<(), String> {
    for (topic, records) in sent {
        let found = verify(&broker.cluster(), topic, Some(*records), payload, bar)?;
        let counts: Vec<u64> = found.iter().map(|p| p.run(0)).collect();
        let expected = topic.split(*records);
        if counts != expected {
            return Err(format!(
                "{}: sent {expected:?} records by partition, found {counts:?}",
                topic.name
            ));
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Nothing that was acknowledged is gone after a SIGKILL.
fn killed(args: &Args, broker: &mut Broker, payload: &Payload) -> Result<(), String> {
    println!(
        "\n2. Kill the broker with SIGKILL while it is written to, start it again, read everything"
    );
    for (acks, acks_name) in [(-1, "all"), (1, "1")] {
        let topic = Topic {
            name: format!("demo-crash-acks-{acks_name}"),
            acks,
            record_bytes: 200,
            partitions: broker.partitions(),
        };
        broker.create(&topic)?;
        let records = (args.records * CRASH_SHARE / 1000).max(1000);
        let progress = bar(&format!("acks={acks_name}"), records);
        let cluster = broker.cluster();
        let before = produce_until(&cluster, &topic, records, payload, &progress, || {
            broker.kill()
        })?;
        let again = Instant::now();
        broker.restart()?;
        ends(&broker.cluster(), &topic)?;
        let back = again.elapsed();
        let found = verify(&broker.cluster(), &topic, None, payload, &bar("read", 0))?;
        let gone = missing(&before, &found.iter().map(|p| p.run(0)).collect::<Vec<_>>());
        if gone > 0 {
            return Err(format!(
                "acks={acks_name}: {gone} ACKNOWLEDGED RECORDS ARE GONE after SIGKILL"
            ));
        }
        // And it goes on: the same topic takes more, behind what is there.
        produce(
            &broker.cluster(),
            &topic,
            1,
            records / 4,
            payload,
            &progress,
        )?;
        progress.finish_and_clear();
        let after = verify(&broker.cluster(), &topic, None, payload, &bar("read", 0))?;
        for (partition, (now, then)) in after.iter().zip(&found).enumerate() {
            let more = topic.split(records / 4)[partition];
            if now.run(0) != then.run(0) || now.run(1) != more {
                return Err(format!(
                    "{}-{partition}: {} records of before the kill and {} of after it, not {} and {more}",
                    topic.name,
                    now.run(0),
                    now.run(1),
                    then.run(0),
                ));
            }
        }
        let acked: u64 = before.iter().map(|d| d.acked).sum();
        let sent: u64 = before.iter().map(|d| d.sent).sum();
        let kept: u64 = found.iter().map(|p| p.run(0)).sum();
        println!(
            "   acks={acks_name:<4} killed with {} records acknowledged and {} on their way; serving again after {} ms",
            grouped(acked),
            grouped(sent - acked),
            back.as_millis()
        );
        println!(
            "             all {} acknowledged are there, {} of the others too; {} more sent, all there",
            grouped(acked),
            grouped(kept - acked),
            grouped(records / 4)
        );
    }
    Ok(())
}

/// Acknowledged records that are not there.
fn missing(before: &[Delivery], found: &[u64]) -> u64 {
    before
        .iter()
        .zip(found)
        .map(|(delivery, found)| delivery.acked_end.saturating_sub(*found))
        .sum()
}

/// What the broker can do, with a generator that costs almost nothing.
fn figures(broker: &Broker) -> Result<(), String> {
    println!("\n3. Throughput and latency, with batches that are encoded beforehand");
    let progress = bar("measure", 8);
    let partitions = broker.partitions().to_string();
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "acks",
        "100 B records",
        "1 KiB records",
        "at 20,000 records/s: p50",
        "p99",
        "p99.9",
        "max",
    ]);
    for (_, acks) in ACKS {
        let perf = |record_bytes: &str, more: &[&str]| -> Result<Report, String> {
            let topic = format!("demo-perf-{acks}-{record_bytes}");
            let mut argv = vec![
                "--bootstrap-server",
                broker.bootstrap(),
                "--topic",
                &topic,
                "--create",
                "--partitions",
                &partitions,
                "--connections",
                "4",
                "--acks",
                acks,
                "--record-bytes",
                record_bytes,
            ];
            argv.extend_from_slice(more);
            let report = super::perf::produce(&argv)?;
            progress.inc(1);
            match report.first_error {
                None => Ok(report),
                Some(error) => Err(format!("acks={acks}: a batch was refused: {error}")),
            }
        };
        let full = [
            "--batch-bytes",
            "16384",
            "--seconds",
            "1.5",
            "--warmup",
            "0.5",
        ];
        let throughput = |report: &Report| {
            format!(
                "{}/s, {:.0} MB/s",
                grouped(report.per_second(report.records)),
                report.per_second(report.bytes) as f64 / 1e6
            )
        };
        let mut row = vec![
            acks.to_string(),
            throughput(&perf("100", &full)?),
            throughput(&perf("1024", &full)?),
        ];
        if acks == "0" {
            row.extend(["nothing is answered", "", "", ""].map(String::from));
        } else {
            let rate = [
                "--records-per-batch",
                "10",
                "--rate",
                "20000",
                "--seconds",
                "2",
                "--warmup",
                "0.5",
            ];
            let report = perf("100", &rate)?;
            let times = [report.p50_us, report.p99_us, report.p999_us, report.max_us];
            row.extend(times.map(time));
        }
        table.add_row(row);
    }
    progress.finish_and_clear();
    for line in table.to_string().lines() {
        println!("   {line}");
    }
    println!(
        "   acks=1 is answered when the write completed, acks=all when it is flushed to the device as well."
    );
    Ok(())
}

/// A bar on the terminal; nothing elsewhere.
fn bar(what: &str, length: u64) -> ProgressBar {
    let bar = match length {
        0 => ProgressBar::hidden(),
        length => ProgressBar::new(length),
    };
    let style = ProgressStyle::with_template("   {msg:<12} {wide_bar} {human_pos}/{human_len}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
