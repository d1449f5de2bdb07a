//! Reads files again after SIGHUP.

use tokio::task::spawn_blocking;

/// What is read again, each part by itself: one that fails keeps what it has, and does not keep others from theirs.
#[derive(Default)]
pub(crate) struct Reloads(Vec<Reload>);

/// A part, by the name that the log has for it, and how it is read again. Returns the outcome.
type Reload = (&'static str, Box<dyn FnMut() -> Result<String, String> + Send>);

impl Reloads {
    /// Adds a part.
    pub(crate) fn add(
        &mut self,
        what: &'static str,
        reload: impl FnMut() -> Result<String, String> + Send + 'static,
    ) {
        self.0.push((what, Box::new(reload)));
    }

    /// Reads all parts again, on a thread that may wait for disks.
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
        // A part that panics has told the log; the others cannot be trusted any more.
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
