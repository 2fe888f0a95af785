//! The tools.

/// Runs the command line of this process.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
