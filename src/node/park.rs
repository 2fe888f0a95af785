//! How the turn loop waits in its executor.
//!
//! Two tasks only wait: one for the ring's eventfd, one for the metronome's nudge. Either lets the loop go on. The nudge comes through
//! a channel, that is, through the executor's foreign wake-up: glommio 0.9 may park although a task is runnable, when its preemption
//! timer fires between two of its looks; nothing from inside can end that.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use glommio::io::BufferedFile;
use tracing::error;

pub(super) struct Park {
    woken: Rc<Woken>,
}

#[derive(Default)]
struct Woken {
    set: Cell<bool>,
    broken: RefCell<Option<String>>,
    waker: Cell<Option<Waker>>,
}

impl Woken {
    fn wake(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Park {
    /// To be called inside the executor.
    pub fn new(eventfd: BufferedFile, nudges: flume::Receiver<()>) -> Park {
        let woken = Rc::new(Woken::default());
        let of_ring = Rc::clone(&woken);
        glommio::spawn_local(async move {
            loop {
                // What was counted does not matter: one read takes all of it.
                match eventfd.read_at(0, 8).await {
                    Ok(_) => of_ring.wake(),
                    Err(error) => {
                        error!(%error, "reading the eventfd of a ring");
                        *of_ring.broken.borrow_mut() = Some(error.to_string());
                        of_ring.wake();
                        return;
                    }
                }
            }
        })
        .detach();
        let of_metronome = Rc::clone(&woken);
        glommio::spawn_local(async move {
            while nudges.recv_async().await.is_ok() {
                of_metronome.wake();
            }
        })
        .detach();
        Park { woken }
    }

    /// Until the ring completes something, or somebody wakes the shard. May end early.
    pub async fn wait(&self) -> Result<(), String> {
        poll_fn(|context| {
            if let Some(broken) = self.woken.broken.borrow_mut().take() {
                return Poll::Ready(Err(broken));
            }
            if self.woken.set.replace(false) {
                return Poll::Ready(Ok(()));
            }
            self.woken.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }
}
