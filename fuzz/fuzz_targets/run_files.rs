#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    gnnflow_pipelines::fuzz::run_files(bytes);
});
