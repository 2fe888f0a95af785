//! What is due by time.

use super::op::{DiskOp, OpId};
use super::ops::Task;
use super::store::Store;
use crate::model::{Instant, Now};

impl Store {
    /// Flushes that are due, retries after a full disk, files to close.
    pub fn tick(&mut self, now: Now, out: &mut Vec<(OpId, DiskOp)>) {
        self.now = now;
        if self.journal.refused_until.is_some_and(|at| at <= now.mono) {
            self.journal.refused_until = None;
            self.journal.prepare(&self.config, &mut self.ops);
        }
        if self.journal.keep_again.is_some_and(|at| at <= now.mono) {
            self.journal.keep_again = None;
            self.release_journal();
        }
        for index in std::mem::take(&mut self.full) {
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                continue;
            };
            match log.full_until {
                Some(at) if at > now.mono => self.full.push(index),
                _ => {
                    log.full_until = None;
                    self.pump(index);
                    // A log that is still being made has nothing but its chain.
                    self.run_chain(index);
                    self.note_progress(index);
                }
            }
        }
        while let Some(&(due, index)) = self.flush_due.first()
            && due <= now.mono
        {
            self.flush_due.pop_first();
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                continue;
            };
            log.flush_due = None;
            if log.flushed < log.written {
                log.want_flush_to = log.want_flush_to.max(log.written);
                let again = now.mono.after_ms(self.config.flush_interval_ms);
                log.flush_due = Some(again);
                self.flush_due.insert((again, index));
                self.pump(index);
            }
        }
        let again = std::mem::take(&mut self.load_again);
        for (due, index) in again {
            if due <= now.mono {
                self.load_again_now(index);
            } else {
                self.load_again.push((due, index));
            }
        }
        self.remove_deleted();
        self.retain();
        self.look_at_age();
        self.journal.flush_if_wanted(&mut self.ops);
        self.close_doomed();
        self.ops.hand_over(out, self.now.mono);
    }

    /// An operation that does not come back takes the dir out of use; its memory stays lent until it does.
    fn look_at_age(&mut self) {
        let timeout_ms = self.config.failure_timeout_ms;
        if let Some(at) = self.ops.oldest()
            && at.after_ms(timeout_ms) <= self.now.mono
        {
            self.fail(format!(
                "an operation has not come back for {timeout_ms} ms"
            ));
        }
    }

    /// When `tick` has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let full = self
            .full
            .iter()
            .filter_map(|i| self.logs[*i as usize].as_deref()?.full_until)
            .min();
        let flush = self.flush_due.first().map(|(at, _)| *at);
        let doomed = (!self.doomed.is_empty()).then(|| self.now.mono.after_ms(1000));
        let again = self.load_again.iter().map(|(due, _)| *due).min();
        [
            full,
            flush,
            doomed,
            again,
            self.next_deletion(),
            self.next_round(),
            self.failed
                .is_none()
                .then(|| self.ops.oldest())
                .flatten()
                .map(|at| at.after_ms(self.config.failure_timeout_ms)),
            self.journal.refused_until,
            self.journal.keep_again,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Closes files that nothing planned for sending holds any more.
    pub(super) fn close_doomed(&mut self) {
        let ops = &mut self.ops;
        self.doomed.retain(|file| {
            let held = std::rc::Rc::strong_count(file) > 1;
            if !held {
                ops.issue(Task::Loose, DiskOp::Close { file: file.id });
            }
            held
        });
    }
}
