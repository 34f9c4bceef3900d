//! Vector instructions: lanes, element types, and the choice of instruction set at run time.

#[doc(hidden)]
pub mod dispatch;
pub mod element;
pub(crate) mod isa;
pub mod lanes;
