//! gnnflow, the library entry.
