//! Produce requests, encoded once.

use std::rc::Rc;

use super::target::Target;
use crate::batch::{Builder, Compression, HEADER_BYTES, at};
use crate::model::Rng;
use crate::wire::msg::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::msg::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use crate::wire::{ApiKey, Records, RequestHeader, Writer, write_response_header};

/// Where the correlation id stands in a frame: behind size, key and version.
const CORRELATION_AT: usize = 8;

/// How big the batches are.
#[derive(Clone, Copy, Debug)]
pub enum BatchSize {
    Records(u32),
    Bytes(usize),
}

/// A batch without a producer, and what its checksum becomes when a sequence is put in.
pub struct Template {
    pub records: i32,
    /// Header and payload.
    pub bytes: usize,
    header: [u8; HEADER_BYTES],
    payload: Vec<u8>,
    /// What flipping each bit of the sequence does to the checksum: a CRC is linear, so a sequence costs a few XORs, not a pass
    /// over the batch.
    flips: [u32; 32],
}

impl Template {
    pub fn new(
        record_bytes: usize,
        size: BatchSize,
        compression: Compression,
        timestamp: i64,
    ) -> Template {
        let mut rng = Rng::seeded(7);
        let mut builder = Builder::new().compression(compression);
        let mut value = vec![0; record_bytes];
        loop {
            for piece in value.chunks_mut(8) {
                let random = rng.next_u64().to_ne_bytes();
                piece.copy_from_slice(&random[..piece.len()]);
            }
            let before = builder.len_uncompressed();
            builder.push(timestamp, None, Some(&value), &[]);
            let full = match size {
                BatchSize::Records(count) => builder.records_count() >= count as i32,
                BatchSize::Bytes(max) => 2 * builder.len_uncompressed() - before > max,
            };
            if full {
                break;
            }
        }
        // A sequence is part of the checksum, so one has to be there to be changed.
        let bytes = builder.producer(-1, -1, 0).build();
        let mut flipped = bytes.clone();
        let crc = |bytes: &[u8]| crc32c::crc32c(&bytes[at::ATTRIBUTES..]);
        let plain = crc(&bytes);
        let flips = std::array::from_fn(|bit| {
            let (byte, mask) = (at::BASE_SEQUENCE + 3 - bit / 8, 1u8 << (bit % 8));
            flipped[byte] ^= mask;
            let flip = crc(&flipped) ^ plain;
            flipped[byte] ^= mask;
            flip
        });
        Template {
            records: i32::from_be_bytes(
                bytes[at::RECORDS_COUNT..HEADER_BYTES]
                    .try_into()
                    .expect("four bytes"),
            ),
            bytes: bytes.len(),
            header: bytes[..HEADER_BYTES].try_into().expect("a header"),
            payload: bytes[HEADER_BYTES..].to_vec(),
            flips,
        }
    }

    /// The header with this producer at sequence 0, or -1 throughout without one.
    fn header_of(&self, producer: Option<(i64, i16)>) -> [u8; HEADER_BYTES] {
        let mut header = self.header;
        let (id, epoch, sequence) = producer.map_or((-1, -1, -1), |(id, epoch)| (id, epoch, 0));
        header[at::PRODUCER_ID..at::PRODUCER_EPOCH].copy_from_slice(&i64::to_be_bytes(id));
        header[at::PRODUCER_EPOCH..at::BASE_SEQUENCE].copy_from_slice(&i16::to_be_bytes(epoch));
        header[at::BASE_SEQUENCE..at::RECORDS_COUNT].copy_from_slice(&i32::to_be_bytes(sequence));
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[at::ATTRIBUTES..]), &self.payload);
        header[at::CRC..at::ATTRIBUTES].copy_from_slice(&crc.to_be_bytes());
        header
    }

    fn crc_at(&self, crc_of_zero: u32, sequence: i32) -> u32 {
        let mut bits = sequence as u32;
        let mut crc = crc_of_zero;
        while bits != 0 {
            crc ^= self.flips[bits.trailing_zeros() as usize];
            bits &= bits - 1;
        }
        crc
    }
}

