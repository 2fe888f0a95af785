//! `corelane topics trim`: deletes the oldest records of partitions, after saying which they are.
//!
//! "Before a time" becomes one offset for each partition, that of the first record that is not older; whatever lies below goes, also
//! records that say that they are newer. Times come from clients and may be in any order, so what would go is read first, and told.

use std::io::{BufRead, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;

use super::connect::{Connect, client};
use super::out::say;
use crate::client::{Client, Consumer, ConsumerConfig, StartAt};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connect: Connect,
    #[arg(long)]
    topic: String,
    /// Only this partition
    #[arg(long)]
    partition: Option<i32>,
    /// What is older goes: 2026-12-01, 2026-12-01T10:30:00Z (UTC), milliseconds since 1970, or how long ago (90m, 12h, 7d)
    #[arg(long, value_name = "TIME", required_unless_present = "offset")]
    before: Option<String>,
    /// What is below this offset goes
    #[arg(long, requires = "partition", conflicts_with = "before")]
    offset: Option<i64>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What goes of one partition.
struct Cut {
    partition: i32,
    start: i64,
    /// Exclusive.
    to: i64,
    newest: Option<i64>,
}

pub fn run(args: &Args) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_millis() as i64);
    let before = match &args.before {
        Some(text) => Some(parse_time(text, now)?),
        None => None,
    };
    let mut client = client(&args.connect)?;
    let cuts = plan(args, before, &mut client)?;
    if cuts.is_empty() {
        say!("Nothing is older; nothing is deleted.");
        return Ok(());
    }
    let mut later = false;
    for cut in &cuts {
        let newest = cut.newest.map_or("none".to_string(), show_time);
        say!(
            "{}-{}: offsets [{}..{}), {} of them; the newest is of {newest}",
            args.topic,
            cut.partition,
            cut.start,
            cut.to,
            cut.to - cut.start
        );
        later |= before.is_some_and(|before| cut.newest.is_some_and(|newest| newest >= before));
    }
    if later {
        say!(
            "WARNING: some of these say that they are not older: the times in the partition are not in order."
        );
    }
    if args.dry_run {
        return Ok(());
    }
    if !args.yes && !confirmed()? {
        return Err("nothing was deleted".to_string());
    }
    let wanted: Vec<(i32, i64)> = cuts.iter().map(|cut| (cut.partition, cut.to)).collect();
    let mut failed = None;
    for (partition, result) in client
        .delete_records(&args.topic, &wanted)
        .map_err(|e| e.to_string())?
    {
        match result {
            Ok(start) => say!("{}-{partition} starts at {start} now.", args.topic),
            Err(error) => failed = Some(format!("{}-{partition}: {error}", args.topic)),
        }
    }
    failed.map_or(Ok(()), Err)
}

fn plan(args: &Args, before: Option<i64>, client: &mut Client) -> Result<Vec<Cut>, String> {
    let mut ask = |at| {
        client
            .list_offsets(&args.topic, at)
            .map_err(|e| format!("topic {}: {e}", args.topic))
    };
    let starts = ask(StartAt::Beginning)?;
    let ends = ask(StartAt::End)?;
    let found = match before {
        Some(time) => ask(StartAt::Time(time))?,
        None => Vec::new(),
    };
    let of = |all: &[(i32, i64)], partition: i32| {
        let found = all.iter().find(|(p, _)| *p == partition);
        found.map_or(-1, |(_, offset)| *offset)
    };
    if let Some(partition) = args.partition
        && of(&starts, partition) < 0
    {
        return Err(format!("{} has no partition {partition}", args.topic));
    }
    let mut cuts = Vec::new();
    for (partition, start) in &starts {
        if args.partition.is_some_and(|only| only != *partition) {
            continue;
        }
        let end = of(&ends, *partition);
        // Where no record is as new, all are older.
        let to = match (args.offset, of(&found, *partition)) {
            (Some(offset), _) => offset,
            (None, -1) => end,
            (None, offset) => offset,
        };
        if to > end {
            return Err(format!("{}-{partition} ends at {end}", args.topic));
        }
        if to > *start {
            cuts.push(Cut {
                partition: *partition,
                start: *start,
                to,
                newest: None,
            });
        }
    }
    for cut in &mut cuts {
        cut.newest = newest(args, cut)?;
    }
    Ok(cuts)
}

