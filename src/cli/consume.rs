//! `corelane consume`: by assignment; flags and output as of `kafka-console-consumer`.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use super::Outcome;
use super::connect::Connect;
use super::properties::{Properties, unescape};
use crate::batch::{Codecs, Record, TimestampType};
use crate::client::{Client, Consumer, ConsumerConfig, Fetched, StartAt};
use crate::model::Instant;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connect: Connect,
    /// Read this topic
    #[arg(long, short = 't')]
    topic: String,
    /// Only this partition; may be given more than once
    #[arg(long, short = 'p')]
    partition: Vec<i32>,
    /// Start at the oldest record
    #[arg(long)]
    from_beginning: bool,
    /// earliest, latest, a number (with --partition), or @MILLISECONDS for a time
    #[arg(
        long,
        short = 'o',
        conflicts_with = "from_beginning",
        allow_hyphen_values = true
    )]
    offset: Option<String>,
    /// Stop after so many records
    #[arg(long, short = 'c')]
    max_messages: Option<u64>,
    /// Stop if no record comes for so long, ms
    #[arg(long)]
    timeout_ms: Option<u64>,
    /// Stop at the end of every partition
    #[arg(long, short = 'e')]
    exit_at_end: bool,
    /// print.key, print.value, print.timestamp, print.offset, print.partition, print.headers, key.separator, line.separator, headers.separator, null.literal
    #[arg(long, visible_alias = "formatter-property", value_name = "KEY=VALUE")]
    property: Vec<String>,
    /// One JSON object a record
    #[arg(long)]
    json: bool,
    /// `json` is the same as --json; the class names of Kafka's default formatter are accepted
    #[arg(long)]
    formatter: Option<String>,
    /// Groups come later
    #[arg(long)]
    group: Option<String>,
    #[arg(long, hide = true)]
    isolation_level: Option<String>,
    #[arg(long, hide = true)]
    skip_message_on_error: bool,
}

struct Printer {
    json: bool,
    key: bool,
    value: bool,
    timestamp: bool,
    offset: bool,
    partition: bool,
    headers: bool,
    key_separator: String,
    line_separator: String,
    headers_separator: String,
    null_literal: String,
    line: Vec<u8>,
    codecs: Codecs,
}

impl Printer {
    fn of(mut p: Properties, json: bool) -> Result<Printer, String> {
        let text = |p: &mut Properties, key, default: &str| {
            p.remove(key).map_or(default.to_string(), |v| unescape(&v))
        };
        let printer = Printer {
            json,
            key: p.flag("print.key")?.unwrap_or(false),
            value: p.flag("print.value")?.unwrap_or(true),
            timestamp: p.flag("print.timestamp")?.unwrap_or(false),
            offset: p.flag("print.offset")?.unwrap_or(false),
            partition: p.flag("print.partition")?.unwrap_or(false),
            headers: p.flag("print.headers")?.unwrap_or(false),
            key_separator: text(&mut p, "key.separator", "\t"),
            line_separator: text(&mut p, "line.separator", "\n"),
            headers_separator: text(&mut p, "headers.separator", ","),
            null_literal: text(&mut p, "null.literal", "null"),
            line: Vec::new(),
            codecs: Codecs::default(),
        };
        p.finish("property")?;
        Ok(printer)
    }

    fn print(
        &mut self,
        out: &mut impl Write,
        topic: &str,
        partition: i32,
        time: TimestampType,
        record: &Record<'_>,
    ) -> std::io::Result<()> {
        self.line.clear();
        if self.json {
            json(&mut self.line, topic, partition, record);
        } else {
            self.text(partition, time, record);
        }
        out.write_all(&self.line)
    }

