//! The `gnnflow` program.

fn main() -> std::process::ExitCode {
    gnnflow::App::new().main()
}
