//! The sparse index of one segment: where in the file a batch begins, and by which offset which time was reached.
//!
//! In memory for the segments that are open; on disk in Kafka's `.index` and `.timeindex`.

use bytes::Bytes;

/// A batch of the segment: its offsets relative to the segment's base, and its place in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// [`Place::UNKNOWN`] when it was read from Kafka's file, which does not tell.
    pub base: u32,
    pub last: u32,
    pub at: u32,
}

impl Place {
    pub const UNKNOWN: u32 = u32::MAX;
}

/// No batch up to `last` has a larger timestamp than `timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimePlace {
    pub timestamp: i64,
    pub last: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Index {
    places: Vec<Place>,
    times: Vec<TimePlace>,
    /// Bytes appended since the last entry.
    gap: u32,
}

impl Index {
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    pub fn times(&self) -> &[TimePlace] {
        &self.times
    }

    /// Bytes that the larger of the two files would have.
    pub fn bytes(&self) -> u32 {
        (self.places.len() * 8).max(self.times.len() * 12) as u32
    }

    /// Kafka's rule: an entry for a batch that begins more than `interval` bytes after the last entry's.
    /// `newest` is the largest timestamp so far and the (relative) last offset of the batch that has it.
    pub fn append(&mut self, batch: Place, batch_bytes: u32, interval: u32, newest: (i64, u32)) {
        if self.gap > interval {
            self.places.push(batch);
            self.append_time(newest);
            self.gap = 0;
        }
        self.gap = self.gap.saturating_add(batch_bytes);
    }

    /// A batch that has its entry was met again.
    pub fn skip(&mut self, batch_bytes: u32) {
        self.gap = self.gap.saturating_add(batch_bytes);
    }

    /// Entries have strictly increasing timestamps.
    pub fn append_time(&mut self, (timestamp, last): (i64, u32)) {
        if self.times.last().is_none_or(|t| timestamp > t.timestamp) && timestamp >= 0 {
            self.times.push(TimePlace { timestamp, last });
        }
    }

    /// From where to walk to the batch that holds `offset`: the last known place at or before it.
    pub fn before(&self, offset: u32) -> Option<Place> {
        let i = self.places.partition_point(|p| {
            p.last <= offset || (p.base != Place::UNKNOWN && p.base <= offset)
        });
        i.checked_sub(1).map(|i| self.places[i])
    }

    /// The batch that holds `offset`, and where the one behind it begins (`None`: no entry is behind it), if entries alone tell.
    /// They do where every batch has one: with batches larger than the interval.
    pub fn exact(&self, offset: u32) -> Option<(Place, Option<Place>)> {
        let i = self.places.partition_point(|p| {
            p.last <= offset || (p.base != Place::UNKNOWN && p.base <= offset)
        });
        let place = self.places[i.checked_sub(1)?];
        let known = place.base != Place::UNKNOWN && place.base <= offset && offset <= place.last;
        match self.places.get(i) {
            _ if !known => None,
            Some(next) => (next.base == place.last + 1).then_some((place, Some(*next))),
            None => Some((place, None)),
        }
    }

    /// The last known place at or before byte `at`.
    pub fn at_or_before_byte(&self, at: u64) -> Option<Place> {
        let i = self.places.partition_point(|p| u64::from(p.at) <= at);
        i.checked_sub(1).map(|i| self.places[i])
    }

    /// A walk met the batch of an entry whose base was not known.
    pub fn learn(&mut self, batch: Place) {
        if let Ok(i) = self.places.binary_search_by_key(&batch.at, |p| p.at)
            && self.places[i].last == batch.last
        {
            self.places[i].base = batch.base;
        }
    }

    /// The last entry whose timestamp is below `timestamp`: what is before it is older.
    pub fn before_time(&self, timestamp: i64) -> Option<TimePlace> {
        let i = self.times.partition_point(|t| t.timestamp < timestamp);
        i.checked_sub(1).map(|i| self.times[i])
    }

    /// The entries of batches below byte `at`, where the (relative) offset is `next`.
    pub fn below(&self, at: u64, next: u32) -> (&[Place], &[TimePlace]) {
        let places = self.places.partition_point(|p| u64::from(p.at) < at);
        let times = self.times.partition_point(|t| t.last < next);
        (&self.places[..places], &self.times[..times])
    }

    pub fn encode_offsets(&self) -> Bytes {
        encode_offsets(&self.places)
    }

    pub fn encode_times(&self) -> Bytes {
        encode_times(&self.times)
    }

