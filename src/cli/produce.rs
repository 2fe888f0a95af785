//! `corelane produce`: flags and line format as of `kafka-console-producer`.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use super::Outcome;
use super::connect::Connect;
use super::properties::{Properties, unescape};
use crate::batch::{Codec, Compression};
use crate::client::{Delivered, Error, Message, Producer, ProducerConfig};
use crate::model::ErrorCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connect: Connect,
    /// Send to this topic; it is created if the broker creates topics
    #[arg(long, short = 't')]
    topic: String,
    /// Send to this partition only
    #[arg(long, short = 'p')]
    partition: Option<i32>,
    /// When a record counts as sent: 0, 1 or all
    #[arg(
        long,
        visible_alias = "request-required-acks",
        default_value = "all",
        allow_hyphen_values = true
    )]
    acks: String,
    /// none, gzip, snappy, lz4 or zstd; gzip if nothing is named
    #[arg(long, alias = "compression-type", num_args = 0..=1, default_missing_value = "gzip", default_value = "none")]
    compression_codec: String,
    /// Bytes of a batch
    #[arg(long, alias = "max-partition-memory-bytes", default_value_t = 16384)]
    batch_size: usize,
    /// How long a record waits for others, ms
    #[arg(long, visible_alias = "timeout", default_value_t = 5)]
    linger_ms: u64,
    /// Send each record by itself and wait for it
    #[arg(long)]
    sync: bool,
    /// parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, null.marker, ignore.error
    #[arg(long, visible_alias = "reader-property", value_name = "KEY=VALUE")]
    property: Vec<String>,
    /// A header of every record; may be given more than once
    #[arg(long, short = 'H', value_name = "KEY=VALUE")]
    header: Vec<String>,
    /// Wait this long for metadata and for room, ms
    #[arg(long, default_value_t = 60_000)]
    max_block_ms: u64,
    /// Records waiting or in flight, bytes
    #[arg(long, default_value_t = 32 * 1024 * 1024)]
    max_memory_bytes: usize,
    #[arg(long, hide = true)]
    message_send_max_retries: Option<u32>,
    #[arg(long, hide = true)]
    retry_backoff_ms: Option<u64>,
    #[arg(long, hide = true)]
    request_timeout_ms: Option<u64>,
    #[arg(long, hide = true)]
    line_reader: Option<String>,
}

/// How a line becomes a record.
#[derive(Clone, Debug, PartialEq)]
struct LineFormat {
    parse_key: bool,
    key_separator: String,
    parse_headers: bool,
    headers_delimiter: String,
    headers_separator: String,
    headers_key_separator: String,
    null_marker: Option<String>,
    ignore_error: bool,
}

type Header<'a> = (&'a str, Option<&'a [u8]>);

/// Headers, key and value of a line.
type Line<'a> = (Vec<Header<'a>>, Option<&'a [u8]>, Option<&'a [u8]>);

impl LineFormat {
    fn of(mut p: Properties) -> Result<LineFormat, String> {
        let text = |p: &mut Properties, key, default: &str| {
            p.remove(key).map_or(default.to_string(), |v| unescape(&v))
        };
        let format = LineFormat {
            parse_key: p.flag("parse.key")?.unwrap_or(false),
            key_separator: text(&mut p, "key.separator", "\t"),
            parse_headers: p.flag("parse.headers")?.unwrap_or(false),
            headers_delimiter: text(&mut p, "headers.delimiter", "\t"),
            headers_separator: text(&mut p, "headers.separator", ","),
            headers_key_separator: text(&mut p, "headers.key.separator", ":"),
            null_marker: p.remove("null.marker"),
            ignore_error: p.flag("ignore.error")?.unwrap_or(false),
        };
        p.finish("property")?;
        Ok(format)
    }

