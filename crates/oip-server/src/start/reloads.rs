//! Reloads files on SIGHUP.

use std::fmt::Display;

use oip_auth::Guard;
use oip_listen::Tls;
use oip_telemetry::requests::AccessLog;
use tokio::task::spawn_blocking;

use crate::telemetry::{self, Log};

/// The independent parts of the server that are reloaded. A part that fails to reload keeps its previous
/// state and does not affect the other parts.
#[derive(Default)]
pub(super) struct Reloads(Vec<Reload>);

/// A part: its name in the log, and a function that reloads it and returns what happened.
type Reload = (&'static str, Box<dyn FnMut() -> Result<String, String> + Send>);

impl Reloads {
    /// Collects the parts that were configured with files.
    pub(super) fn new(access_log: Option<&AccessLog>, log: &Log, tls: Option<&Tls>, guard: &Guard) -> Self {
        let mut reloads = Self::default();
        if let Some((access_log, file)) = access_log.and_then(|log| Some((log.clone(), log.file()?))) {
            let file = file.display().to_string();
            reloads.add("access log", move || {
                let opened = access_log.reopen();
                opened.map(|()| file.clone()).map_err(|error| error.to_string())
            });
        }
        if let Some(file) = log.config.file.clone() {
            let control = log.control.clone();
            reloads.add("log", move || telemetry::reload(&control, &file));
        }
        if let Some(tls) = tls.cloned() {
            reloads.add("certificates", move || {
                told(tls.reload_on_request(), || {
                    "new connections use the changed certificate".to_owned()
                })
            });
        }
        if let Some(path) = guard.path().map(|path| path.display().to_string()) {
            let guard = guard.clone();
            reloads.add("identities", move || {
                told(guard.reload_on_request(), || format!("{path} is in use"))
            });
        }
        reloads
    }

    /// Adds a part, called `what` in the log.
    fn add(&mut self, what: &'static str, reload: impl FnMut() -> Result<String, String> + Send + 'static) {
        self.0.push((what, Box::new(reload)));
    }

    /// Reloads all parts on a blocking thread.
    pub(super) async fn run(self) -> Self {
        let mut reloads = self;
        if reloads.0.is_empty() {
            tracing::info!("nothing to reload");
            return reloads;
        }
        let reloading = spawn_blocking(move || {
            for (what, reload) in &mut reloads.0 {
                match reload() {
                    Ok(outcome) => tracing::info!(what, outcome, "reloaded"),
                    Err(reason) => tracing::warn!(what, reason, "not reloaded, the old one stays in use"),
                }
            }
            reloads
        });
        // After a panic, which is already logged, nothing can be reloaded.
        reloading.await.unwrap_or_default()
    }
}

/// Formats the result of a reload: whether files had changed, or an error.
fn told(result: Result<bool, impl Display>, changed: impl FnOnce() -> String) -> Result<String, String> {
    match result {
        Ok(true) => Ok(changed()),
        Ok(false) => Ok("nothing has changed".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_fails_keeps_no_other_from_being_read() {
        let (sender, reloaded) = std::sync::mpsc::channel();
        let mut reloads = Reloads::default();
        reloads.add("broken", || Err("it cannot be read".to_owned()));
        reloads.add("sound", move || {
            sender.send(()).unwrap();
            Ok("read".to_owned())
        });
        reloads.run().await.run().await;
        assert_eq!(reloaded.try_iter().count(), 2);
    }
}
