//! The bytes of the quorum's log and snapshot.
//!
//! A log file is a row of *frames*. One write is one frame, padded to whole blocks, so that no write ever touches what an
//! earlier one committed:
//!
//! ```text
//! frame: magic u32 | crc-32c u32 of all that follows | body bytes u32 | file number u64 | sequence u64 | body
//! body:  term u64, vote u64, commit u64 | entries u32 | entries
//! entry: index u64 | term u64 | kind u8 | bytes u32 | data
//! ```
//!
//! What a crash leaves: only the last frame can be torn, because one write is in flight at a time. A bad frame with no good
//! one behind it is a torn tail and was never acknowledged; with a good one behind it, the file is damaged, and nothing may
//! be decided from it. The file number is in every frame, so blocks that an older file had do not count.

use crate::model::limit::BLOCK_BYTES;

const FRAME_MAGIC: u32 = 0x434c_514c;
const SNAPSHOT_MAGIC: u32 = 0x434c_5153;
const FRAME_HEAD: usize = 28;
/// One number for the format of both files: every start writes a snapshot before its first frame, so a release that does
/// not know the frames of a newer one meets its snapshot first.
const FORMAT: u32 = 1;

/// The hard state of Raft.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hard {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    Normal,
    ConfChange,
    ConfChangeV2,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub index: u64,
    pub term: u64,
    pub kind: EntryKind,
    pub data: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    pub file: u64,
    pub sequence: u64,
    pub hard: Hard,
    pub entries: Vec<Entry>,
}

/// Why a snapshot cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadSnapshot {
    /// Written by a newer release, in this format.
    Newer(u32),
    /// What is wrong with it.
    Damaged(&'static str),
}

/// What a snapshot stands for, and the metadata records that it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Of the last entry in it.
    pub index: u64,
    pub term: u64,
    /// Metadata records `[0..applied)` are in it.
    pub applied: u64,
    pub voters: Vec<u64>,
    /// Each one record.
    pub records: Vec<Vec<u8>>,
}

impl Entry {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.index.to_be_bytes());
        out.extend(self.term.to_be_bytes());
        out.push(match self.kind {
            EntryKind::Normal => 0,
            EntryKind::ConfChange => 1,
            EntryKind::ConfChangeV2 => 2,
        });
        out.extend(length(self.data.len()));
        out.extend(&self.data);
    }

    pub(super) fn decode(r: &mut Cursor<'_>) -> Option<Entry> {
        Some(Entry {
            index: r.u64()?,
            term: r.u64()?,
            kind: match r.u8()? {
                0 => EntryKind::Normal,
                1 => EntryKind::ConfChange,
                2 => EntryKind::ConfChangeV2,
                _ => return None,
            },
            data: r.bytes()?.to_vec(),
        })
    }
}

impl Frame {
    /// The frame, padded with zeros to whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for number in [self.hard.term, self.hard.vote, self.hard.commit] {
            body.extend(number.to_be_bytes());
        }
        body.extend(length(self.entries.len()));
        for entry in &self.entries {
            entry.encode(&mut body);
        }
        let mut out = Vec::with_capacity((FRAME_HEAD + body.len()).next_multiple_of(BLOCK_BYTES));
        out.extend(FRAME_MAGIC.to_be_bytes());
        out.extend([0; 4]);
        out.extend(length(body.len()));
        out.extend(self.file.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        out.extend(body);
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_be_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        out
    }

    /// The frame at the start of `bytes`, and its length with padding; `None` when there is no whole, right one.
    fn decode(bytes: &[u8]) -> Option<(Frame, usize)> {
        let mut r = Cursor(bytes);
        if r.u32()? != FRAME_MAGIC {
            return None;
        }
        let crc = r.u32()?;
        let body = r.u32()? as usize;
        let end = FRAME_HEAD.checked_add(body)?;
        let whole = bytes.get(8..end)?;
        if crc32c::crc32c(whole) != crc {
            return None;
        }
        let (file, sequence) = (r.u64()?, r.u64()?);
        let mut r = Cursor(&bytes[FRAME_HEAD..end]);
        let hard = Hard {
            term: r.u64()?,
            vote: r.u64()?,
            commit: r.u64()?,
        };
        let count = r.u32()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(Entry::decode(&mut r)?);
        }
        let frame = Frame {
            file,
            sequence,
            hard,
            entries,
        };
        Some((frame, end.next_multiple_of(BLOCK_BYTES)))
    }
}

