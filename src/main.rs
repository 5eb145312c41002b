//! The program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tensorserve::cli::main()
}