    /// The order of Kafka's DefaultMessageFormatter.
    fn text(&mut self, partition: i32, time: TimestampType, record: &Record<'_>) {
        let separator = self.key_separator.clone();
        let mut fields = 0;
        let mut next = |line: &mut Vec<u8>| {
            if fields > 0 {
                line.extend_from_slice(separator.as_bytes());
            }
            fields += 1;
        };
        let line = &mut self.line;
        if self.timestamp {
            next(line);
            let text = match (record.timestamp, time) {
                (-1, _) => "NO_TIMESTAMP".to_string(),
                (t, TimestampType::CreateTime) => format!("CreateTime:{t}"),
                (t, TimestampType::LogAppendTime) => format!("LogAppendTime:{t}"),
            };
            line.extend_from_slice(text.as_bytes());
        }
        if self.partition {
            next(line);
            line.extend_from_slice(format!("Partition:{partition}").as_bytes());
        }
        if self.offset {
            next(line);
            line.extend_from_slice(format!("Offset:{}", record.offset).as_bytes());
        }
        let null = self.null_literal.as_bytes();
        if self.headers {
            next(line);
            let mut any = false;
            for header in record.headers() {
                if any {
                    line.extend_from_slice(self.headers_separator.as_bytes());
                }
                any = true;
                line.extend_from_slice(header.key);
                line.push(b':');
                line.extend_from_slice(header.value.unwrap_or(null));
            }
            if !any {
                line.extend_from_slice(b"NO_HEADERS");
            }
        }
        if self.key {
            next(line);
            line.extend_from_slice(record.key.unwrap_or(null));
        }
        if self.value {
            next(line);
            line.extend_from_slice(record.value.unwrap_or(null));
        }
        line.extend_from_slice(self.line_separator.as_bytes());
    }
}

/// Bytes that are UTF-8 are a string, others `{"base64": ...}`.
fn json_bytes(bytes: Option<&[u8]>) -> serde_json::Value {
    match bytes.map(|b| (b, std::str::from_utf8(b))) {
        None => serde_json::Value::Null,
        Some((_, Ok(text))) => text.into(),
        Some((bytes, Err(_))) => serde_json::json!({ "base64": base64(bytes) }),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, b| bits << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            if i <= chunk.len() {
                text.push(DIGITS[(bits >> (18 - 6 * i) & 63) as usize] as char);
            } else {
                text.push('=');
            }
        }
    }
    text
}

fn json(line: &mut Vec<u8>, topic: &str, partition: i32, record: &Record<'_>) {
    let headers: Vec<_> = record
        .headers()
        .map(|h| serde_json::json!({ "key": String::from_utf8_lossy(h.key), "value": json_bytes(h.value) }))
        .collect();
    let value = serde_json::json!({
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": headers,
    });
    line.extend_from_slice(value.to_string().as_bytes());
    line.push(b'\n');
}

fn start(args: &Args) -> Result<StartAt, String> {
    if args.from_beginning {
        return Ok(StartAt::Beginning);
    }
    match args.offset.as_deref() {
        None | Some("latest") => Ok(StartAt::End),
        Some("earliest") => Ok(StartAt::Beginning),
        Some(text) => match text.strip_prefix('@') {
            Some(time) => time
                .parse()
                .map(StartAt::Time)
                .map_err(|_| format!("'{text}' is not a time in milliseconds")),
            None if args.partition.is_empty() => {
                Err("a numeric offset needs --partition".to_string())
            }
            None => match text.parse() {
                Ok(offset) if offset >= 0 => Ok(StartAt::Offset(offset)),
                _ => Err(format!(
                    "'{text}' is neither earliest nor latest nor an offset"
                )),
            },
        },
    }
}