/// The requests of one version to one topic.
pub struct Frames {
    pub template: Template,
    /// The rest of every frame behind the header of its batch.
    pub body: Rc<[u8]>,
    /// Where an answer to one partition has its index, and its error code behind that.
    pub index_at: usize,
    topic: (String, crate::model::TopicId),
    version: i16,
    acks: i16,
    client_id: String,
}

/// The start of a frame up to the payload of its batch.
pub struct Head {
    bytes: Vec<u8>,
    batch_at: usize,
    crc_of_zero: u32,
}

impl Frames {
    pub fn new(template: Template, target: &Target, version: i16, acks: i16) -> Frames {
        let mut frames = Frames {
            template,
            body: Rc::from([]),
            index_at: 0,
            topic: (target.topic.clone(), target.topic_id),
            version,
            acks,
            client_id: "corelane-perf".to_string(),
        };
        let (request, gap) = frames.encode(0);
        let mut body = frames.template.payload.clone();
        body.extend_from_slice(&request[gap..]);
        frames.body = body.into();
        frames.index_at = frames.find_index();
        frames
    }

    /// A request without its batch, and where that belongs.
    fn encode(&self, partition: i32) -> (Vec<u8>, usize) {
        let request = ProduceRequest {
            transactional_id: None,
            acks: self.acks,
            timeout_ms: 30_000,
            topic_data: vec![TopicProduceData {
                name: self.topic.0.as_str().into(),
                topic_id: self.topic.1,
                partition_data: vec![PartitionProduceData {
                    index: partition,
                    records: Records::Gap(self.template.bytes as u32),
                }],
            }],
        };
        let mut w = Writer::new();
        let start = w.begin_frame();
        RequestHeader {
            api_key: ApiKey::Produce.code(),
            api_version: self.version,
            correlation_id: 0,
            client_id: Some(self.client_id.as_str().into()),
        }
        .encode(&mut w);
        request.encode(&mut w, self.version);
        w.end_frame(start);
        let gap = w.gaps[0];
        (w.into_bytes(), gap)
    }

    pub fn head(&self, partition: i32, producer: Option<(i64, i16)>) -> Head {
        let (mut bytes, batch_at) = self.encode(partition);
        bytes.truncate(batch_at);
        bytes.extend_from_slice(&self.template.header_of(producer));
        let crc = bytes[batch_at + at::CRC..batch_at + at::ATTRIBUTES].try_into();
        Head {
            bytes,
            batch_at,
            crc_of_zero: u32::from_be_bytes(crc.expect("four bytes")),
        }
    }

    /// Appends the head with this correlation id, and this sequence if there is a producer.
    pub fn write(&self, head: &Head, out: &mut Vec<u8>, correlation: i32, sequence: Option<i32>) {
        let start = out.len();
        out.extend_from_slice(&head.bytes);
        let bytes = &mut out[start..];
        bytes[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&correlation.to_be_bytes());
        if let Some(sequence) = sequence {
            let batch = &mut bytes[head.batch_at..];
            let crc = self.template.crc_at(head.crc_of_zero, sequence);
            batch[at::CRC..at::ATTRIBUTES].copy_from_slice(&crc.to_be_bytes());
            batch[at::BASE_SEQUENCE..at::RECORDS_COUNT].copy_from_slice(&sequence.to_be_bytes());
        }
    }

    /// An answer to one partition of this topic has the same length up to the index, whatever is in it.
    fn find_index(&self) -> usize {
        const INDEX: i32 = 0x7a7b_7c7d;
        const ERROR: i16 = 0x5152;
        let answer = ProduceResponse {
            responses: vec![TopicProduceResponse {
                name: self.topic.0.as_str().into(),
                topic_id: self.topic.1,
                partition_responses: vec![PartitionProduceResponse {
                    index: INDEX,
                    error_code: ERROR,
                    ..Default::default()
                }],
            }],
            ..Default::default()
        };
        let mut w = Writer::new();
        write_response_header(&mut w, ApiKey::Produce, self.version, 0);
        answer.encode(&mut w, self.version);
        let mark = [0x7a, 0x7b, 0x7c, 0x7d, 0x51, 0x52];
        w.as_bytes()
            .windows(mark.len())
            .position(|bytes| bytes == mark)
            .expect("the answer holds its index")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Codec};
    use crate::wire::Reader;

