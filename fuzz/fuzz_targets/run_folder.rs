#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    gnnflow::fuzz::run_folder(bytes);
});
