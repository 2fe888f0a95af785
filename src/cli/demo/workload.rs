//! Sending and reading back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;

use super::records::{Id, Payload};
use crate::client::{
    Client, ClusterConfig, Consumer, ConsumerConfig, Delivered, Message, Producer, ProducerConfig,
    StartAt,
};
use crate::model::{ErrorCode, WallMs};

/// Records that go to one partition before the next has its turn: so that batches fill.
const CHUNK: u64 = 200;

/// How long reading waits for a record that should be there.
const READ_WAIT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Topic {
    pub name: String,
    pub acks: i16,
    pub record_bytes: usize,
    pub partitions: i32,
}

impl Topic {
    fn partition_of(&self, record: u64) -> i32 {
        (record / CHUNK % self.partitions as u64) as i32
    }

    /// How many of so many records each partition gets.
    pub fn split(&self, records: u64) -> Vec<u64> {
        let (rounds, rest) = (
            records / (CHUNK * self.partitions as u64),
            records % (CHUNK * self.partitions as u64),
        );
        (0..self.partitions as u64)
            .map(|p| rounds * CHUNK + rest.saturating_sub(p * CHUNK).min(CHUNK))
            .collect()
    }

    fn producer(&self, cluster: &ClusterConfig) -> Producer {
        let config = ProducerConfig {
            acks: self.acks,
            idempotence: self.acks == -1,
            batch_bytes: 64 * 1024,
            ..Default::default()
        };
        Producer::new(cluster.clone(), config)
    }
}

/// What became of the records of one partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivery {
    pub sent: u64,
    pub acked: u64,
    /// The end of the acknowledged ones.
    pub acked_end: u64,
}

/// One producer at work.
struct Sending<'a> {
    topic: &'a Topic,
    run: u32,
    payload: &'a Payload,
    producer: Producer,
    handle: crate::client::TopicHandle,
    partitions: Vec<Delivery>,
    value: Vec<u8>,
    next: u64,
    /// Of all its records. A time of long ago would let retention delete them while the demo goes on.
    time: WallMs,
    error: Option<String>,
}

impl<'a> Sending<'a> {
    fn new(cluster: &ClusterConfig, topic: &'a Topic, run: u32, payload: &'a Payload) -> Self {
        let mut producer = topic.producer(cluster);
        Sending {
            topic,
            run,
            payload,
            handle: producer.topic(&topic.name),
            producer,
            partitions: vec![Delivery::default(); topic.partitions as usize],
            value: Vec::new(),
            next: 0,
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as WallMs),
            error: None,
        }
    }

    fn send(&mut self) -> Result<(), String> {
        let partition = self.topic.partition_of(self.next);
        let delivery = &mut self.partitions[partition as usize];
        let id = Id {
            run: self.run,
            partition: partition as u32,
            index: delivery.sent,
        };
        self.payload
            .fill(id, self.topic.record_bytes, &mut self.value);
        let message = Message {
            partition: Some(partition),
            timestamp: self.time,
            value: Some(&self.value),
            ..Default::default()
        };
        self.producer
            .send(self.handle, &message)
            .map_err(|error| format!("{}: {error}", self.topic.name))?;
        delivery.sent += 1;
        self.next += 1;
        Ok(())
    }

    fn take(&mut self, delivered: Vec<Delivered>) -> u64 {
        let mut acked = 0;
        for one in delivered {
            match one.result {
                Ok(_) => {
                    let partition = &mut self.partitions[one.partition as usize];
                    partition.acked += one.count;
                    partition.acked_end = partition.acked_end.max(one.first + one.count);
                    acked += one.count;
                }
                Err(error) => {
                    self.error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        acked
    }

    fn poll(&mut self, ms: u64) -> u64 {
        let until = self.producer.now().after_ms(ms);
        let delivered = self.producer.poll(until);
        self.take(delivered)
    }
}

/// Sends so many records; an error if one was not taken.
pub fn produce(
    cluster: &ClusterConfig,
    topic: &Topic,
    run: u32,
    records: u64,
    payload: &Payload,
    bar: &ProgressBar,
) -> Result<(), String> {
    let mut sending = Sending::new(cluster, topic, run, payload);
    while sending.next < records {
        sending.send()?;
        if sending.next.is_multiple_of(CHUNK) {
            bar.inc(sending.poll(0));
        }
    }
    let rest = sending.producer.finish();
    bar.inc(sending.take(rest));
    let acked: u64 = sending.partitions.iter().map(|d| d.acked).sum();
    match sending.error {
        Some(error) => Err(format!("{}: a batch was not taken: {error}", topic.name)),
        None if acked != records => Err(format!(
            "{}: {acked} of {records} records were acknowledged",
            topic.name
        )),
        None => Ok(()),
    }
}

/// Sends until so many records are acknowledged, then has the broker killed with more of them on their way.
pub fn produce_until(
    cluster: &ClusterConfig,
    topic: &Topic,
    records: u64,
    payload: &Payload,
    bar: &ProgressBar,
    kill: impl FnOnce() -> Result<(), String>,
) -> Result<Vec<Delivery>, String> {
    let mut sending = Sending::new(cluster, topic, 0, payload);
    let mut acked = 0;
    while acked < records || sending.producer.undecided() == 0 {
        sending.send()?;
        if sending.next.is_multiple_of(CHUNK) {
            let more = sending.poll(0);
            bar.inc(more);
            acked += more;
            if let Some(error) = sending.error {
                return Err(format!("{}: a batch was not taken: {error}", topic.name));
            }
        }
    }
    kill()?;
    // What the kernel had received when the broker died counts: those answers were given.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        bar.inc(sending.poll(50));
    }
    Ok(sending.partitions)
}

/// What was found in one partition.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Records of each run.
    runs: Vec<u64>,
    records: u64,
}