    /// `None` when the files are not what a closed segment of `segment_bytes` has: rebuild them.
    pub fn decode(offsets: &[u8], times: &[u8], segment_bytes: u64) -> Option<Index> {
        if !offsets.len().is_multiple_of(8) || !times.len().is_multiple_of(12) {
            return None;
        }
        let mut index = Index::default();
        for e in offsets.chunks_exact(8) {
            let last = u32::from_be_bytes(e[..4].try_into().expect("four bytes"));
            let at = u32::from_be_bytes(e[4..].try_into().expect("four bytes"));
            let follows = index
                .places
                .last()
                .is_none_or(|p| p.last < last && p.at < at);
            if !follows || last > i32::MAX as u32 || u64::from(at) >= segment_bytes {
                return None;
            }
            index.places.push(Place {
                base: Place::UNKNOWN,
                last,
                at,
            });
        }
        for e in times.chunks_exact(12) {
            let timestamp = i64::from_be_bytes(e[..8].try_into().expect("eight bytes"));
            let last = u32::from_be_bytes(e[8..].try_into().expect("four bytes"));
            let follows = index
                .times
                .last()
                .is_none_or(|t| t.timestamp < timestamp && t.last <= last);
            if !follows {
                return None;
            }
            index.times.push(TimePlace { timestamp, last });
        }
        Some(index)
    }
}

/// Kafka's `.index`: relative last offset and position, 8 bytes an entry.
pub(crate) fn encode_offsets(places: &[Place]) -> Bytes {
    let mut out = Vec::with_capacity(places.len() * 8);
    for p in places {
        out.extend_from_slice(&p.last.to_be_bytes());
        out.extend_from_slice(&p.at.to_be_bytes());
    }
    Bytes::from(out)
}

/// Kafka's `.timeindex`: timestamp and relative offset, 12 bytes an entry.
pub(crate) fn encode_times(times: &[TimePlace]) -> Bytes {
    let mut out = Vec::with_capacity(times.len() * 12);
    for t in times {
        out.extend_from_slice(&t.timestamp.to_be_bytes());
        out.extend_from_slice(&t.last.to_be_bytes());
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kafkas() {
        let mut index = Index::default();
        // Batches of 3000 bytes and two records each at interval 4096: the third is the first with more than 4096 before.
        for i in 0..6u32 {
            let place = Place {
                base: i * 2,
                last: i * 2 + 1,
                at: i * 3000,
            };
            index.append(place, 3000, 4096, (1000 + i64::from(i), i * 2 + 1));
        }
        let entries: Vec<_> = index.places().iter().map(|p| (p.last, p.at)).collect();
        assert_eq!(entries, [(5, 6000), (9, 12000)]);
        assert_eq!(
            index.encode_offsets()[..],
            [0, 0, 0, 5, 0, 0, 0x17, 0x70, 0, 0, 0, 9, 0, 0, 0x2e, 0xe0]
        );
        assert_eq!(
            index.encode_times()[..12],
            [0, 0, 0, 0, 0, 0, 3, 0xea, 0, 0, 0, 5]
        );
        assert_eq!(index.before(3), None);
        assert_eq!(
            index.before(4).map(|p| p.at),
            Some(6000),
            "the base is known"
        );
        let read = Index::decode(&index.encode_offsets(), &index.encode_times(), 18_000).unwrap();
        assert_eq!(read.before(4), None, "the base is not in the file");
        assert_eq!(read.before(5).map(|p| p.at), Some(6000));
        assert_eq!(read.before_time(1002), None);
        assert_eq!(read.before_time(1003).map(|t| t.last), Some(5));
    }

    #[test]
    fn neighbours_tell_where_a_batch_ends() {
        let place = |base, last, at| Place { base, last, at };
        let mut index = Index {
            places: vec![
                place(2, 3, 3000),
                place(4, 7, 6000),
                place(10, 11, 12000),
                place(Place::UNKNOWN, 15, 18000),
                place(16, 19, 24000),
            ],
            ..Index::default()
        };
        let exact = |index: &Index, offset| {
            let told = index.exact(offset);
            told.map(|(place, next)| (place.at, next.map(|next| next.at)))
        };
        assert_eq!(exact(&index, 1), None, "no entry is before it");
        assert_eq!(exact(&index, 2), Some((3000, Some(6000))));
        assert_eq!(exact(&index, 3), Some((3000, Some(6000))));
        assert_eq!(exact(&index, 4), None, "another batch is between");
        assert_eq!(exact(&index, 8), None);
        assert_eq!(exact(&index, 11), None, "where the next begins is unknown");
        assert_eq!(exact(&index, 15), None);
        assert_eq!(exact(&index, 19), Some((24000, None)));
        assert_eq!(exact(&index, 20), None);
        index.learn(place(12, 15, 18000));
        assert_eq!(exact(&index, 11), Some((12000, Some(18000))));
        assert_eq!(exact(&index, 13), Some((18000, Some(24000))));
    }

    #[test]
    fn damaged_files_are_refused() {
        let good = [0, 0, 0, 5, 0, 0, 0x17, 0x70u8];
        assert!(Index::decode(&good, &[], 6001).is_some());
        assert!(
            Index::decode(&good, &[], 6000).is_none(),
            "past the segment"
        );
        assert!(Index::decode(&good[..7], &[], 6001).is_none());
        assert!(
            Index::decode(&[good, good].concat(), &[], 6001).is_none(),
            "not increasing"
        );
        assert!(Index::decode(&good, &[0; 11], 6001).is_none());
    }
}
