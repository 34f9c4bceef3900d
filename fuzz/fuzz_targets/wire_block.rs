#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    gnnflow_dataflow::fuzz::wire_block(bytes);
});
