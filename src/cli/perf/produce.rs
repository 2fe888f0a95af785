//! `corelane perf produce`.

use std::collections::VecDeque;

use super::conn::{Conn, Poller};
use super::frames::{BatchSize, Frames, Head, Template};
use super::report::{Recorder, Report};
use super::target::Target;
use super::{Load, report};
use crate::batch::sequence_after;
use crate::cli::produce::{parse_acks, parse_codec};
use crate::model::ErrorCode;
use crate::wire::msg::produce_response::ProduceResponse;
use crate::wire::{ApiKey, Reader, read_response_header};

/// Answers that are still waited for at the end.
const DRAIN_NS: u64 = 10_000_000_000;

// The last of several is meant, so that a script can change one setting of a list.
#[derive(clap::Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct Args {
    #[command(flatten)]
    pub(super) load: Load,
    /// Bytes of a record's value
    #[arg(long, visible_alias = "record-size", default_value_t = 1024)]
    record_bytes: usize,
    /// Bytes of a batch at most
    #[arg(long, visible_alias = "batch-size", default_value_t = 16_384)]
    batch_bytes: usize,
    /// Records of a batch instead
    #[arg(long)]
    records_per_batch: Option<u32>,
    /// 0, 1 or all
    #[arg(long, default_value = "all", allow_hyphen_values = true)]
    acks: String,
    /// none, gzip, snappy, lz4 or zstd
    #[arg(long, default_value = "none")]
    compression: String,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 5)]
    in_flight: usize,
    /// Records a second in all; as many as the broker takes if not given
    #[arg(long)]
    rate: Option<f64>,
    /// A producer id for every connection, and sequences
    #[arg(long)]
    idempotent: bool,
}

/// One connection under load.
struct Link {
    conn: Conn,
    lanes: Vec<Lane>,
    next_lane: usize,
    /// When each unanswered request was sent or due, and its lane.
    in_flight: VecDeque<(u64, usize)>,
    /// Open loop: when each request that waits for its turn was due.
    due: VecDeque<u64>,
    next_correlation: i32,
    next_answer: i32,
}

/// One partition on a connection.
struct Lane {
    partition: i32,
    head: Head,
    sequence: Option<i32>,
}

struct Run<'a> {
    frames: &'a Frames,
    in_flight_max: usize,
    acks: i16,
    version: i16,
    open_loop: bool,
}

pub fn run(args: &Args) -> Result<Report, String> {
    args.load.check()?;
    let acks = parse_acks(&args.acks)?;
    if args.in_flight == 0 || args.records_per_batch == Some(0) {
        return Err("--in-flight and --records-per-batch are at least 1".to_string());
    }
    if args.idempotent && (acks != -1 || args.in_flight > 5) {
        return Err("--idempotent needs --acks all and at most --in-flight 5".to_string());
    }
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
        return Err("--rate is a number of records a second".to_string());
    }
    let mut target = Target::find(&args.load)?;
    let version = target.version(ApiKey::Produce, 3)?;
    let size = match args.records_per_batch {
        Some(records) => BatchSize::Records(records),
        None => BatchSize::Bytes(args.batch_bytes),
    };
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let timestamp = wall.map_or(0, |since| since.as_millis() as i64);
    let template = Template::new(
        args.record_bytes,
        size,
        parse_codec(&args.compression)?,
        timestamp,
    );
    let frames = Frames::new(template, &target, version, acks);
    let mut links = connect(args, &mut target, &frames)?;
    let run = Run {
        frames: &frames,
        in_flight_max: args.in_flight,
        acks,
        version,
        open_loop: args.rate.is_some(),
    };
    let interval_ns = args
        .rate
        .map(|rate| f64::from(frames.template.records) / rate * 1e9);
    let mut recorder = args.load.recorder();
    run.measure(&mut links, interval_ns, &mut recorder)?;
    let what = format!(
        "produce to {}: {} partitions, {} connections, {} in flight, {} x {} B a batch ({} bytes), acks={}{}{}",
        target.topic,
        target.leaders.len(),
        links.len(),
        args.in_flight,
        frames.template.records,
        args.record_bytes,
        report::grouped(frames.template.bytes as u64),
        args.acks,
        if args.idempotent { ", idempotent" } else { "" },
        args.rate
            .map_or(String::new(), |rate| format!(", at {rate} records/s")),
    );
    Ok(recorder.report(what))
}

