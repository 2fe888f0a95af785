//! The features of this release (KIP-584): what a cluster may agree to use.

/// A feature and the levels that this release knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    pub name: &'static str,
    pub min: i16,
    pub max: i16,
}

/// `transaction.version`, `group.version` and the like join when they work. A new cluster has the highest level of each.
pub const FEATURES: &[Feature] = &[Feature {
    name: "metadata.version",
    min: 7,
    max: 33,
}];