impl Found {
    pub fn run(&self, run: usize) -> u64 {
        self.runs.get(run).copied().unwrap_or(0)
    }
}

/// Reads a topic to its end and checks every record: offsets without a hole, the records of each run in order, each once, unchanged,
/// a run behind the one before; one may have none. With acks=0 the end is where `records` are.
pub fn verify(
    cluster: &ClusterConfig,
    topic: &Topic,
    records: Option<u64>,
    payload: &Payload,
    bar: &ProgressBar,
) -> Result<Vec<Found>, String> {
    let mut found = vec![Found::default(); topic.partitions as usize];
    let wanted = match records {
        Some(records) => topic.split(records),
        None => ends(cluster, topic)?,
    };
    let mut consumer = Consumer::new(cluster.clone(), ConsumerConfig::default());
    for partition in 0..topic.partitions {
        consumer.assign(&topic.name, partition, StartAt::Beginning);
    }
    let mut codecs = crate::batch::Codecs::default();
    while found.iter().zip(&wanted).any(|(f, end)| f.records < *end) {
        let until = consumer.now().after_ms(READ_WAIT.as_millis() as u64);
        let fetched = consumer
            .poll(until)
            .map_err(|error| format!("{}: {error}", topic.name))?
            .ok_or_else(|| {
                let have: u64 = found.iter().map(|f| f.records).sum();
                let want: u64 = wanted.iter().sum();
                format!("{}: {have} of {want} records, and no more come", topic.name)
            })?;
        let one = &mut found[fetched.partition as usize];
        let before = one.records;
        for batch in fetched.batches() {
            let records = batch
                .records_with(&mut codecs)
                .map_err(|error| format!("{}: {error:?}", topic.name))?;
            for record in records.iter() {
                let record = record.map_err(|error| format!("{}: {error:?}", topic.name))?;
                let value = record.value.unwrap_or_default();
                one.take(record.offset, value, topic, fetched.partition, payload)
                    .map_err(|why| {
                        format!(
                            "{}-{} offset {}: {why}",
                            topic.name, fetched.partition, record.offset
                        )
                    })?;
            }
        }
        bar.inc(one.records - before);
    }
    // More than was sent would be wrong, too.
    match ends(cluster, topic)? {
        ends if ends == wanted => Ok(found),
        ends => Err(format!(
            "{}: it ends at {ends:?}, not at {wanted:?}",
            topic.name
        )),
    }
}

