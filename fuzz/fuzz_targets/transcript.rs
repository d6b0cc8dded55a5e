#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| unstuck_fuzz::transcript(input));
