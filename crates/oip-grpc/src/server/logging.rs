//! Handles the calls of the logging extension.

use oip_service::{InferenceService, extensions};
use oip_types::{LogSetting, LogSettings, ServiceError};
use tensor_core::QuotedName;

use crate::proto::{
    LogSettingsRequest, LogSettingsResponse, log_settings_request, log_settings_response as response,
};

/// Changes the settings that the request names, and returns all settings.
pub(crate) fn log_settings(
    service: &dyn InferenceService,
    request: LogSettingsRequest,
) -> Result<LogSettingsResponse, ServiceError> {
    let logging = extensions::logging(service)?;
    let settings = match request.settings.is_empty() {
        true => logging.log_settings(),
        false => logging.change_log_settings(read(request)?)?,
    };
    let setting = |(name, value)| {
        let choice = match value {
            LogSetting::Bool(value) => response::setting_value::ParameterChoice::BoolParam(value),
            LogSetting::Uint32(value) => response::setting_value::ParameterChoice::Uint32Param(value),
            LogSetting::String(value) => response::setting_value::ParameterChoice::StringParam(value),
        };
        let value = response::SettingValue {
            parameter_choice: Some(choice),
        };
        (name, value)
    };
    Ok(LogSettingsResponse {
        settings: settings.into_iter().map(setting).collect(),
    })
}

fn read(request: LogSettingsRequest) -> Result<LogSettings, ServiceError> {
    use log_settings_request::setting_value::ParameterChoice;
    let read = |(name, value): (String, log_settings_request::SettingValue)| {
        let value = match value.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => LogSetting::Bool(value),
            Some(ParameterChoice::Uint32Param(value)) => LogSetting::Uint32(value),
            Some(ParameterChoice::StringParam(value)) => LogSetting::String(value),
            None => {
                let message = format!("log setting {} has no value", QuotedName(&name));
                return Err(ServiceError::invalid(message));
            }
        };
        Ok((name, value))
    };
    request.settings.into_iter().map(read).collect()
}
