//! Environment variables of options.

use clap::{Arg, Command};

/// Returns the environment variable of an option.
pub(super) fn variable(option: &str) -> String {
    format!("OIP_{}", option.replace('-', "_").to_uppercase())
}

/// Returns a warning for each variable in `names` whose name starts with `OIP_` and that is not an option of
/// `command`.
///
/// Ignores variables such as `OIP_SERVER_SERVICE_HOST`, which Kubernetes sets for a service named
/// `oip-server`.
pub(super) fn unknown_variables(command: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = command
        .get_arguments()
        .filter_map(Arg::get_long)
        .map(variable)
        .collect();
    let is_of_kubernetes = |name: &str| {
        name.ends_with("_PORT")
            || ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"]
                .iter()
                .any(|part| name.contains(part))
    };
    let names = names.filter(|name| name.starts_with("OIP_") && !known.contains(name));
    let mut warnings: Vec<String> = names
        .filter(|name| !is_of_kubernetes(name))
        .map(|name| match nearest(&name, known.iter().map(String::as_str)) {
            Some(meant) => format!("{name} in the environment is not an option; did you mean {meant}?"),
            None => format!("{name} in the environment is not an option of this server"),
        })
        .collect();
    warnings.sort();
    warnings
}

/// Returns the known name that `name` may be a misspelling of.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// The threshold that clap uses for options.
    const ALIKE: f64 = 0.8;
    let rated = known.map(|known| (strsim::jaro(name, known), known));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike > ALIKE).map(|(_, known)| known)
}