fn connect(args: &Args, target: &mut Target, frames: &Frames) -> Result<Vec<Link>, String> {
    let mut links = Vec::new();
    for (address, partitions) in target.spread(args.load.connections) {
        let producer = match args.idempotent {
            true => Some(target.producer()?),
            false => None,
        };
        let lane = |partition: i32| Lane {
            partition,
            head: frames.head(partition, producer),
            sequence: producer.map(|_| 0),
        };
        links.push(Link {
            conn: Conn::connect(address)?,
            lanes: partitions.into_iter().map(lane).collect(),
            next_lane: 0,
            in_flight: VecDeque::new(),
            due: VecDeque::new(),
            next_correlation: 0,
            next_answer: 0,
        });
    }
    Ok(links)
}

impl Run<'_> {
    fn measure(
        &self,
        links: &mut [Link],
        interval_ns: Option<f64>,
        recorder: &mut Recorder,
    ) -> Result<(), String> {
        let mut poller = Poller::new()?;
        for (number, link) in links.iter().enumerate() {
            poller.add(&link.conn, number)?;
        }
        recorder.begin();
        let mut ready: Vec<usize> = (0..links.len()).collect();
        // The next request of the open loop, and when it is due.
        let mut next = 0u64;
        let due_at = |next: u64, interval: f64| (next as f64 * interval) as u64;
        loop {
            for number in &ready {
                self.serve(&mut links[*number], recorder)?;
            }
            let now = recorder.now();
            recorder.tick(now);
            if recorder.is_over(now) {
                recorder.ended(now);
                break;
            }
            let mut timeout_ns = recorder.until().saturating_sub(now).min(100_000_000);
            if let Some(interval) = interval_ns {
                let mut touched = false;
                while due_at(next, interval) <= now {
                    let link = next as usize % links.len();
                    links[link].due.push_back(due_at(next, interval));
                    next += 1;
                    touched = true;
                }
                if touched {
                    for link in links.iter_mut().filter(|link| !link.due.is_empty()) {
                        self.push(link, recorder)?;
                    }
                }
                let wait = due_at(next, interval).saturating_sub(recorder.now());
                timeout_ns = timeout_ns.min(wait);
            } else if self.acks == 0 && links.iter().any(|link| link.conn.is_flushed()) {
                timeout_ns = 0;
            }
            poller.wait(timeout_ns, &mut ready)?;
            if self.acks == 0 {
                // Nothing comes back that would wake a connection.
                ready = (0..links.len()).collect();
            }
        }
        self.drain(links, &mut poller, recorder)
    }

    /// Takes what has come and sends what may be sent.
    fn serve(&self, link: &mut Link, recorder: &mut Recorder) -> Result<(), String> {
        self.take_answers(link, recorder)?;
        self.push(link, recorder)
    }

    fn push(&self, link: &mut Link, recorder: &mut Recorder) -> Result<(), String> {
        let now = recorder.now();
        if !recorder.is_over(now) {
            while link.in_flight.len() < self.in_flight_max {
                let begun = match self.open_loop {
                    false => now,
                    true => match link.due.pop_front() {
                        Some(due) => due,
                        None => break,
                    },
                };
                self.queue(link, begun);
            }
        }
        link.conn.flush()?;
        if self.acks == 0 && link.conn.is_flushed() {
            self.all_done(link, recorder);
        }
        Ok(())
    }

    fn queue(&self, link: &mut Link, begun: u64) {
        let number = link.next_lane;
        link.next_lane = (number + 1) % link.lanes.len();
        let lane = &mut link.lanes[number];
        let (correlation, sequence) = (link.next_correlation, lane.sequence);
        let head = &lane.head;
        link.conn.queue(
            |out| self.frames.write(head, out, correlation, sequence),
            &self.frames.body,
        );
        lane.sequence = sequence.map(|from| sequence_after(from, self.frames.template.records));
        link.next_correlation = correlation.wrapping_add(1);
        link.in_flight.push_back((begun, number));
    }

    fn take_answers(&self, link: &mut Link, recorder: &mut Recorder) -> Result<(), String> {
        let Link {
            conn,
            in_flight,
            next_answer,
            lanes,
            ..
        } = link;
        let mut now = None;
        conn.receive(|frame| {
            let now = *now.get_or_insert_with(|| recorder.now());
            let correlation = frame.first_chunk::<4>().map(|b| i32::from_be_bytes(*b));
            let Some((begun, lane)) = in_flight.pop_front() else {
                return Err("the broker answered what was not asked".to_string());
            };
            if correlation != Some(*next_answer) {
                return Err("the broker answered out of order".to_string());
            }
            *next_answer = next_answer.wrapping_add(1);
            match self.error_of(frame, lanes[lane].partition)? {
                None => recorder.done(
                    begun,
                    now,
                    self.frames.template.records as u64,
                    self.frames.template.bytes as u64,
                ),
                Some(error) => recorder.failed(error),
            }
            Ok(())
        })
    }

    /// The error code of an answer, found at its place; only one that has an error is decoded.
    fn error_of(&self, frame: &[u8], partition: i32) -> Result<Option<String>, String> {
        let at = self.frames.index_at;
        let mut expected = [0; 6];
        expected[..4].copy_from_slice(&partition.to_be_bytes());
        if frame.get(at..at + 6) == Some(&expected) {
            return Ok(None);
        }
        let mut r = Reader::new(frame);
        let response = read_response_header(&mut r, ApiKey::Produce, self.version)
            .and_then(|_| ProduceResponse::decode(&mut r, self.version))
            .map_err(|error| format!("an answer cannot be read: {error:?}"))?;
        let found = response
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses)
            .next();
        let found = found.ok_or("an answer without the partition")?;
        if found.index != partition {
            return Err("an answer to another partition".to_string());
        }
        let code = ErrorCode::from_code(found.error_code);
        Ok(code.is_error().then(|| match &found.error_message {
            Some(message) => format!("{}: {message}", code.name()),
            None => code.name().to_string(),
        }))
    }

    /// acks=0: done is what the kernel has.
    fn all_done(&self, link: &mut Link, recorder: &mut Recorder) {
        let now = recorder.now();
        for (begun, _) in link.in_flight.drain(..) {
            recorder.done(
                begun,
                now,
                self.frames.template.records as u64,
                self.frames.template.bytes as u64,
            );
        }
    }

    /// What is in flight at the end still counts for the latencies, and so does what was due and could not be sent.
    fn drain(
        &self,
        links: &mut [Link],
        poller: &mut Poller,
        recorder: &mut Recorder,
    ) -> Result<(), String> {
        let end = recorder.now();
        for link in links.iter_mut() {
            for due in link.due.drain(..) {
                recorder.unanswered(due, end);
                recorder.unsent += 1;
            }
        }
        let mut ready = Vec::new();
        while links.iter().any(|link| !link.in_flight.is_empty()) {
            if recorder.now() > end + DRAIN_NS {
                for (begun, _) in links.iter().flat_map(|link| &link.in_flight) {
                    recorder.unanswered(*begun, end + DRAIN_NS);
                    recorder.failed("no answer within 10 s of the end".to_string());
                }
                break;
            }
            poller.wait(100_000_000, &mut ready)?;
            for number in &ready {
                self.serve(&mut links[*number], recorder)?;
            }
        }
        Ok(())
    }
}
