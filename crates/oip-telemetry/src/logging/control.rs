//! The logging extension, which changes the process's log levels at run time.

use std::fmt;

use oip_service::{
    Logging,
    oip_types::{LogSetting, LogSettings, ServiceError},
};
use parking_lot::{Mutex, MutexGuard};
use tensor_core::QuotedName;
use tracing::{Level, Metadata};
use tracing_subscriber::{
    Layer, Registry,
    filter::{FilterFn, LevelFilter, Targets, filter_fn},
    reload,
};

/// The filter for log lines.
pub type LogFilter = FilterFn<Box<dyn Fn(&Metadata<'_>) -> bool + Send + Sync>>;

/// Read-only settings with their values.
const FIXED: [(&str, &str); 2] = [("log_file", ""), ("log_format", "ISO8601")];

/// The log settings under Triton's names, with a handle to the filter.
pub struct LogControl {
    settings: Mutex<Settings>,
    filter: reload::Handle<LogFilter, Registry>,
}

/// The effective levels: the base levels, and the clients' changes to them.
struct Settings {
    /// The base levels, which the operator sets.
    base: Targets,
    changes: Changes,
}

/// Changes made by clients. Errors are controlled only by the base levels: a client that could silence them
/// could hide its actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Whether warnings are logged; `None` unless a client changed that.
    warning: Option<bool>,
    info: Option<bool>,
    /// 1 adds debug messages and 2 also trace messages of this workspace's crates.
    verbose: u32,
}

impl LogControl {
    /// Creates the control and the filter, with the initial levels `base`.
    #[must_use]
    pub fn new(base: Targets) -> (Self, reload::Layer<LogFilter, Registry>) {
        let (layer, filter) = reload::Layer::new(Changes::default().filter(base.clone()));
        let changes = Changes::default();
        let control = Self {
            settings: Mutex::new(Settings { base, changes }),
            filter,
        };
        (control, layer)
    }

    /// Replaces the base levels and discards the clients' changes.
    ///
    /// # Errors
    /// When the filter no longer exists.
    pub fn restart(&self, base: Targets) -> Result<(), ServiceError> {
        let mut now = self.lock();
        let settings = Settings {
            base,
            changes: Changes::default(),
        };
        self.apply(&settings)?;
        *now = settings;
        Ok(())
    }

    fn apply(&self, settings: &Settings) -> Result<(), ServiceError> {
        let most = settings.changes.most(&settings.base);
        self.filter
            .reload(settings.changes.filter(settings.base.clone()))
            .map_err(|error| ServiceError::internal("the log is gone").caused_by(error))?;
        // At startup, installing the filter sets this maximum.
        log::set_max_level(log_level(most));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock()
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").finish_non_exhaustive()
    }
}

impl Logging for LogControl {
    fn log_settings(&self) -> LogSettings {
        let settings = self.lock();
        let now = settings.changes;
        let is_on = |changed: Option<bool>, level: LevelFilter| {
            let default = || {
                settings
                    .base
                    .default_level()
                    .is_some_and(|default| default >= level)
            };
            LogSetting::Bool(changed.unwrap_or_else(default))
        };
        let mut shown = LogSettings::from([
            ("log_error".to_owned(), is_on(None, LevelFilter::ERROR)),
            ("log_info".to_owned(), is_on(now.info, LevelFilter::INFO)),
            ("log_verbose_level".to_owned(), LogSetting::Uint32(now.verbose)),
            ("log_warning".to_owned(), is_on(now.warning, LevelFilter::WARN)),
        ]);
        shown.extend(FIXED.map(|(name, value)| (name.to_owned(), LogSetting::String(value.to_owned()))));
        shown
    }

    fn change_log_settings(&self, changes: LogSettings) -> Result<LogSettings, ServiceError> {
        let mut now = self.lock();
        let mut changed = now.changes;
        for (name, value) in &changes {
            changed.set(name, value)?;
        }
        if changed != now.changes {
            // Logged under the old settings, so that the log shows why it goes silent.
            let shown: Vec<String> = changes
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            tracing::warn!(
                changes = shown.join(", "),
                "the log's settings are changed by request"
            );
            let settings = Settings {
                base: now.base.clone(),
                changes: changed,
            };
            self.apply(&settings)?;
            *now = settings;
        }
        drop(now);
        Ok(self.log_settings())
    }
}

