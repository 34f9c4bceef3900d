//! Panics of the decoders of Parquet and Arrow. Some damaged files cause them; they are errors of the file.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};

/// Panic message of zstd's bindings if the system has no memory left.
pub const NO_MEMORY: &str = "zstd returned null pointer";

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a damaged file causes the panic of this thread. Hooks do not report such a panic: it becomes an error of the file.
pub fn is_of_a_file(info: &PanicHookInfo<'_>) -> bool {
    DECODING.get() && !is_of_the_machine(info.payload())
}

/// Calls `decode`, a function of one of these decoders. Returns the message of its panic as an error.
pub(crate) fn guard<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
    DECODING.set(true);
    let done = catch_unwind(AssertUnwindSafe(decode));
    DECODING.set(false);
    done.map_err(|payload| {
        if is_of_the_machine(&*payload) {
            resume_unwind(payload);
        }
        format!("the file is damaged ({})", message(&*payload).replace('\n', " "))
    })
}

fn is_of_the_machine(payload: &(dyn Any + Send)) -> bool {
    message(payload).starts_with(NO_MEMORY)
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}
