//! What the tools say on the standard output. Whoever reads it may stop early (`corelane topics describe | head -1`): that ends the tool
//! quietly, as it ends others. Any other failure, such as a full disk, ends it with a line and exit code 1. `println!` would panic.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// `println!` for a tool; see the module.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::out::line(format_args!($($text)*)) };
}
pub(super) use say;

pub(super) fn line(text: Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        gone(&error);
    }
}

/// Ends the process: nothing more can be said.
fn gone(error: &std::io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(
        std::io::stderr(),
        "corelane: cannot write the output: {error}"
    );
    std::process::exit(1)
}
