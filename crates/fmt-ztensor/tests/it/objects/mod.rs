//! Versions 1.x and 2.x: the corpora, files of the Python packages, and files that were good before something happened.

mod cases;
mod hostile;
mod real;
pub(crate) mod support;
mod writing;
