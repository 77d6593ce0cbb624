#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lockkeeper_fuzz::check("jute", input));