    fn parse<'a>(&self, line: &'a [u8], number: u64) -> Result<Line<'a>, String> {
        let (mut headers, mut key, mut rest) = (Vec::new(), None, line);
        if self.parse_headers {
            match split(rest, &self.headers_delimiter) {
                Some((head, tail)) => {
                    rest = tail;
                    headers = self.headers(head, number)?;
                }
                None if self.ignore_error => {}
                None => {
                    return Err(format!(
                        "no headers delimiter found on line number {number}"
                    ));
                }
            }
        }
        if self.parse_key {
            match split(rest, &self.key_separator) {
                Some((head, tail)) => {
                    key = Some(head);
                    rest = tail;
                }
                None if self.ignore_error => {}
                None => return Err(format!("no key separator found on line number {number}")),
            }
        }
        let marked = |bytes: &&[u8]| {
            self.null_marker
                .as_ref()
                .is_none_or(|marker| *bytes != marker.as_bytes())
        };
        Ok((headers, key.filter(marked), Some(rest).filter(marked)))
    }

    fn headers<'a>(&self, text: &'a [u8], number: u64) -> Result<Vec<Header<'a>>, String> {
        let mut headers = Vec::new();
        let text = std::str::from_utf8(text)
            .map_err(|_| format!("the headers on line number {number} are not UTF-8"))?;
        for pair in text.split(self.headers_separator.as_str()) {
            match pair.split_once(self.headers_key_separator.as_str()) {
                Some((key, value)) => {
                    let null = self.null_marker.as_deref() == Some(value);
                    headers.push((key, (!null).then_some(value.as_bytes())));
                }
                None if self.ignore_error => {}
                None => {
                    return Err(format!(
                        "no header key separator found in pair '{pair}' on line number {number}"
                    ));
                }
            }
        }
        Ok(headers)
    }
}

fn split<'a>(bytes: &'a [u8], separator: &str) -> Option<(&'a [u8], &'a [u8])> {
    let separator = separator.as_bytes();
    let at = bytes
        .windows(separator.len().max(1))
        .position(|w| w == separator)?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}

pub fn parse_acks(text: &str) -> Result<i16, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "-1" | "all" => Ok(-1),
        other => Err(format!("acks '{other}' is none of 0, 1 and all")),
    }
}

pub fn parse_codec(text: &str) -> Result<Compression, String> {
    let codec = Codec::from_name(text)
        .ok_or_else(|| format!("codec '{text}' is none of none, gzip, snappy, lz4 and zstd"))?;
    Ok(Compression::of(codec))
}

