//! The `gnnflow` program.

fn main() {}
