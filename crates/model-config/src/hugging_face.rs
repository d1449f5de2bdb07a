//! Recognizes a `config.json` of Hugging Face, which describes a network and is not a serving configuration.

use std::fmt;

use serde_json::Value as Json;

/// A `config.json` in Hugging Face format, as written by transformers, diffusers and timm. Such a file does
/// not configure this server.
///
/// ```
/// use model_config::HuggingFaceConfig;
///
/// let found = HuggingFaceConfig::recognize(r#"{"architectures": ["BertModel"], "model_type": "bert"}"#);
/// assert_eq!(found.unwrap().to_string(), "BertModel");
/// assert!(HuggingFaceConfig::recognize(r#"{"max_batch_size": 8}"#).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HuggingFaceConfig {
    /// The model's name in the file: the first architecture, or else the type.
    pub model: String,
}

impl HuggingFaceConfig {
    /// Maximum file size, in bytes. The limit is high because a file may list the labels of all classes.
    pub const MAX_BYTES: usize = 16 << 20;

    /// Recognizes a Hugging Face `config.json` by its fields, which serving configurations lack. Returns
    /// `None` for any other file.
    pub fn recognize(text: &str) -> Option<Self> {
        let json: Json = serde_json::from_str(text.trim_start_matches('\u{feff}')).ok()?;
        let first = json.get("architectures").and_then(Json::as_array);
        let first = first.map(|names| names.first().unwrap_or(&Json::Null));
        let fields = ["model_type", "architecture", "_class_name", "_diffusers_version"];
        let mut found = first
            .into_iter()
            .chain(fields.iter().filter_map(|field| json.get(field)));
        let model = found.next()?.as_str().or_else(|| found.find_map(Json::as_str));
        Some(Self {
            model: model.unwrap_or("of no name").to_owned(),
        })
    }
}

impl fmt::Display for HuggingFaceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_libraries_of_the_hub_write_is_recognized() {
        for (text, model) in [
            (
                r#"{"architectures": ["BertModel"], "model_type": "bert"}"#,
                Some("BertModel"),
            ),
            (r#"{"architectures": null, "model_type": "bert"}"#, Some("bert")),
            (r#"{"architectures": [], "model_type": "bert"}"#, Some("bert")),
            (
                "\u{feff}{\"architecture\": \"resnet18\", \"num_classes\": 10}",
                Some("resnet18"),
            ),
            (
                r#"{"_class_name": "UNet2DModel", "_diffusers_version": "0.3"}"#,
                Some("UNet2DModel"),
            ),
            (r#"{"architectures": []}"#, Some("of no name")),
            (
                r#"{"max_batch_size": 8, "parameters": {"model_type": {"string_value": "x"}}}"#,
                None,
            ),
            (r#"["model_type"]"#, None),
            ("{\"model_type\":", None),
        ] {
            let found = HuggingFaceConfig::recognize(text).map(|found| found.model);
            assert_eq!(found.as_deref(), model, "{text}");
        }
    }
}
