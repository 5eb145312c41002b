//! Shows libraries that are opened at run time the `pread` of this program (`crates/os`), which
//! reads in pieces: an executable keeps its symbols to itself otherwise.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        for symbol in ["pread", "pread64"] {
            println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
        }
    }
}
