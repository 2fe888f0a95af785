//! Bugs on purpose in the real binary (feature `planted-bugs`): `CORELANE_PLANT` names them, so that the restart tests can show that they
//! find such a broker.

use crate::log::planted::{BUGS, Bug, plant};
use crate::model::Instant;

/// Plants what the environment asks for on this shard's thread.
pub(super) fn from_environment() {
    let Ok(wanted) = std::env::var("CORELANE_PLANT") else {
        return;
    };
    let bugs: Vec<Bug> = wanted
        .split(',')
        .map(|name| {
            BUGS.into_iter()
                .find(|bug| format!("{bug:?}") == name)
                .unwrap_or_else(|| panic!("CORELANE_PLANT={wanted}: there is no bug {name}"))
        })
        .collect();
    tracing::warn!(?bugs, "bugs are planted in this broker");
    plant(&bugs);
}

/// Keeps what is to be written from the kernel for `CORELANE_HOLD_WRITES_MS`. No bug by itself: a slow disk whose queue dies with the
/// process, where one in the kernel would be written although its process is killed.
pub(super) struct Hold {
    ms: u64,
    since: Option<Instant>,
}

impl Hold {
    pub fn from_environment() -> Hold {
        let ms = std::env::var("CORELANE_HOLD_WRITES_MS").unwrap_or_default();
        Hold {
            ms: ms.parse().unwrap_or(0),
            since: None,
        }
    }

    /// Whether what is there waits for longer. `empty`: there is nothing.
    pub fn holds(&mut self, now: Instant, empty: bool) -> bool {
        if empty || self.ms == 0 {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let holds = now < since.after_ms(self.ms);
        if !holds {
            self.since = None;
        }
        holds
    }
}
