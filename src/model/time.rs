//! Time as data: the shells read the clocks once per turn and pass [`Now`] in.

/// Milliseconds since the Unix epoch, Kafka's timestamps.
pub type WallMs = i64;

/// Monotonic microseconds since some start; never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    pub fn after_ms(self, ms: u64) -> Instant {
        Instant(self.0.saturating_add(ms.saturating_mul(1000)))
    }

    pub fn after_us(self, us: u64) -> Instant {
        Instant(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to `self`, 0 if `earlier` is later.
    pub fn since_us(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both clocks, as read at the start of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    pub mono: Instant,
    pub wall: WallMs,
}
