//! PyTorch checkpoints: what is read, what is refused, and what hostile ones come to.

mod hostile;
mod reading;
mod support;
