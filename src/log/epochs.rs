//! Which leader epoch began at which offset (Kafka's `leader-epoch-checkpoint`).

/// `epoch` began at `start`; it ends where the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochStart {
    pub epoch: i32,
    pub start: i64,
}

/// Strictly increasing in both epoch and start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaderEpochs {
    entries: Vec<EpochStart>,
}

impl LeaderEpochs {
    pub fn entries(&self) -> &[EpochStart] {
        &self.entries
    }

    pub fn latest(&self) -> Option<EpochStart> {
        self.entries.last().copied()
    }

    /// The epoch of the record at `offset`.
    pub fn epoch_at(&self, offset: i64) -> Option<i32> {
        let i = self.entries.partition_point(|e| e.start <= offset);
        i.checked_sub(1).map(|i| self.entries[i].epoch)
    }

    /// `epoch` begins at `start`. False when it is known or older. A later epoch that begins at or below the start of
    /// known ones replaces them: they hold no record.
    pub fn assign(&mut self, epoch: i32, start: i64) -> bool {
        if epoch < 0 || self.latest().is_some_and(|last| epoch <= last.epoch) {
            return false;
        }
        while self.latest().is_some_and(|last| last.start >= start) {
            self.entries.pop();
        }
        self.entries.push(EpochStart { epoch, start });
        true
    }

    /// A batch of `epoch` was met at `start`: what was known to begin later, or there with another epoch, is not so.
    pub fn met(&mut self, epoch: i32, start: i64) {
        while self
            .latest()
            .is_some_and(|l| l.start > start || (l.start == start && l.epoch > epoch))
        {
            self.entries.pop();
        }
        self.assign(epoch, start);
    }

    /// Kafka's OffsetForLeaderEpoch: the largest known epoch not above `epoch`, and where it ends. (-1, -1) when the
    /// epoch is unknown or in the future; for one below the first known, the epoch asked for and the first start.
    pub fn end_offset_for(&self, epoch: i32, log_end: i64) -> (i32, i64) {
        let Some(last) = self.latest() else {
            return (-1, -1);
        };
        if epoch < 0 || epoch > last.epoch {
            return (-1, -1);
        }
        if epoch == last.epoch {
            return (epoch, log_end);
        }
        let i = self.entries.partition_point(|e| e.epoch <= epoch);
        match i.checked_sub(1) {
            None => (epoch, self.entries[0].start),
            Some(before) => (self.entries[before].epoch, self.entries[i].start),
        }
    }

    /// Forgets what begins at or after `end`.
    pub fn truncate_end(&mut self, end: i64) {
        self.entries.retain(|e| e.start < end);
    }

    /// Forgets what lies below `start`; the epoch that `start` is in now begins there.
    pub fn truncate_start(&mut self, start: i64) {
        let i = self.entries.partition_point(|e| e.start <= start);
        if let Some(holder) = i.checked_sub(1) {
            self.entries.drain(..holder);
            self.entries[0].start = start;
        }
    }

    /// Kafka's text: version 0, the count, one `epoch start` a line.
    pub fn encode(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("0\n{}\n", self.entries.len());
        for e in &self.entries {
            let _ = writeln!(text, "{} {}", e.epoch, e.start);
        }
        text
    }

    /// `None` for anything but what Kafka writes.
    pub fn decode(text: &str) -> Option<LeaderEpochs> {
        let mut lines = text.lines();
        if lines.next()?.trim() != "0" {
            return None;
        }
        let count: usize = lines.next()?.trim().parse().ok()?;
        let mut epochs = LeaderEpochs::default();
        for line in lines.by_ref() {
            let (epoch, start) = line.trim().split_once(' ')?;
            let (epoch, start) = (epoch.parse().ok()?, start.parse().ok()?);
            if epoch < 0
                || epochs
                    .latest()
                    .is_some_and(|l| epoch <= l.epoch || start <= l.start)
            {
                return None;
            }
            epochs.entries.push(EpochStart { epoch, start });
        }
        (epochs.entries.len() == count).then_some(epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(i32, i64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::default();
        for &(epoch, start) in pairs {
            assert!(epochs.assign(epoch, start));
        }
        epochs
    }

    #[test]
    fn end_offsets_follow_kafkas_rules() {
        // Epochs [2: 10..20) [5: 20..30) [7: 30..
        let epochs = of(&[(2, 10), (5, 20), (7, 30)]);
        let cases = [
            (7, (7, 42)),   // the latest ends at the log's end
            (8, (-1, -1)),  // from the future
            (-1, (-1, -1)), // undefined
            (6, (5, 30)),   // the largest known below
            (5, (5, 30)),
            (2, (2, 20)),
            (1, (1, 10)), // below the first known: its start
        ];
        for (asked, expected) in cases {
            assert_eq!(epochs.end_offset_for(asked, 42), expected, "epoch {asked}");
        }
        assert_eq!(LeaderEpochs::default().end_offset_for(0, 0), (-1, -1));
    }

    #[test]
    fn an_epoch_without_records_is_replaced() {
        let mut epochs = of(&[(1, 0), (2, 7)]);
        assert!(epochs.assign(3, 7));
        assert!(!epochs.assign(3, 9) && !epochs.assign(2, 9));
        assert_eq!(epochs, of(&[(1, 0), (3, 7)]));
    }

    #[test]
    fn a_batch_that_was_met_is_believed_more_than_an_old_checkpoint() {
        let mut epochs = of(&[(1, 0), (2, 26), (3, 46)]);
        epochs.met(3, 23);
        assert_eq!(epochs, of(&[(1, 0), (3, 23)]));
        epochs.met(3, 30);
        assert_eq!(epochs, of(&[(1, 0), (3, 23)]));
    }

    #[test]
    fn truncation_keeps_the_epoch_of_what_remains() {
        let mut epochs = of(&[(1, 0), (2, 7), (3, 20)]);
        epochs.truncate_end(20);
        assert_eq!(epochs.latest().map(|e| e.epoch), Some(2));
        epochs.truncate_start(9);
        assert_eq!(epochs.entries(), of(&[(2, 9)]).entries());
        assert_eq!((epochs.epoch_at(8), epochs.epoch_at(9)), (None, Some(2)));
    }

    #[test]
    fn the_checkpoint_is_kafkas_text() {
        let epochs = of(&[(0, 0), (4, 100)]);
        assert_eq!(epochs.encode(), "0\n2\n0 0\n4 100\n");
        assert_eq!(LeaderEpochs::decode("0\n2\n0 0\n4 100\n"), Some(epochs));
        for bad in [
            "",
            "1\n0\n",
            "0\n2\n0 0\n",
            "0\n1\nx 0\n",
            "0\n2\n4 0\n0 9\n",
        ] {
            assert_eq!(LeaderEpochs::decode(bad), None, "{bad:?}");
        }
    }
}