impl Changes {
    fn set(&mut self, name: &str, value: &LogSetting) -> Result<(), ServiceError> {
        let wrong = |expected: &str| {
            ServiceError::invalid(format!(
                "log setting {}: expected {expected}, found {value}",
                QuotedName(name)
            ))
        };
        if let Some((_, fixed)) = FIXED.iter().find(|(fixed, _)| *fixed == name) {
            let is_same = *value == LogSetting::String((*fixed).to_owned());
            return is_same
                .then_some(())
                .ok_or_else(|| wrong(&format!("'{fixed}', which cannot be changed")));
        }
        let slot = match name {
            "log_error" => {
                return match value {
                    LogSetting::Bool(true) => Ok(()),
                    _ => Err(wrong(
                        "true: requests cannot silence errors, the server's option --log can",
                    )),
                };
            }
            "log_warning" => &mut self.warning,
            "log_info" => &mut self.info,
            "log_verbose_level" => {
                let LogSetting::Uint32(level) = value else {
                    return Err(wrong("a level"));
                };
                self.verbose = *level;
                return Ok(());
            }
            _ => {
                return Err(ServiceError::invalid(format!(
                    "unknown log setting {}",
                    QuotedName(name)
                )));
            }
        };
        let LogSetting::Bool(is_on) = value else {
            return Err(wrong("true or false"));
        };
        *slot = Some(*is_on);
        Ok(())
    }

    /// Returns the most verbose level that can pass the filter. Libraries that use the crate `log` skip
    /// messages above this level, which would otherwise reach the filter.
    fn most(self, base: &Targets) -> LevelFilter {
        let base = Layer::<Registry>::max_level_hint(base).unwrap_or(LevelFilter::TRACE);
        let changed = [
            (self.warning == Some(true), LevelFilter::WARN),
            (self.info == Some(true), LevelFilter::INFO),
            (self.verbose >= 1, LevelFilter::DEBUG),
            (self.verbose >= 2, LevelFilter::TRACE),
        ];
        let changed = changed.into_iter().filter(|(is_on, _)| *is_on);
        changed.map(|(_, level)| level).fold(base, Ord::max)
    }

    /// Creates the filter. A level that a client changed takes precedence over the base levels.
    fn filter(self, base: Targets) -> LogFilter {
        let most = self.most(&base);
        let allows = move |metadata: &Metadata<'_>| {
            let (level, target) = (*metadata.level(), metadata.target());
            if level == Level::TRACE && target.starts_with(BYTES) {
                return false;
            }
            let changed = match level {
                Level::ERROR => None,
                Level::WARN => self.warning,
                Level::INFO => self.info,
                Level::DEBUG => (self.verbose >= 1 && is_ours(target)).then_some(true),
                Level::TRACE => (self.verbose >= 2 && is_ours(target)).then_some(true),
            };
            changed.unwrap_or_else(|| base.would_enable(target, &level))
        };
        filter_fn(Box::new(allows) as Box<_>).with_max_level_hint(most)
    }
}

/// Parses a filter: a level, or levels by target such as `info,oip_engine=debug`. A word without a target
/// must be a level, since a misspelled level would otherwise be taken for a target.
#[must_use]
pub fn parse_levels(text: &str) -> Option<Targets> {
    let is_sound = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    let all = parts.iter().all(|part| is_sound(part));
    all.then(|| parts.join(",").parse().ok())?
}

/// This target logs raw bytes, including tokens in headers, so it is always excluded.
const BYTES: &str = "ureq_proto";

/// Converts a level for the crate `log`.
fn log_level(level: LevelFilter) -> log::LevelFilter {
    let levels = [
        (LevelFilter::TRACE, log::LevelFilter::Trace),
        (LevelFilter::DEBUG, log::LevelFilter::Debug),
        (LevelFilter::INFO, log::LevelFilter::Info),
        (LevelFilter::WARN, log::LevelFilter::Warn),
        (LevelFilter::ERROR, log::LevelFilter::Error),
    ];
    let same = levels.into_iter().find(|(of_tracing, _)| *of_tracing == level);
    same.map_or(log::LevelFilter::Off, |(_, of_log)| of_log)
}