/// What a log file holds.
#[derive(PartialEq, Eq, Debug)]
pub struct LogFile {
    pub frames: Vec<Frame>,
    /// Position behind the last good frame.
    pub end: usize,
}

/// Reads the log file with this number. `Err` says where it is damaged.
pub fn read_log(number: u64, bytes: &[u8]) -> Result<LogFile, String> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut at = 0;
    while let Some((frame, len)) = Frame::decode(&bytes[at.min(bytes.len())..]) {
        let expected = frames.last().map_or(frame.sequence, |f| f.sequence + 1);
        if frame.file != number || frame.sequence != expected {
            break;
        }
        frames.push(frame);
        at += len;
    }
    let last = frames.last().map(|frame| frame.sequence);
    let mut look = at;
    while look < bytes.len() {
        if let Some((frame, _)) = Frame::decode(&bytes[look..])
            && frame.file == number
            && last.is_none_or(|last| frame.sequence > last)
        {
            return Err(format!(
                "the write at byte {at} is damaged, but a later one at byte {look} is whole"
            ));
        }
        look += BLOCK_BYTES;
    }
    Ok(LogFile { frames, end: at })
}

impl Snapshot {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(SNAPSHOT_MAGIC.to_be_bytes());
        out.extend([0; 4]);
        out.extend(FORMAT.to_be_bytes());
        for number in [self.index, self.term, self.applied] {
            out.extend(number.to_be_bytes());
        }
        out.extend(length(self.voters.len()));
        for voter in &self.voters {
            out.extend(voter.to_be_bytes());
        }
        out.extend(length(self.records.len()));
        for record in &self.records {
            out.extend(length(record.len()));
            out.extend(record);
        }
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// A snapshot is replaced in one step, so nothing of it can be torn.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot, BadSnapshot> {
        let mut r = Cursor(bytes);
        let head = || -> Option<(u32, u32, u32)> {
            let mut r = Cursor(bytes);
            Some((r.u32()?, r.u32()?, r.u32()?))
        };
        let Some((magic, crc, version)) = head() else {
            return Err(BadSnapshot::Damaged("it is cut off"));
        };
        if magic != SNAPSHOT_MAGIC {
            return Err(BadSnapshot::Damaged(
                "it is not a snapshot of the metadata quorum",
            ));
        }
        if crc32c::crc32c(&bytes[8..]) != crc {
            return Err(BadSnapshot::Damaged("its checksum is wrong"));
        }
        if version != FORMAT {
            return Err(BadSnapshot::Newer(version));
        }
        let mut body = || -> Option<Snapshot> {
            r.take(12)?;
            let (index, term, applied) = (r.u64()?, r.u64()?, r.u64()?);
            let mut voters = Vec::new();
            for _ in 0..r.u32()? {
                voters.push(r.u64()?);
            }
            let mut records = Vec::new();
            for _ in 0..r.u32()? {
                records.push(r.bytes()?.to_vec());
            }
            Some(Snapshot {
                index,
                term,
                applied,
                voters,
                records,
            })
        };
        body().ok_or(BadSnapshot::Damaged("it is cut off"))
    }
}

pub(super) fn length(len: usize) -> [u8; 4] {
    u32::try_from(len)
        .expect("a frame stays below 4 GiB")
        .to_be_bytes()
}

/// Reads numbers off the front; `None` at the end.
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(front)
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }
}

/// A command's records as the data of an entry.
pub fn encode_records<'a>(records: impl Iterator<Item = &'a crate::meta::Record>) -> Vec<u8> {
    let mut data = Vec::new();
    let mut one = Vec::new();
    for record in records {
        one.clear();
        record.encode(&mut one);
        data.extend(length(one.len()));
        data.extend(&one);
    }
    data
}