/// The end of each partition, once all of them are served: after a start that takes a moment.
pub fn ends(cluster: &ClusterConfig, topic: &Topic) -> Result<Vec<u64>, String> {
    let deadline = Instant::now() + READ_WAIT;
    let mut client = Client::new(cluster.clone());
    loop {
        match client.list_offsets(&topic.name, StartAt::End) {
            Ok(offsets) => return Ok(offsets.into_iter().map(|(_, end)| end as u64).collect()),
            Err(error) => {
                let passes = error.code().is_some_and(ErrorCode::is_retriable);
                if !passes || Instant::now() > deadline {
                    return Err(format!("{}: {error}", topic.name));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Found {
    fn take(
        &mut self,
        offset: i64,
        value: &[u8],
        topic: &Topic,
        partition: i32,
        payload: &Payload,
    ) -> Result<(), String> {
        // The first batch of an answer may begin before what was asked for.
        if offset < self.records as i64 {
            return Ok(());
        }
        let id = payload.check(value, topic.record_bytes)?;
        let run = id.run as usize;
        if offset != self.records as i64 {
            return Err(format!("expected offset {}", self.records));
        }
        if id.partition != partition as u32 {
            return Err(format!("{id:?} belongs to another partition"));
        }
        if run + 1 < self.runs.len() {
            return Err(format!("{id:?} is not of the run that is expected"));
        }
        // A run that was killed may have left nothing in this partition. Who counts the records of each run sees that.
        if run >= self.runs.len() {
            self.runs.resize(run + 1, 0);
        }
        if id.index != self.runs[run] {
            return Err(format!("{id:?} where {} is expected", self.runs[run]));
        }
        self.runs[run] += 1;
        self.records += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic {
            name: "t".into(),
            acks: -1,
            record_bytes: 100,
            partitions: 4,
        }
    }

    #[test]
    fn split_counts_what_partition_of_gives() {
        let topic = topic();
        for records in [0, 1, 199, 200, 201, 799, 800, 801, 12_345] {
            let mut counted = vec![0; 4];
            (0..records).for_each(|r| counted[topic.partition_of(r) as usize] += 1);
            assert_eq!(topic.split(records), counted);
        }
    }

    #[test]
    fn a_lost_a_repeated_and_a_misplaced_record_are_seen() {
        let (topic, payload) = (topic(), Payload::new());
        let value = |run, partition, index| {
            let mut value = Vec::new();
            let id = Id {
                run,
                partition,
                index,
            };
            payload.fill(id, 100, &mut value);
            value
        };
        let mut found = Found::default();
        let mut take = |offset, value: &[u8]| found.take(offset, value, &topic, 2, &payload);
        take(0, &value(0, 2, 0)).unwrap();
        take(1, &value(0, 2, 1)).unwrap();
        // Again, as the start of a batch that was asked for from its middle on.
        take(1, &value(0, 2, 1)).unwrap();
        assert!(take(2, &value(0, 2, 3)).is_err(), "one is lost");
        assert!(take(2, &value(0, 2, 1)).is_err(), "one is repeated");
        assert!(take(3, &value(0, 2, 2)).is_err(), "an offset is left out");
        assert!(take(2, &value(0, 3, 2)).is_err(), "of another partition");
        take(2, &value(1, 2, 0)).unwrap();
        assert!(take(3, &value(0, 2, 2)).is_err(), "an old run again");
        take(3, &value(1, 2, 1)).unwrap();
        assert_eq!((found.run(0), found.run(1), found.run(2)), (2, 2, 0));

        let mut found = Found::default();
        found
            .take(0, &value(1, 2, 0), &topic, 2, &payload)
            .expect("the run before left nothing");
        assert_eq!((found.run(0), found.run(1)), (0, 1));
    }
}