/// Returns whether a target belongs to this workspace. Debug messages of other crates are not useful to
/// operators.
fn is_ours(target: &str) -> bool {
    ["oip_", "backend_"].iter().any(|ours| target.starts_with(ours))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::{layer::SubscriberExt, registry};

    use super::*;

    fn change(control: &LogControl, name: &str, value: LogSetting) -> Result<LogSettings, ServiceError> {
        control.change_log_settings(LogSettings::from([(name.to_owned(), value)]))
    }

    #[test]
    fn levels_can_be_switched_while_the_server_runs() {
        let (control, filter) = LogControl::new("info,oip_engine=debug".parse().unwrap());
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(std::io::sink)
            .with_filter(filter);
        tracing::subscriber::with_default(registry().with(layer), || {
            let on = || {
                [
                    tracing::event_enabled!(target: "oip_http", Level::ERROR),
                    tracing::event_enabled!(target: "oip_http", Level::INFO),
                    tracing::event_enabled!(target: "oip_http", Level::DEBUG),
                    tracing::event_enabled!(target: "oip_engine", Level::DEBUG),
                    tracing::event_enabled!(target: "h2", Level::DEBUG),
                ]
            };
            assert_eq!(on(), [true, true, false, true, false]);
            change(&control, "log_verbose_level", LogSetting::Uint32(1)).unwrap();
            assert_eq!(on(), [true, true, true, true, false]);
            assert_eq!(log::max_level(), log::LevelFilter::Debug);
            change(&control, "log_verbose_level", LogSetting::Uint32(2)).unwrap();
            assert_eq!(log::max_level(), log::LevelFilter::Trace);
            change(&control, "log_verbose_level", LogSetting::Uint32(1)).unwrap();
            let silenced = change(&control, "log_error", LogSetting::Bool(false)).unwrap_err();
            assert!(
                silenced.message().contains("requests cannot silence errors"),
                "{silenced}"
            );
            change(&control, "log_error", LogSetting::Bool(true)).unwrap();
            let settings = change(&control, "log_info", LogSetting::Bool(false)).unwrap();
            assert_eq!(on(), [true, false, true, true, false]);
            assert_eq!(settings["log_info"], LogSetting::Bool(false));
            assert_eq!(settings["log_warning"], LogSetting::Bool(true));
            control.restart("warn,oip_http=debug".parse().unwrap()).unwrap();
            assert_eq!(on(), [true, true, true, false, false]);
            assert_eq!(log::max_level(), log::LevelFilter::Debug);
            control.restart("off".parse().unwrap()).unwrap();
            assert_eq!(log::max_level(), log::LevelFilter::Off);
            change(&control, "log_info", LogSetting::Bool(true)).unwrap();
            assert_eq!(log::max_level(), log::LevelFilter::Info);
            control.restart("warn,oip_http=debug".parse().unwrap()).unwrap();
            assert_eq!(control.log_settings()["log_info"], LogSetting::Bool(false));
            assert_eq!(control.log_settings()["log_verbose_level"], LogSetting::Uint32(0));
        });
    }

    #[test]
    fn filters_have_levels_by_target() {
        let would = |filter: &str, target: &str, level: Level| {
            parse_levels(filter).unwrap().would_enable(target, &level)
        };
        assert!(would("info", "oip_engine::load", Level::INFO));
        assert!(!would("info", "oip_engine::load", Level::DEBUG));
        assert!(would("info, oip_engine=debug", "oip_engine::load", Level::DEBUG));
        assert!(!would("off", "oip_engine::load", Level::ERROR));
        assert_eq!(
            parse_levels("info").unwrap().default_level(),
            Some(LevelFilter::INFO)
        );
        assert!(parse_levels("inof").is_none());
    }

    #[test]
    fn bytes_as_they_are_sent_are_never_written() {
        for filter in ["trace", "ureq_proto=trace", "ureq_proto::util=trace"] {
            let (_control, filter) = LogControl::new(filter.parse().unwrap());
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::sink)
                .with_filter(filter);
            tracing::subscriber::with_default(registry().with(layer), || {
                assert!(!tracing::event_enabled!(target: "ureq_proto::util", Level::TRACE));
                assert!(tracing::event_enabled!(target: "ureq_proto::util", Level::DEBUG));
            });
        }
    }

    #[test]
    fn wrong_settings_change_nothing() {
        let (control, _filter) = LogControl::new("info".parse().unwrap());
        let before = control.log_settings();
        for (name, value) in [
            ("log_file", LogSetting::String("/tmp/x".to_owned())),
            ("log_format", LogSetting::String("default".to_owned())),
            ("log_info", LogSetting::Uint32(1)),
            ("log_verbose_level", LogSetting::Bool(true)),
            ("log_everything", LogSetting::Bool(true)),
        ] {
            let mut changes = LogSettings::from([("log_warning".to_owned(), LogSetting::Bool(false))]);
            changes.insert(name.to_owned(), value);
            let error = control.change_log_settings(changes).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
        assert_eq!(control.log_settings(), before);
        change(&control, "log_format", LogSetting::String("ISO8601".to_owned())).unwrap();
    }
}