/// The records of an entry.
pub fn decode_records(data: &[u8]) -> Result<Vec<crate::meta::Record>, String> {
    let mut r = Cursor(data);
    let mut records = Vec::new();
    while !r.0.is_empty() {
        let bytes = r.bytes().ok_or("a record is cut off")?;
        records.push(
            crate::meta::Record::decode(bytes)
                .map_err(|e| format!("a record is malformed: {e}"))?,
        );
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Rng;

    fn frame(sequence: u64, bytes: usize) -> Frame {
        Frame {
            file: 3,
            sequence,
            hard: Hard {
                term: 2,
                vote: 1,
                commit: sequence,
            },
            entries: vec![Entry {
                index: sequence,
                term: 2,
                kind: EntryKind::Normal,
                data: vec![sequence as u8; bytes],
            }],
        }
    }

    fn file(frames: &[Frame]) -> Vec<u8> {
        let mut bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        bytes.resize(bytes.len() + 3 * BLOCK_BYTES, 0);
        bytes
    }

    #[test]
    fn a_log_gives_back_its_frames() {
        let frames = [frame(5, 10), frame(6, 9000), frame(7, 0)];
        let log = read_log(3, &file(&frames)).unwrap();
        assert_eq!(
            (log.frames.as_slice(), log.end),
            (&frames[..], 5 * BLOCK_BYTES)
        );
        let empty = read_log(3, &[0; 2 * BLOCK_BYTES]).unwrap();
        assert_eq!((empty.frames.len(), empty.end), (0, 0));
    }

    #[test]
    fn a_torn_tail_is_dropped_at_every_sector() {
        let frames = [frame(5, 10), frame(6, 9000)];
        let whole = file(&frames);
        for cut in (BLOCK_BYTES..4 * BLOCK_BYTES).step_by(512) {
            let mut torn = whole.clone();
            torn[cut..].fill(0);
            let log = read_log(3, &torn).unwrap();
            // 28 + 24 + 4 + 21 + 9000 bytes: past the last of them the rest is padding.
            let survives = cut >= BLOCK_BYTES + 9077;
            assert_eq!(log.frames.len(), 1 + usize::from(survives), "cut at {cut}");
        }
    }

    #[test]
    fn damage_before_a_good_frame_is_an_error() {
        let frames = [frame(5, 10), frame(6, 10), frame(7, 10)];
        for damaged in [0, BLOCK_BYTES] {
            let mut bytes = file(&frames);
            bytes[damaged + 40] ^= 1;
            let error = read_log(3, &bytes).unwrap_err();
            assert!(
                error.contains(&format!("the write at byte {damaged} is damaged")),
                "{error}"
            );
        }
    }

    #[test]
    fn frames_of_another_file_do_not_count() {
        let mut bytes = file(&[frame(5, 10)]);
        let other = Frame {
            file: 2,
            ..frame(6, 10)
        };
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].copy_from_slice(&other.encode());
        let log = read_log(3, &bytes).unwrap();
        assert_eq!((log.frames.len(), log.end), (1, BLOCK_BYTES));
    }

    #[test]
    fn a_snapshot_comes_back_and_any_damage_is_seen() {
        let snapshot = Snapshot {
            index: 9,
            term: 3,
            applied: 77,
            voters: vec![1],
            records: vec![vec![1, 2, 3], vec![]],
        };
        let bytes = snapshot.encode();
        assert_eq!(Snapshot::decode(&bytes), Ok(snapshot));
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            assert!(Snapshot::decode(&broken).is_err(), "byte {at}");
            assert!(Snapshot::decode(&bytes[..at]).is_err(), "cut to {at}");
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut rng = Rng::seeded(5);
        for _ in 0..200 {
            let mut bytes = file(&[frame(1, 20), frame(2, 20)]);
            for _ in 0..4 {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            let _ = read_log(3, &bytes);
            let _ = decode_records(&bytes[..rng.below(100) as usize]);
        }
    }
}
