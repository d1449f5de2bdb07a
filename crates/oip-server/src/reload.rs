//! Reloads files on SIGHUP.

use tokio::task::spawn_blocking;

/// The independent parts of the server that are reloaded. A part that fails to reload keeps its previous
/// state and does not affect the other parts.
#[derive(Default)]
pub(crate) struct Reloads(Vec<Reload>);

/// A part: its name in the log, and a function that reloads it and returns what happened.
type Reload = (&'static str, Box<dyn FnMut() -> Result<String, String> + Send>);

impl Reloads {
    /// Adds a part, called `what` in the log.
    pub(crate) fn add(
        &mut self,
        what: &'static str,
        reload: impl FnMut() -> Result<String, String> + Send + 'static,
    ) {
        self.0.push((what, Box::new(reload)));
    }

    /// Reloads all parts on a blocking thread.
    pub(crate) async fn run(self) -> Self {
        let mut reloads = self;
        if reloads.0.is_empty() {
            tracing::info!("nothing is to be read again");
            return reloads;
        }
        let reloading = spawn_blocking(move || {
            for (what, reload) in &mut reloads.0 {
                match reload() {
                    Ok(outcome) => tracing::info!(what, outcome, "reloaded"),
                    Err(reason) => tracing::warn!(what, reason, "not reloaded, the old one stays"),
                }
            }
            reloads
        });
        // A panic is already logged. Afterwards nothing can be reloaded any more.
        reloading.await.unwrap_or_default()
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
