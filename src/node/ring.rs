//! The one `io_uring` of a shard: sockets' readiness and direct I/O.
//!
//! Single issuer, task work deferred: completions are posted only when this thread asks, so a busy turn is not interrupted, and the
//! flag word in shared memory tells without a system call whether asking would give anything. A registered eventfd is signalled as
//! soon as something completes; it is what a parked executor waits for, and is switched off while the shard is busy.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue, opcode, types};
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

/// `user_data` of the ring's own entries; net and disk use none of these.
const OWN: u64 = 7 << 60;
const OWN_WAKE: u64 = OWN | 1;

/// Wakes the thread of a ring, from any thread: an eventfd that the ring polls.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub fn new() -> io::Result<Waker> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Waker(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    pub fn wake(&self) {
        // Fails only when the counter is full, after 2^64 wake-ups.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

pub struct Ring {
    ring: IoUring,
    waker: Waker,
    /// Somebody called [`Waker::wake`] since the last [`Ring::take_woken`].
    woken: bool,
}

impl Ring {
    /// To be called on the thread that will use it. A plain error (ENOSYS, EPERM, EINVAL) means that this kernel or sandbox has not
    /// what is needed: Linux 6.1.
    pub fn new(waker: Waker) -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(SUBMISSIONS)?;
        let mut ring = Ring {
            ring,
            waker,
            woken: false,
        };
        ring.poll_waker()?;
        ring.submit()?;
        Ok(ring)
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Queues all entries, in order, for the next system call; `entries` is empty afterwards. A write and the flush linked behind it
    /// stay in one submission, or the link would be cut.
    pub fn push(&mut self, entries: &mut Vec<Entry>) -> io::Result<()> {
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
                self.enter()?;
            }
            // SAFETY: net and disk own the memory and the descriptors that their entries name until the completion comes, and leak
            // them rather than free them early.
            unsafe { self.ring.submission().push(entry) }
                .map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        }
        entries.clear();
        Ok(())
    }

    fn push_own(&mut self, entry: Entry) -> io::Result<()> {
        self.push(&mut vec![entry])
    }

    fn poll_waker(&mut self) -> io::Result<()> {
        // Never read: every write to it is a change, and that is what a multishot poll tells of.
        let poll = opcode::PollAdd::new(types::Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32);
        self.push_own(poll.multi(true).build().user_data(OWN_WAKE))
    }

    /// Hands what is queued to the kernel; no system call when there is nothing.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter()
    }

    fn enter(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Ok(_) if !self.ring.submission().is_empty() => {}
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is out of memory for requests, or wants its completions taken first: it will go on.
                    Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
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
            self.enter()?;
        }
        let mut poll_ended = false;
        for entry in self.ring.completion() {
            match entry.user_data() {
                OWN_WAKE => {
                    self.woken = true;
                    poll_ended |= !cqueue::more(entry.flags());
                }
                user_data => take(Completion {
                    user_data,
                    result: entry.result(),
                    flags: entry.flags(),
                }),
            }
        }
        if poll_ended {
            self.poll_waker()?;
        }
        Ok(())
    }

    /// Whether somebody called [`Waker::wake`] since the last call, as far as completions were reaped.
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Submits, and waits for a completion, without a `timeout` for as long as it takes. May end early.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(types::Timespec::from);
        let args = types::SubmitArgs::new();
        let args = match &timespec {
            Some(timespec) => args.timespec(timespec),
            None => args,
        };
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}