pub fn run(args: Args) -> Outcome {
    if args.group.is_some() {
        return Err(
            "consumer groups are not supported by this tool yet: leave --group out".to_string(),
        );
    }
    let json = args.json || args.formatter.as_deref() == Some("json");
    if let Some(formatter) = &args.formatter
        && !json
        && !formatter.ends_with("DefaultMessageFormatter")
    {
        return Err(format!("formatter '{formatter}' is not supported"));
    }
    let mut printer = Printer::of(Properties::of(&args.property)?, json)?;
    let start = start(&args)?;
    let mut properties = args.connect.properties()?;
    let cluster = args.connect.cluster(&mut properties)?;
    let reset = match properties.remove("auto.offset.reset").as_deref() {
        Some("earliest") => Some(StartAt::Beginning),
        Some("none") => None,
        _ if args.from_beginning => Some(StartAt::Beginning),
        _ => Some(StartAt::End),
    };
    let config = ConsumerConfig {
        reset,
        ..Default::default()
    };
    properties.warn_unused();

    let mut client = Client::new(cluster.clone());
    let known = client
        .metadata(Some(&[&args.topic]))
        .map_err(|e| e.to_string())?;
    let topic = known
        .topics
        .get(&args.topic)
        .ok_or("the topic is missing in the answer")?;
    if topic.error.is_error() {
        return Err(format!("topic {}: {}", args.topic, topic.error.name()));
    }
    let mut partitions = args.partition.clone();
    if partitions.is_empty() {
        partitions = (0..topic.partitions.len() as i32).collect();
    }
    if let Some(p) = partitions
        .iter()
        .find(|p| usize::try_from(**p).map_or(true, |p| p >= topic.partitions.len()))
    {
        return Err(format!("topic {} has no partition {p}", args.topic));
    }
    let ends = match args.exit_at_end {
        true => Some(
            client
                .list_offsets(&args.topic, StartAt::End)
                .map_err(|e| e.to_string())?,
        ),
        false => None,
    };

    let mut consumer = Consumer::new(cluster, config);
    for partition in &partitions {
        consumer.assign(&args.topic, *partition, start);
    }
    let mut out = BufWriter::with_capacity(256 * 1024, std::io::stdout().lock());
    let mut printed = 0;
    let max = args.max_messages.unwrap_or(u64::MAX);
    let mut last = consumer.now();
    let result = loop {
        if printed >= max {
            break Ok(());
        }
        if let Some(ends) = &ends
            && !consumer.has_fetched()
            && at_end(&consumer, ends)
        {
            break Ok(());
        }
        let step = consumer.now().after_ms(100);
        match consumer.poll(step) {
            Ok(Some(fetched)) => {
                last = consumer.now();
                printed += match print(&fetched, &mut printer, &mut out, max - printed) {
                    Ok(n) => n,
                    Err(Stop::Record(error)) => break Err(error),
                    // The reader of our output went away.
                    Err(Stop::Output) => return Ok(ExitCode::SUCCESS),
                };
            }
            Ok(None) => {
                if out.flush().is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
                if let Some(ms) = args.timeout_ms
                    && consumer.now() >= Instant::after_ms(last, ms)
                {
                    break Ok(());
                }
            }
            Err(error) => break Err(error.to_string()),
        }
    };
    let _ = out.flush();
    eprintln!("Processed a total of {printed} messages");
    result.map(|()| ExitCode::SUCCESS)
}

fn at_end(consumer: &Consumer, ends: &[(i32, i64)]) -> bool {
    consumer.positions().all(|(_, partition, position, _)| {
        let end = ends
            .iter()
            .find(|(p, _)| *p == partition)
            .map_or(0, |(_, end)| *end);
        position >= end
    })
}

enum Stop {
    Record(String),
    Output,
}

fn print(
    fetched: &Fetched,
    printer: &mut Printer,
    out: &mut impl Write,
    max: u64,
) -> Result<u64, Stop> {
    let mut printed = 0;
    for batch in fetched.batches() {
        if batch.is_control() {
            continue;
        }
        let time = batch.timestamp_type();
        let records = batch
            .records_with(&mut printer.codecs)
            .map_err(|e| Stop::Record(e.to_string()))?;
        for record in &records {
            let record = record.map_err(|e| Stop::Record(e.to_string()))?;
            if record.offset < fetched.from {
                continue;
            }
            if printed == max {
                return Ok(printed);
            }
            printer
                .print(out, &fetched.topic, fetched.partition, time, &record)
                .map_err(|_| Stop::Output)?;
            printed += 1;
        }
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_follows_the_vectors_of_rfc_4648() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }
}
