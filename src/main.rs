//! The `gnnflow` program.

use gnnflow_nn::alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> std::process::ExitCode {
    gnnflow::App::new().main()
}