    fn template(size: BatchSize) -> Template {
        Template::new(100, size, Compression::of(Codec::None), 1_700_000_000_000)
    }

    fn frames(version: i16) -> Frames {
        let topic = ("some-topic".to_string(), crate::model::Uuid([9; 16]));
        let mut frames = Frames {
            template: template(BatchSize::Records(3)),
            body: Rc::from([]),
            index_at: 0,
            topic,
            version,
            acks: -1,
            client_id: "c".to_string(),
        };
        let (request, gap) = frames.encode(0);
        let mut body = frames.template.payload.clone();
        body.extend_from_slice(&request[gap..]);
        frames.body = body.into();
        frames
    }

    #[test]
    fn a_batch_is_as_large_as_asked_and_not_larger() {
        assert_eq!(template(BatchSize::Records(16)).records, 16);
        assert_eq!(template(BatchSize::Bytes(1)).records, 1);
        let by_bytes = template(BatchSize::Bytes(16_384));
        assert!(
            (16_384 - 120..=16_384).contains(&by_bytes.bytes),
            "{}",
            by_bytes.bytes
        );
    }

    #[test]
    fn every_frame_decodes_to_a_batch_with_the_right_checksum_and_sequence() {
        for version in ApiKey::Produce.versions().0..=ApiKey::Produce.versions().1 {
            let frames = frames(version);
            for (producer, sequence) in [
                (None, None),
                (Some((77, 3)), Some(0)),
                (Some((77, 3)), Some(12_345)),
                (Some((77, 3)), Some(i32::MAX)),
            ] {
                let head = frames.head(5, producer);
                // Behind something else, as in a connection's queue.
                let mut out = vec![1, 2, 3];
                frames.write(&head, &mut out, 42, sequence);
                out.extend_from_slice(&frames.body);
                let frame = &out[3..];
                let size = u32::from_be_bytes(frame[..4].try_into().unwrap());
                assert_eq!(size as usize, frame.len() - 4, "version {version}");
                let mut r = Reader::new(&frame[4..]);
                let header = RequestHeader::decode(&mut r).unwrap();
                assert_eq!((header.correlation_id, header.api_version), (42, version));
                let request = ProduceRequest::decode(&mut r, version).unwrap();
                let data = &request.topic_data[0].partition_data[0];
                assert_eq!((request.acks, data.index), (-1, 5));
                let (batch, len) = Batch::parse(data.records.as_bytes()).unwrap();
                assert_eq!((len, batch.records_count()), (frames.template.bytes, 3));
                assert_eq!(batch.base_sequence(), sequence.unwrap_or(-1));
                assert_eq!(batch.producer_id(), producer.map_or(-1, |p| p.0));
                assert_eq!(batch.producer_epoch(), producer.map_or(-1, |p| p.1));
                assert_eq!(batch.records().unwrap().iter().count(), 3);
            }
        }
    }

    #[test]
    fn the_error_of_an_answer_is_found_without_decoding_it() {
        for version in ApiKey::Produce.versions().0..=ApiKey::Produce.versions().1 {
            let frames = frames(version);
            let answer = ProduceResponse {
                responses: vec![TopicProduceResponse {
                    name: "some-topic".into(),
                    topic_id: crate::model::Uuid([9; 16]),
                    partition_responses: vec![PartitionProduceResponse {
                        index: 5,
                        error_code: 3,
                        error_message: Some("no".into()),
                        ..Default::default()
                    }],
                }],
                ..Default::default()
            };
            let mut w = Writer::new();
            write_response_header(&mut w, ApiKey::Produce, version, 42);
            answer.encode(&mut w, version);
            let at = frames.find_index();
            assert_eq!(
                w.as_bytes()[at..at + 6],
                [0, 0, 0, 5, 0, 3],
                "version {version}"
            );
        }
    }
}