pub fn run(args: Args) -> Outcome {
    let format = LineFormat::of(Properties::of(&args.property)?)?;
    let mut properties = args.connect.properties()?;
    let mut cluster = args.connect.cluster(&mut properties)?;
    cluster.create_topics = true;
    let mut config = ProducerConfig {
        acks: parse_acks(&properties.remove("acks").unwrap_or(args.acks))?,
        compression: parse_codec(
            &properties
                .remove("compression.type")
                .unwrap_or(args.compression_codec),
        )?,
        batch_bytes: properties.number("batch.size")?.unwrap_or(args.batch_size),
        linger_ms: properties.number("linger.ms")?.unwrap_or(args.linger_ms),
        buffer_bytes_max: args.max_memory_bytes,
        ..Default::default()
    };
    if let Some(idempotence) = properties.flag("enable.idempotence")? {
        config.idempotence = idempotence;
    }
    if let Some(ms) = properties.number("delivery.timeout.ms")? {
        config.delivery_timeout_ms = ms;
    }
    properties.warn_unused();
    let fixed: Vec<(String, String)> = args
        .header
        .iter()
        .map(|h| {
            h.split_once('=')
                .map(|(k, v)| (k.to_string(), v.to_string()))
        })
        .map(|h| h.ok_or("a header is not KEY=VALUE".to_string()))
        .collect::<Result<_, _>>()?;

    let mut producer = Producer::new(cluster, config).max_block_ms(args.max_block_ms);
    let lines = Lines {
        topic: &args.topic,
        partition: args.partition,
        sync: args.sync,
        format,
        headers: fixed,
    };
    let sent = lines.send(&mut producer);
    // What was read before a line that is none, or before the input broke, is sent all the same.
    let left = report(&producer.finish());
    let failures = sent? + left;
    if failures > 0 {
        return Err(format!("{failures} records were not delivered"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the lines go, and as what.
struct Lines<'a> {
    topic: &'a str,
    partition: Option<i32>,
    sync: bool,
    format: LineFormat,
    /// Of every record.
    headers: Vec<(String, String)>,
}

impl Lines<'_> {
    /// Hands every line of the standard input to the producer; gives how many records failed so far.
    fn send(&self, producer: &mut Producer) -> Result<u64, String> {
        let topic = producer.topic(self.topic);
        let stdin = std::io::stdin();
        let prompt = stdin.is_terminal();
        let mut input = stdin.lock();
        let mut line = Vec::new();
        let mut number = 0;
        let mut failures = 0;
        loop {
            if prompt {
                let mut out = std::io::stdout();
                let _ = out.write_all(b">").and_then(|()| out.flush());
                // Nothing is left waiting while someone types.
                failures += report(&producer.finish());
            }
            line.clear();
            let n = input
                .read_until(b'\n', &mut line)
                .map_err(|e| e.to_string())?;
            if n == 0 {
                return Ok(failures);
            }
            number += 1;
            while line.last().is_some_and(|b| *b == b'\n' || *b == b'\r') {
                line.pop();
            }
            let (mut headers, key, value) = self.format.parse(&line, number)?;
            headers.extend(
                self.headers
                    .iter()
                    .map(|(k, v)| (k.as_str(), Some(v.as_bytes()))),
            );
            let message = Message {
                partition: self.partition,
                timestamp: wall_ms(),
                key,
                value,
                headers: &headers,
            };
            producer
                .send(topic, &message)
                .map_err(|e| not_taken(&e, self.topic))?;
            if self.sync {
                failures += report(&producer.finish());
            } else {
                failures += report(&producer.poll(producer.now()));
            }
        }
    }
}

/// Why a record was not taken, and what to do about it.
fn not_taken(error: &Error, topic: &str) -> String {
    let unknown = format!("topic {topic}");
    match error {
        Error::Broker { code, message }
            if *code == ErrorCode::UnknownTopicOrPartition && *message == unknown =>
        {
            format!(
                "topic {topic} does not exist, and the broker does not create it: corelane topics create --topic {topic}"
            )
        }
        other => other.to_string(),
    }
}

/// Says what failed; gives how many records did.
fn report(delivered: &[Delivered]) -> u64 {
    let mut failed = 0;
    for d in delivered {
        if let Err(error) = &d.result {
            failed += d.count;
            let _ = writeln!(
                std::io::stderr(),
                "corelane: {} records to partition {}: {error}",
                d.count,
                d.partition
            );
        }
    }
    failed
}

pub fn wall_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(pairs: &[&str]) -> LineFormat {
        let pairs: Vec<String> = pairs.iter().map(|p| p.to_string()).collect();
        LineFormat::of(Properties::of(&pairs).expect("pairs")).expect("known properties")
    }

    #[test]
    fn lines_are_split_as_the_console_producer_does() {
        // The cases of Kafka's LineMessageReaderTest.
        let f = format(&["parse.key=true", "parse.headers=true"]);
        let (headers, key, value) = f
            .parse(
                b"headerKey0:headerValue0,headerKey1:headerValue1\tkey0\tvalue0",
                1,
            )
            .expect("parses");
        assert_eq!(
            headers,
            [
                ("headerKey0", Some(&b"headerValue0"[..])),
                ("headerKey1", Some(&b"headerValue1"[..]))
            ]
        );
        assert_eq!((key, value), (Some(&b"key0"[..]), Some(&b"value0"[..])));
        assert!(f.parse(b"value", 1).is_err());
        let f = format(&["parse.key=true", "key.separator=:", "null.marker=NULL"]);
        assert_eq!(
            f.parse(b"a:b:c", 1),
            Ok((vec![], Some(&b"a"[..]), Some(&b"b:c"[..])))
        );
        assert_eq!(f.parse(b"NULL:NULL", 1), Ok((vec![], None, None)));
        let f = format(&["parse.key=true", "ignore.error=true"]);
        assert_eq!(f.parse(b"lone", 1), Ok((vec![], None, Some(&b"lone"[..]))));
    }

    #[test]
    fn unknown_properties_are_refused() {
        let pairs = ["parse.keys=true".to_string()];
        assert!(LineFormat::of(Properties::of(&pairs).expect("a pair")).is_err());
    }
}
