//! One plain thread that sees shards from outside: it nudges an executor that parked although something waits for it (see
//! [`super::park`]), and says when a shard does not turn.
//!
//! It sleeps until some ring has completions; while that is so it looks every [`BEAT`]. An idle process does not wake it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing::warn;

/// A shard that does not turn for so long although its ring has something is nudged: the bound on a wrong park is two of these.
pub const BEAT: Duration = Duration::from_millis(5);

/// A shard that does not turn for so long is reported. A turn is to take a quarter of a millisecond.
const REPORT_AFTER: Duration = Duration::from_millis(250);

/// What the metronome knows of a shard.
pub(super) struct Watched {
    /// Counts turns. The one thing that threads share by themselves.
    pub turns: Arc<AtomicU64>,
    /// Polls readable while the ring has completions.
    pub ring: OwnedFd,
    pub nudge: flume::Sender<()>,
}

struct Beat {
    turns: u64,
    since: Instant,
    reported: bool,
}

/// Ends when `end` becomes readable.
pub(super) fn start(shards: Vec<Watched>, end: Arc<OwnedFd>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("metronome".into())
        .stack_size(128 * 1024)
        .spawn(move || watch(&shards, &end))?;
    Ok(())
}

fn watch(shards: &[Watched], end: &OwnedFd) {
    let mut beats: Vec<Beat> = Vec::new();
    loop {
        if !wait(shards, end) {
            return;
        }
        let now = Instant::now();
        beats.clear();
        beats.extend(shards.iter().map(|shard| Beat {
            turns: shard.turns.load(Ordering::Relaxed),
            since: now,
            reported: false,
        }));
        loop {
            std::thread::sleep(BEAT);
            let mut waiting = false;
            for (index, (shard, beat)) in shards.iter().zip(&mut beats).enumerate() {
                waiting |= look(index, shard, beat);
            }
            if !waiting {
                break;
            }
        }
    }
}

/// Until some ring has completions; false when it is time to end.
fn wait(shards: &[Watched], end: &OwnedFd) -> bool {
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(shards.len() + 1);
    fds.push(PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
    fds.extend(
        shards
            .iter()
            .map(|shard| PollFd::from_borrowed_fd(shard.ring.as_fd(), PollFlags::IN)),
    );
    // EINTR and the like only make it look too early.
    let _ = rustix::event::poll(&mut fds, None);
    fds[0].revents().is_empty()
}

/// Whether the shard has something that it does not take.
fn look(index: usize, shard: &Watched, beat: &mut Beat) -> bool {
    let turns = shard.turns.load(Ordering::Relaxed);
    let mut fds = [PollFd::from_borrowed_fd(shard.ring.as_fd(), PollFlags::IN)];
    let waits = matches!(
        rustix::event::poll(&mut fds, Some(&Timespec::default())),
        Ok(1..)
    );
    let stuck = beat.since.elapsed();
    if turns != beat.turns || !waits {
        if beat.reported {
            warn!(
                shard = index,
                ms = stuck.as_millis() as u64,
                "the shard turns again"
            );
        }
        *beat = Beat {
            turns,
            since: Instant::now(),
            reported: false,
        };
        return false;
    }
    // Full means that it has not taken the last one yet.
    let _ = shard.nudge.try_send(());
    if stuck >= REPORT_AFTER && !beat.reported {
        beat.reported = true;
        warn!(
            shard = index,
            ms = stuck.as_millis() as u64,
            "the shard does not turn: a turn takes very long, or its core is taken by others"
        );
    }
    true
}
