//! Bugs on purpose in the real binary (feature `planted-bugs`): `CORELANE_PLANT` names them, so that the restart tests can show that they
//! find such a broker.

use crate::log::planted::{BUGS, Bug, plant};

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
