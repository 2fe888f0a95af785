//! One plain thread that sees shards from outside, and says when a turn does not end.
//!
//! A shard at rest is not looked into: it waits in its ring, where everything that concerns it ends the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::warn;

/// How often it looks: an idle process has these wake-ups.
const BEAT: Duration = Duration::from_millis(250);

/// Counts both ends of the turns of a shard, so that it is odd within one. The one thing that threads share by themselves.
#[derive(Clone, Default, Debug)]
pub(super) struct TurnCount(Arc<AtomicU64>);

impl TurnCount {
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends when the other side of `end` is dropped.
pub(super) fn start(shards: Vec<TurnCount>, end: flume::Receiver<()>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("metronome".into())
        .stack_size(128 * 1024)
        .spawn(move || {
            let mut beats: Vec<Beat> = shards.into_iter().map(Beat::new).collect();
            while end.recv_timeout(BEAT) == Err(flume::RecvTimeoutError::Timeout) {
                for (index, beat) in beats.iter_mut().enumerate() {
                    tell(index, beat.look(Instant::now()));
                }
            }
        })?;
    Ok(())
}

struct Beat {
    turns: TurnCount,
    seen: u64,
    since: Instant,
    reported: bool,
}

/// What is new about a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Nothing,
    Stuck(Duration),
    GoesOn(Duration),
}

impl Beat {
    fn new(turns: TurnCount) -> Beat {
        Beat {
            seen: 0,
            turns,
            since: Instant::now(),
            reported: false,
        }
    }

    fn look(&mut self, now: Instant) -> Seen {
        let turns = self.turns.0.load(Ordering::Relaxed);
        let stuck = now - self.since;
        if turns == self.seen && turns % 2 == 1 {
            let news = !self.reported;
            self.reported = true;
            return if news {
                Seen::Stuck(stuck)
            } else {
                Seen::Nothing
            };
        }
        let reported = self.reported;
        (self.seen, self.since, self.reported) = (turns, now, false);
        if reported {
            Seen::GoesOn(stuck)
        } else {
            Seen::Nothing
        }
    }
}

fn tell(shard: usize, seen: Seen) {
    match seen {
        Seen::Nothing => {}
        Seen::Stuck(time) => warn!(
            shard,
            ms = time.as_millis() as u64,
            "a turn does not end: it takes very long, or its core is taken by others"
        ),
        Seen::GoesOn(time) => warn!(shard, ms = time.as_millis() as u64, "the shard goes on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_does_not_end_is_told_once_and_so_is_its_end() {
        let turns = TurnCount::default();
        let mut beat = Beat::new(turns.clone());
        let at = |n: u32| beat_start() + BEAT * n;
        turns.step();
        assert_eq!(beat.look(at(1)), Seen::Nothing);
        assert_eq!(beat.look(at(2)), Seen::Stuck(BEAT));
        assert_eq!(beat.look(at(3)), Seen::Nothing);
        turns.step();
        assert_eq!(beat.look(at(4)), Seen::GoesOn(BEAT * 3));
        // At rest for as long as it likes.
        assert_eq!(beat.look(at(50)), Seen::Nothing);
    }

    fn beat_start() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(|| Instant::now() + Duration::from_secs(1))
    }
}
