#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tensorserve_fuzz::http2.check(input));
