//! What logs out of use keep in the journal.
//!
//! A log that an error fenced writes nothing any more, so what it has in the journal (acknowledged, perhaps only written)
//! never gets to its segments before the next boot replays it. The journal file must not be overwritten until then, and
//! must not stop the other logs either: when its turn has come, what such logs have in it is copied to a small file of
//! its own, `journal-kept-<shard>-<number>`, as frames with the sequences that they had. Boot reads it with the journal.

use bytes::Bytes;

use super::frame::{self, FrameHeader, FrameWriter, Part};
use super::op::{DiskDone, DiskError, DiskOp, DiskResult};
use super::ops::{LogIndex, Task};
use super::store::Store;
use crate::model::limit::BLOCK_BYTES;
use crate::model::{ShardIndex, TopicPartition};

impl Store {
    /// Reads the oldest journal file back.
    pub(super) fn read_journal(&mut self) {
        if self.journal.keeping || self.journal.keep_again.is_some() || self.failed.is_some() {
            return;
        }
        let Some(oldest) = self.journal.oldest() else {
            return;
        };
        let (number, file, len) = (oldest.number, oldest.file, oldest.at as u32);
        self.journal.keeping = true;
        self.ops.issue(
            Task::JournalRead { number },
            DiskOp::Read { file, at: 0, len },
        );
    }

    pub(super) fn journal_read(&mut self, number: u64, result: DiskResult) {
        self.journal.keeping = false;
        let bytes = match result {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(_) => Bytes::new(),
            Err(e) => return self.fail(format!("the journal cannot be read: {e}")),
        };
        let generation = self.journal.generation;
        let shard = self.journal.shard();
        let Some((first, end)) = self.journal.sequences_of_oldest(number) else {
            return;
        };
        let tp_of = |i: &LogIndex| match self.logs[*i as usize].as_deref() {
            Some(log) => Some(log.tp),
            None => self.unsaved.get(i).copied(),
        };
        let Some(oldest) = self.journal.oldest() else {
            return;
        };
        // The file is replaced as a whole: with what an earlier copy has.
        oldest.kept.extend(oldest.copied.iter().copied());
        oldest.kept.sort_unstable();
        oldest.kept.dedup();
        let of: Vec<TopicPartition> = oldest.kept.iter().filter_map(tp_of).collect();
        let Some(data) = copy(&bytes, generation, shard, first..end, &of) else {
            return self.fail("the journal is not what was written to it".into());
        };
        self.journal.keeping = true;
        let path = file_name(shard, number);
        self.ops
            .issue(Task::JournalKeep { number }, DiskOp::Replace { path, data });
    }

    pub(super) fn journal_kept(&mut self, number: u64, result: DiskResult) {
        self.journal.keeping = false;
        match result {
            Ok(_) => {}
            Err(DiskError::NoSpace) => {
                let retry = self.now.mono.after_ms(self.config.allocate_retry_ms);
                self.journal.keep_again = Some(retry);
                return;
            }
            Err(e) => return self.fail(format!("what the journal has cannot be kept: {e}")),
        }
        if let Some(oldest) = self.journal.oldest()
            && oldest.number == number
        {
            let kept = std::mem::take(&mut oldest.kept);
            oldest.copied.extend(kept);
        }
        self.release_journal();
    }
}

/// The parts of these logs in a journal file's frames, as frames; `None`: a frame is missing.
fn copy(
    bytes: &Bytes,
    generation: u64,
    shard: ShardIndex,
    sequences: std::ops::Range<u64>,
    of: &[TopicPartition],
) -> Option<Bytes> {
    let mut out = Vec::new();
    let mut at = 0;
    for sequence in sequences {
        let found = frame::decode(&bytes.slice(at.min(bytes.len())..))?;
        let h = found.header;
        let right = (h.generation, h.sequence, h.shard, h.at)
            == (generation, sequence, u32::from(shard.0), at as u64);
        if !right {
            return None;
        }
        at += found.file_bytes;
        let parts: Vec<_> = found
            .parts
            .iter()
            .filter(|p| of.contains(&p.header.tp))
            .collect();
        if parts.is_empty() {
            continue;
        }
        append_frame(&mut out, h, &parts);
    }
    Some(Bytes::from(out))
}

/// What boot could not replay, as a kept file of the generation that it begins: its name, which no journal file's copy has, and its bytes.
/// The journals themselves begin with sequence 1, so this comes before all that they will say.
pub(super) fn unreplayed(generation: u64, parts: &[Part]) -> (String, Bytes) {
    let header = FrameHeader {
        generation,
        sequence: 0,
        flushed: 0,
        live_from: 0,
        shard: 0,
        at: 0,
    };
    let mut out = Vec::new();
    let parts: Vec<&Part> = parts.iter().collect();
    append_frame(&mut out, header, &parts);
    (
        file_name(ShardIndex(0), u64::MAX - generation),
        Bytes::from(out),
    )
}

/// A frame behind the others, padded to whole blocks.
fn append_frame(out: &mut Vec<u8>, header: FrameHeader, parts: &[&Part]) {
    let place = out.len();
    let size: usize = parts
        .iter()
        .map(|p| frame::PART_BYTES + p.bytes.len())
        .sum();
    let size = frame::HEADER_BYTES + size;
    out.resize(place + size, 0);
    let mut writer = FrameWriter::new(&mut out[place..]);
    for part in parts {
        writer.part(&part.header, part.bytes.len() as u32);
        writer.data(&part.bytes);
    }
    writer.finish(&FrameHeader {
        at: place as u64,
        ..header
    });
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}

/// Beside the journals at the top of the log dir, never one of them.
fn file_name(shard: ShardIndex, number: u64) -> String {
    format!("journal-kept-{}-{number}", shard.0)
}

/// The shard in a kept file's name.
pub(crate) fn parse_file_name(name: &str) -> Option<ShardIndex> {
    let (shard, number) = name.strip_prefix("journal-kept-")?.split_once('-')?;
    let (shard, number) = (ShardIndex(shard.parse().ok()?), number.parse().ok()?);
    (file_name(shard, number) == name).then_some(shard)
}
