//! The error for an unknown model. It lists existing models.

use std::{collections::BTreeSet, sync::Arc};

use oip_resources::Lease;
use oip_service::{Grant, extensions};
use oip_types::{ErrorCode, ModelRef, ServiceError};
use tensor_core::QuotedName;

use crate::app::App;

/// Maximum number of models listed.
const NAMED: usize = 5;
/// Assumed number of bytes that listing the models reads, so that it counts as a small job in the pool's
/// queue.
const JOB_BYTES: u64 = 64 << 10;

/// Checks that a model is ready.
///
/// # Errors
/// The reason why the model is not ready; for an unknown model, with the names of models visible to the
/// client.
pub(crate) async fn check_ready(
    app: &App,
    model: ModelRef<'_>,
    grant: Option<Grant>,
) -> Result<(), ServiceError> {
    match app.service.model_ready(model) {
        Err(error) => Err(with_names(app, model, grant, error).await),
        ready => ready,
    }
}

/// Adds model names to an error about an unknown model.
pub(crate) async fn with_names(
    app: &App,
    model: ModelRef<'_>,
    grant: Option<Grant>,
    error: ServiceError,
) -> ServiceError {
    if error.code() != ErrorCode::NotFound {
        return error;
    }
    let Ok(names) = names(app).await else {
        return error;
    };
    // A known name means that the version is unknown or the model is unloaded.
    let is_unknown = names
        .binary_search_by(|name| name.as_str().cmp(model.name()))
        .is_err();
    let names = names.iter().filter(|name| may_see(grant.as_ref(), name));
    match is_unknown {
        true => ServiceError::new(
            ErrorCode::NotFound,
            format!("{}; {}", error.message(), told(names)),
        ),
        false => error,
    }
}

/// Returns whether a client may see a model.
pub(crate) fn may_see(grant: Option<&Grant>, model: &str) -> bool {
    grant.is_none_or(|grant| grant.check_model(model).is_ok())
}

async fn names(app: &App) -> Result<Arc<[String]>, ServiceError> {
    if let Some(names) = app.model_names.fresh() {
        return Ok(names);
    }
    let (service, lease) = (
        app.service.clone(),
        Lease::new(&app.config.budget, &app.config.time),
    );
    let guard = lease.guard();
    let list = move || {
        let index = extensions::index(&*service, false)?;
        let names: BTreeSet<String> = index.into_iter().map(|entry| entry.name).collect();
        Ok(names.into_iter().collect::<Arc<[String]>>())
    };
    let names = app.config.cpu.run(&lease, JOB_BYTES, list).await;
    guard.disarm();
    let names = names?;
    app.model_names.keep(names.clone());
    Ok(names)
}

/// Formats the first few names.
fn told<'n>(mut names: impl Iterator<Item = &'n String>) -> String {
    // Quoting limits the length of each name.
    let shown: Vec<String> = names
        .by_ref()
        .take(NAMED)
        .map(|name| QuotedName(name).to_string())
        .collect();
    match names.count() {
        _ if shown.is_empty() => "there are no models".to_owned(),
        0 => format!("there are {}", shown.join(", ")),
        more => format!(
            "there are {} and {more} more, which GET /v2/models lists",
            shown.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_room_for_a_few_names() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(told([].iter()), "there are no models");
        assert_eq!(told(names(&["a", "b"]).iter()), "there are 'a', 'b'");
        let many = names(&["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(
            told(many.iter()),
            "there are 'a', 'b', 'c', 'd', 'e' and 2 more, which GET /v2/models lists"
        );
        // Long names are shortened.
        let long = "x".repeat(299);
        assert!(told(names(&[long.as_str(); 7]).iter()).len() < 500);
    }
}
