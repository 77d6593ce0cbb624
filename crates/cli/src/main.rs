//! The `lockkeeper` program.
fn main() {}
