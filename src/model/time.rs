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

/// Lets one through per interval and counts what it held back, so that a flood of log lines is one line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rarely {
    next: Instant,
    held: u64,
}

impl Rarely {
    /// How many were held back since the last one, if this one may pass.
    pub fn passes(&mut self, now: Instant, interval_ms: u64) -> Option<u64> {
        if now < self.next {
            self.held += 1;
            return None;
        }
        self.next = now.after_ms(interval_ms);
        Some(std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_passes_per_interval_and_tells_how_many_did_not() {
        let mut rarely = Rarely::default();
        let told: Vec<_> = [0, 1, 999, 1000, 1001, 5000]
            .map(|ms| rarely.passes(Instant(ms * 1000), 1000))
            .into();
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
