//! `corelane perf consume`: one fetch in flight on each connection; records are counted by the headers of their batches.

use std::rc::Rc;

use super::Load;
use super::conn::{Conn, Poller};
use super::report::{Recorder, Report};
use super::target::Target;
use crate::batch::Batch;
use crate::client::StartAt;
use crate::model::ErrorCode;
use crate::wire::msg::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::msg::fetch_response::FetchResponse;
use crate::wire::{ApiKey, Reader, RequestHeader, Writer, read_response_header};

// The last of several is meant, so that a script can change one setting of a list.
#[derive(clap::Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct Args {
    #[command(flatten)]
    pub(super) load: Load,
    /// Start at the beginning, or at the end
    #[arg(long, default_value = "beginning", value_parser = ["beginning", "end"])]
    from: String,
    /// Begin again where there is no more
    #[arg(long)]
    again: bool,
    /// Stop where there was no more when it began
    #[arg(long, conflicts_with = "again")]
    to_end: bool,
    /// Bytes of an answer at most
    #[arg(long, default_value_t = 52_428_800)]
    max_bytes: i32,
    /// Bytes of one partition in an answer at most
    #[arg(long, default_value_t = 1_048_576)]
    partition_max_bytes: i32,
    /// Bytes that the broker waits for
    #[arg(long, default_value_t = 1)]
    min_bytes: i32,
    /// How long it waits for them, ms
    #[arg(long, default_value_t = 500)]
    max_wait_ms: i32,
}

struct Link {
    conn: Conn,
    positions: Vec<Position>,
    begun: Option<u64>,
    correlation: i32,
}

#[derive(Clone, Debug)]
struct Position {
    partition: i32,
    offset: i64,
    start: i64,
    /// Where to stop, if anywhere.
    stop: i64,
}

struct Run<'a> {
    args: &'a Args,
    topic: (&'a str, crate::model::TopicId),
    version: i16,
    no_body: Rc<[u8]>,
}

pub fn run(args: &Args) -> Result<Report, String> {
    args.load.check()?;
    let mut target = Target::find(&args.load)?;
    let version = target.version(ApiKey::Fetch, 4)?;
    let starts = target.offsets(StartAt::Beginning)?;
    let ends = target.offsets(StartAt::End)?;
    let at_end = args.from == "end";
    let mut links = Vec::new();
    let mut taken = vec![false; target.leaders.len()];
    for (address, partitions) in target.spread(args.load.connections) {
        let position = |partition: i32| {
            let (start, end) = (starts[partition as usize], ends[partition as usize]);
            Position {
                partition,
                offset: if at_end { end } else { start },
                start,
                stop: if args.to_end { end } else { i64::MAX },
            }
        };
        // To the end means every record once, so a partition that connections share belongs to the first.
        let mut positions: Vec<Position> = partitions.into_iter().map(position).collect();
        if args.to_end {
            positions.retain(|p| !std::mem::replace(&mut taken[p.partition as usize], true));
        }
        links.push(Link {
            conn: Conn::connect(address)?,
            positions,
            begun: None,
            correlation: 0,
        });
    }
    let run = Run {
        args,
        topic: (&target.topic, target.topic_id),
        version,
        no_body: Rc::from([]),
    };
    let mut recorder = args.load.recorder();
    run.measure(&mut links, &mut recorder)?;
    let what = format!(
        "consume from {}: {} partitions, {} connections, from the {}, {} bytes an answer, {} a partition",
        target.topic,
        target.leaders.len(),
        links.len(),
        args.from,
        super::report::grouped(args.max_bytes as u64),
        super::report::grouped(args.partition_max_bytes as u64),
    );
    let mut report = recorder.report(what);
    if report.records == 0 && report.answered > 0 && !args.again {
        report.hint = Some(
            "every record was read before the measure began: --again reads them in a circle, --warmup 0 measures the first reading",
        );
    }
    Ok(report)
}

