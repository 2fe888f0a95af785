//! The one `io_uring` of a shard: sockets' readiness and direct I/O.
//!
//! Single issuer, task work deferred: completions are posted only when this thread asks, so a busy turn is not interrupted, and the
//! flag word in shared memory tells without a system call whether asking would give anything. A registered eventfd is signalled as
//! soon as something completes; it is what a parked executor waits for, and is switched off while the shard is busy.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::event::EventfdFlags;

/// Entries of the submission queue. More than this in one turn costs one more system call per round.
const SUBMISSIONS: u32 = 512;

/// Entries of the completion queue: room for a burst, so that the kernel does not have to keep completions itself.
const COMPLETIONS: u32 = 8192;

#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

pub struct Ring {
    ring: IoUring,
    eventfd: Arc<OwnedFd>,
}

impl Ring {
    /// To be called on the thread that will use it. A plain error (ENOSYS, EPERM, EINVAL) means that this kernel or sandbox has not
    /// what is needed: Linux 6.1.
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(SUBMISSIONS)?;
        // Blocking on purpose: a ring read of a non-blocking eventfd gives EAGAIN at once instead of waiting.
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let mut ring = Ring {
            ring,
            eventfd: Arc::new(eventfd),
        };
        ring.quiet(true);
        Ok(ring)
    }

    /// Readable when the ring has completions (unless quiet) or somebody called [`wake`].
    pub fn eventfd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.eventfd)
    }

    /// The ring's own descriptor: polls readable, from any thread, while completions wait.
    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Whether completions signal the eventfd. After switching it on, look for completions once more before parking.
    pub fn quiet(&mut self, quiet: bool) {
        let completions = self.ring.completion();
        if quiet {
            completions.disable_eventfd();
        } else {
            completions.enable_eventfd();
        }
    }

    /// Hands all entries to the kernel, in order; `entries` is empty afterwards. A write and the flush linked behind it stay in one
    /// submission, or the link would be cut.
    pub fn submit(&mut self, entries: &mut Vec<Entry>) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let is_flush = |entry: Option<&Entry>| {
            entry.is_some_and(|entry| entry.get_opcode() == u32::from(opcode::Fsync::CODE))
        };
        for at in 0..entries.len() {
            let entry = &entries[at];
            let room = {
                let queue = self.ring.submission();
                queue.capacity() - queue.len()
            };
            let pair_begins = !is_flush(Some(entry)) && is_flush(entries.get(at + 1));
            if room == 0 || (pair_begins && room < 2) {
                self.enter(0)?;
            }
            // SAFETY: net and disk own the memory and the descriptors that their entries name until the completion comes, and leak
            // them rather than free them early.
            unsafe { self.ring.submission().push(entry) }
                .map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        }
        entries.clear();
        self.enter(0)
    }

    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) if want == 0 && !self.ring.submission().is_empty() => {}
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is out of memory for requests, or wants its completions taken first: it will go on.
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        if want == 0 {
                            std::thread::yield_now();
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// Whether [`Ring::reap`] would give something. No system call.
    pub fn has_completions(&mut self) -> bool {
        let pending = {
            let queue = self.ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        pending || !self.ring.completion().is_empty()
    }

    /// Takes what has completed; a system call only when the kernel says that there is something to post.
    pub fn reap(&mut self, mut take: impl FnMut(Completion)) -> io::Result<()> {
        let pending = {
            let queue = self.ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        if pending {
            self.enter(0)?;
        }
        for entry in self.ring.completion() {
            take(Completion {
                user_data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            });
        }
        Ok(())
    }

    /// Waits on this thread for a completion; for a shard that naps instead of parking, and for tests.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timespec = types::Timespec::from(timeout);
        let args = types::SubmitArgs::new().timespec(&timespec);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

/// Makes a ring's eventfd readable, from any thread.
pub fn wake(eventfd: &OwnedFd) {
    // Only fails when the counter is full, and then it is readable anyway.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}
