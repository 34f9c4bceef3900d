//! The `gnnflow` program.

use gnnflow_operators::compute::alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> std::process::ExitCode {
    gnnflow::App::new().main()
}