impl Run<'_> {
    fn measure(&self, links: &mut [Link], recorder: &mut Recorder) -> Result<(), String> {
        let mut poller = Poller::new()?;
        for (number, link) in links.iter().enumerate() {
            poller.add(&link.conn, number)?;
        }
        recorder.begin();
        let mut ready: Vec<usize> = (0..links.len()).collect();
        loop {
            for number in &ready {
                let link = &mut links[*number];
                self.take_answers(link, recorder)?;
                if link.begun.is_none() && !recorder.is_over(recorder.now()) {
                    self.ask(link, recorder.now());
                }
                link.conn.flush()?;
            }
            let now = recorder.now();
            recorder.tick(now);
            let idle = links.iter().all(|link| link.begun.is_none());
            if recorder.is_over(now) || idle {
                recorder.ended(now);
                return Ok(());
            }
            let timeout_ns = recorder.until().saturating_sub(now).min(100_000_000);
            poller.wait(timeout_ns, &mut ready)?;
        }
    }

    /// Asks for every partition that is not at its end.
    fn ask(&self, link: &mut Link, now: u64) {
        let partitions: Vec<FetchPartition> = link
            .positions
            .iter()
            .filter(|p| p.offset < p.stop)
            .map(|p| FetchPartition {
                partition: p.partition,
                current_leader_epoch: -1,
                fetch_offset: p.offset,
                last_fetched_epoch: -1,
                log_start_offset: -1,
                partition_max_bytes: self.args.partition_max_bytes,
                ..Default::default()
            })
            .collect();
        if partitions.is_empty() {
            return;
        }
        let request = FetchRequest {
            replica_id: -1,
            max_wait_ms: self.args.max_wait_ms,
            min_bytes: self.args.min_bytes,
            max_bytes: self.args.max_bytes,
            session_epoch: -1,
            topics: vec![FetchTopic {
                topic: self.topic.0.into(),
                topic_id: self.topic.1,
                partitions,
            }],
            ..Default::default()
        };
        let write = |out: &mut Vec<u8>| {
            let mut w = Writer::over(std::mem::take(out));
            let start = w.begin_frame();
            RequestHeader {
                api_key: ApiKey::Fetch.code(),
                api_version: self.version,
                correlation_id: link.correlation,
                client_id: Some("corelane-perf".into()),
            }
            .encode(&mut w);
            request.encode(&mut w, self.version);
            w.end_frame(start);
            *out = w.into_bytes();
        };
        link.conn.queue(write, &self.no_body);
        link.begun = Some(now);
    }

    fn take_answers(&self, link: &mut Link, recorder: &mut Recorder) -> Result<(), String> {
        let Link {
            conn,
            positions,
            begun,
            correlation,
        } = link;
        conn.receive(|frame| {
            let now = recorder.now();
            let asked = begun
                .take()
                .ok_or("the broker answered what was not asked")?;
            let mut r = Reader::new(frame);
            let unreadable = |error| format!("an answer cannot be read: {error:?}");
            let answered =
                read_response_header(&mut r, ApiKey::Fetch, self.version).map_err(unreadable)?;
            if answered != *correlation {
                return Err("the broker answered out of order".to_string());
            }
            *correlation = correlation.wrapping_add(1);
            let response = FetchResponse::decode(&mut r, self.version).map_err(unreadable)?;
            if response.error_code != 0 {
                recorder.failed(ErrorCode::from_code(response.error_code).name().to_string());
                return Ok(());
            }
            let (mut records, mut bytes) = (0, 0);
            for data in response
                .responses
                .iter()
                .flat_map(|topic| &topic.partitions)
            {
                let position = positions
                    .iter_mut()
                    .find(|p| p.partition == data.partition_index)
                    .ok_or("an answer for another partition")?;
                let code = ErrorCode::from_code(data.error_code);
                if code.is_error() {
                    recorder.failed(format!("partition {}: {}", position.partition, code.name()));
                    continue;
                }
                let (count, len) = count(data.records.as_bytes(), position)?;
                records += count;
                bytes += len;
                if self.args.again && position.offset >= data.high_watermark {
                    position.offset = position.start;
                }
            }
            match records {
                0 => recorder.idle(now),
                _ => recorder.done(asked, now, records, bytes as u64),
            }
            Ok(())
        })
    }
}

/// Records and bytes of the whole batches; moves the position behind them.
fn count(mut rest: &[u8], position: &mut Position) -> Result<(u64, usize), String> {
    let (mut records, mut bytes) = (0, 0);
    while let Ok((batch, len)) = Batch::view(rest) {
        let end = batch.last_offset().saturating_add(1);
        if end <= position.offset {
            return Err(format!(
                "partition {} gave offsets below the one that was asked for",
                position.partition
            ));
        }
        // What lies before the position in the first batch was not asked for.
        let before = position.offset.saturating_sub(batch.base_offset()).max(0);
        records += (i64::from(batch.records_count()) - before).max(0) as u64;
        bytes += len;
        position.offset = end;
        rest = &rest[len..];
    }
    Ok((records, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Builder;

    #[test]
    fn whole_batches_are_counted_from_the_position_on() {
        let batch = |base: i64, records: usize| {
            let mut builder = Builder::new().base_offset(base);
            (0..records).for_each(|_| builder.push(1, None, Some(b"value"), &[]));
            builder.build()
        };
        let (first, second, third) = (batch(10, 5), batch(15, 3), batch(18, 9));
        let bytes = [&first[..], &second, &third[..70]].concat();
        let mut position = Position {
            partition: 0,
            offset: 12,
            start: 0,
            stop: i64::MAX,
        };
        let whole = first.len() + second.len();
        assert_eq!(count(&bytes, &mut position), Ok((6, whole)));
        assert_eq!(position.offset, 18);
        assert!(count(&first, &mut position).is_err());
    }
}