/// The largest timestamp of what would go.
fn newest(args: &Args, cut: &Cut) -> Result<Option<i64>, String> {
    let mut properties = args.connect.properties()?;
    let cluster = args.connect.cluster(&mut properties)?;
    let mut consumer = Consumer::new(cluster, ConsumerConfig::default());
    consumer.assign(&args.topic, cut.partition, StartAt::Offset(cut.start));
    let bar = ProgressBar::new((cut.to - cut.start) as u64).with_message("reading what would go");
    let (mut at, mut newest) = (cut.start, -1);
    while at < cut.to {
        let until = consumer.now().after_ms(30_000);
        let fetched = consumer.poll(until).map_err(|e| e.to_string())?;
        let Some(fetched) = fetched else {
            let why = consumer.last_error().unwrap_or_default();
            return Err(format!("what would go cannot be read from {at} on: {why}"));
        };
        for batch in fetched.batches() {
            if batch.base_offset() >= cut.to {
                break;
            }
            if batch.last_offset() < cut.to {
                newest = newest.max(batch.max_timestamp());
                continue;
            }
            // The border goes through it.
            for record in &batch.records().map_err(|e| e.to_string())? {
                let record = record.map_err(|e| e.to_string())?;
                if record.offset < cut.to {
                    newest = newest.max(record.timestamp);
                }
            }
        }
        at = fetched.end;
        bar.set_position((at.min(cut.to) - cut.start) as u64);
    }
    bar.finish_and_clear();
    Ok((newest >= 0).then_some(newest))
}

fn confirmed() -> Result<bool, String> {
    if !std::io::stdin().is_terminal() {
        return Err("nothing was deleted: say --yes, there is nobody to ask".to_string());
    }
    let mut stdout = std::io::stdout();
    write!(stdout, "Delete them? Type yes: ").map_err(|e| e.to_string())?;
    stdout.flush().map_err(|e| e.to_string())?;
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|e| e.to_string())?;
    Ok(line.trim() == "yes")
}

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since 1970; see the flag's help.
fn parse_time(text: &str, now: i64) -> Result<i64, String> {
    let wrong = || {
        format!(
            "'{text}' is no time: 2026-12-01, 2026-12-01T10:30:00Z, milliseconds since 1970, or 90m, 12h, 7d"
        )
    };
    if let Ok(ms) = text.parse::<i64>() {
        return Ok(ms);
    }
    let units = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", DAY_MS),
    ];
    for (unit, ms) in units {
        if let Some(count) = text.strip_suffix(unit).and_then(|n| n.parse::<i64>().ok()) {
            return count
                .checked_mul(ms)
                .filter(|ago| *ago >= 0)
                .map(|ago| now - ago)
                .ok_or_else(wrong);
        }
    }
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, by: char| -> Option<Vec<i64>> {
        text.split(by)
            .map(|part| part.parse::<u32>().ok().map(i64::from))
            .collect()
    };
    let (Some(date), Some(time)) = (numbers(date, '-'), numbers(time.trim_end_matches('Z'), ':'))
    else {
        return Err(wrong());
    };
    let ([year, month, day], [hour, minute, rest @ ..]) = (&date[..], &time[..]) else {
        return Err(wrong());
    };
    let second = match rest {
        [] => 0,
        [second] => *second,
        _ => return Err(wrong()),
    };
    let right = (1970..10_000).contains(year)
        && (1..=12).contains(month)
        && (1..=31).contains(day)
        && *hour < 24
        && *minute < 60
        && second < 60;
    if !right {
        return Err(wrong());
    }
    Ok(days(*year, *month, *day) * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000)
}

/// Days from 1970-01-01 (H. Hinnant, chrono-compatible low-level date algorithms: days_from_civil).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// UTC, to the millisecond (the inverse of [`days`], of the same source).
fn show_time(ms: i64) -> String {
    let (day, in_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let shifted = day + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (seconds, ms) = (in_day / 1000, in_day % 1000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        // Of `date -u -d ... +%s`.
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2026-12-01", 1_796_083_200),
            ("2026-12-01T10:30", 1_796_121_000),
            ("2026-12-01 10:30:05", 1_796_121_005),
            ("2100-03-01", 4_107_542_400),
        ] {
            assert_eq!(parse_time(text, 0), Ok(seconds * 1000), "{text}");
            let shown = show_time(seconds * 1000);
            assert_eq!(
                parse_time(shown.trim_end_matches(".000Z"), 0),
                Ok(seconds * 1000)
            );
        }
        assert_eq!(show_time(1_796_121_005_007), "2026-12-01T10:30:05.007Z");
        assert_eq!(parse_time("1234567890123", 0), Ok(1_234_567_890_123));
        assert_eq!(parse_time("2h", 10_000_000), Ok(2_800_000));
        assert_eq!(parse_time("500ms", 1000), Ok(500));
        for wrong in [
            "",
            "x",
            "2026-13-01",
            "2026-12",
            "2026-12-01T25:00",
            "-3d",
            "99999999999999d",
        ] {
            assert!(parse_time(wrong, 0).is_err(), "{wrong}");
        }
    }
}
