//! Everything against small servers on this machine, good and bad ones.

mod changing;
mod hostile;
mod reading;
mod redirects;
mod server;
