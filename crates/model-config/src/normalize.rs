//! Converts a parsed tree to the JSON form of Triton's model configuration, guided by the field table.

use serde_json::{Map, Value as Json};
use tensor_core::QuotedName;

use crate::{
    ConfigError, Position,
    fields::{Count, Effect, Field, Kind},
    tree::{Node, Value, place},
};

/// A configuration in the form that [`oip_types::ModelConfig`] deserializes from.
#[derive(Debug)]
pub(crate) struct NormalizedConfig {
    pub(crate) json: Map<String, Json>,
    /// Paths of unknown fields.
    pub(crate) unknown: Vec<String>,
    /// Paths of known fields that have no effect in this server.
    pub(crate) without_effect: Vec<String>,
}

/// Normalizes a message. `text` is the protobuf text that the tree was parsed from; `None` for other
/// syntaxes.
///
/// Names may also be in protobuf's JSON form (`maxBatchSize`), numbers may be strings, and enums may be
/// numbers: clients that convert protobuf to JSON do all three.
///
/// # Errors
/// Returns the problem with its position and the expected value.
pub(crate) fn normalize(
    root: &Node,
    fields: &'static [Field],
    text: Option<&str>,
) -> Result<NormalizedConfig, ConfigError> {
    let mut walk = Walk {
        text,
        unknown: Vec::new(),
        without_effect: Vec::new(),
    };
    let json = walk.message(root, fields, "")?;
    Ok(NormalizedConfig {
        json,
        unknown: walk.unknown,
        without_effect: walk.without_effect,
    })
}

struct Walk<'t> {
    text: Option<&'t str>,
    unknown: Vec<String>,
    without_effect: Vec<String>,
}

/// Maximum number of fields listed in a warning.
const MAX_LISTED: usize = 20;

/// Maximum length of a name that is checked for misspelling, in bytes.
const MAX_NAME: usize = 64;

/// Returns the field with the most similar name; `None` if no name is similar enough.
fn nearest(name: &str, fields: &[Field]) -> Option<&'static str> {
    let near = fields
        .iter()
        .map(|field| {
            (
                strsim::normalized_damerau_levenshtein(name, field.name),
                field.name,
            )
        })
        .filter(|(likeness, _)| *likeness >= 0.75);
    near.max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, meant)| meant)
}

impl Walk<'_> {
    fn message(
        &mut self,
        node: &Node,
        fields: &'static [Field],
        path: &str,
    ) -> Result<Map<String, Json>, ConfigError> {
        let Value::Message(members) = &node.value else {
            return self.expected(node, path, "a message");
        };
        let names: Vec<String> = members.iter().map(|(name, _)| snake_case(name)).collect();
        for ((written, _), name) in members.iter().zip(&names) {
            if fields.iter().all(|field| field.name != name) {
                let place = join(path, written);
                // Fields beyond the listed ones need no hint, and very long names are not misspellings.
                // Looking for similar names would cost time in both cases.
                let hinted = format!("{place} (");
                let is_listed =
                    (self.unknown.iter()).any(|listed| *listed == place || listed.starts_with(&hinted));
                let is_new = !is_listed && self.unknown.len() < MAX_LISTED;
                let meant = (is_new && name.len() <= MAX_NAME)
                    .then(|| nearest(name, fields))
                    .flatten();
                match meant {
                    Some(meant) => list(&mut self.unknown, format!("{place} (did you mean {meant}?)")),
                    None if is_listed => {}
                    None => list(&mut self.unknown, place),
                }
            }
        }
        let mut json = Map::new();
        for field in fields {
            let given: Vec<&Node> = members
                .iter()
                .zip(&names)
                .filter(|(_, name)| *name == field.name)
                .map(|((_, node), _)| node)
                .collect();
            if !given.is_empty() {
                self.field(field, &given, &join(path, field.name), &mut json)?;
            }
        }
        Ok(json)
    }

    fn field(
        &mut self,
        field: &'static Field,
        given: &[&Node],
        path: &str,
        json: &mut Map<String, Json>,
    ) -> Result<(), ConfigError> {
        let value = match field.count {
            Count::Many => {
                let mut items = Vec::new();
                for node in given {
                    match &node.value {
                        Value::List(list) => items.extend(list),
                        _ => items.push(*node),
                    }
                }
                let items = items.into_iter().enumerate();
                Json::Array(
                    items
                        .map(|(index, node)| self.value(field, node, &format!("{path}[{index}]")))
                        .collect::<Result<_, _>>()?,
                )
            }
            Count::Map => Json::Object(self.map(field, given, path)?),
            Count::One => match given {
                // A JSON null counts as an absent field.
                [node] if self.text.is_none() && node.value == Value::List(Vec::new()) => return Ok(()),
                [node] => self.value(field, node, path)?,
                [_, again, ..] => return Err(self.repeated(again, path)),
                [] => return Ok(()),
            },
        };
        match field.effect {
            Effect::Acts => {}
            Effect::Accepted(what) => list(&mut self.without_effect, format!("{path} ({what})")),
            // A feature that is disabled, or has an empty list, counts as absent.
            Effect::Refused(_) if value == Json::Bool(false) || value == Json::Array(Vec::new()) => {
                return Ok(());
            }
            Effect::Refused(what) => {
                return Err(ConfigError::Unsupported {
                    place: self.place(given[0]),
                    field: path.to_owned(),
                    feature: what,
                });
            }
        }
        json.insert(field.name.to_owned(), value);
        Ok(())
    }

    /// Reads a map. In protobuf text, each entry is a message with `key` and `value`; in JSON, an entry is a
    /// member of an object.
    fn map(
        &mut self,
        field: &'static Field,
        given: &[&Node],
        path: &str,
    ) -> Result<Map<String, Json>, ConfigError> {
        let mut entries: Vec<(String, &Node)> = Vec::new();
        for node in given {
            let nodes = match &node.value {
                Value::List(nodes) => nodes.iter().collect(),
                _ => vec![*node],
            };
            for node in nodes {
                let Value::Message(members) = &node.value else {
                    return self.expected(node, path, "a message");
                };
                if self.text.is_none() {
                    entries.extend(members.iter().map(|(key, value)| (key.clone(), value)));
                    continue;
                }
                let member = |wanted: &str| {
                    members
                        .iter()
                        .find(|(name, _)| name == wanted)
                        .map(|(_, node)| node)
                };
                match (member("key").map(|key| &key.value), member("value")) {
                    (Some(Value::Text(key) | Value::Word(key)), Some(value)) => {
                        entries.push((key.clone(), value));
                    }
                    // A field that has no effect may have any form.
                    _ if matches!(field.kind, Kind::Opaque) => {}
                    _ => return self.expected(node, path, "an entry with 'key' and 'value'"),
                }
            }
        }
        let mut map = Map::new();
        for (key, node) in entries {
            let path = format!("{path}[{}]", QuotedName(&key));
            let value = self.value(field, node, &path)?;
            if map.insert(key, value).is_some() {
                return Err(self.repeated(node, &path));
            }
        }
        Ok(map)
    }

    fn value(&mut self, field: &'static Field, node: &Node, path: &str) -> Result<Json, ConfigError> {
        let word = match &node.value {
            Value::Word(word) | Value::Text(word) => Some(word.as_str()),
            Value::Message(_) | Value::List(_) => None,
        };
        match &field.kind {
            Kind::Opaque => Ok(Json::Null),
            Kind::Message(fields) => self.message(node, fields, path).map(Json::Object),
            Kind::Text => match &node.value {
                Value::Text(text) => Ok(Json::String(text.clone())),
                _ => self.expected(node, path, "a quoted string"),
            },
            Kind::Bool => match word {
                Some("true" | "True" | "t" | "1") => Ok(Json::Bool(true)),
                Some("false" | "False" | "f" | "0") => Ok(Json::Bool(false)),
                _ => self.expected(node, path, "true or false"),
            },
            Kind::Int(least, most) => match word.and_then(integer) {
                Some(number) if (*least..=*most).contains(&number) => Ok(number_json(number)),
                _ => self.expected(
                    node,
                    path,
                    &format!("an integer from {least} to {}", bound(*most)),
                ),
            },
            Kind::Enum(names) => {
                let number = word.and_then(integer);
                let known = names
                    .iter()
                    .find(|(name, value)| Some(*name) == word || number == Some((*value).into()));
                match known {
                    Some((name, _)) => Ok(Json::String((*name).to_owned())),
                    None => {
                        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
                        self.expected(node, path, &format!("one of {}", names.join(", ")))
                    }
                }
            }
        }
    }

    fn expected<T>(&self, node: &Node, path: &str, what: &str) -> Result<T, ConfigError> {
        Err(ConfigError::Unexpected {
            place: self.place(node),
            field: path.to_owned(),
            expected: what.to_owned(),
            found: node.value.describe(),
        })
    }

    fn repeated(&self, node: &Node, path: &str) -> ConfigError {
        ConfigError::Repeated {
            place: self.place(node),
            field: path.to_owned(),
        }
    }

    fn place(&self, node: &Node) -> Option<Position> {
        self.text.zip(node.at).map(|(text, at)| place(text, at))
    }
}

fn list(listed: &mut Vec<String>, path: String) {
    if listed.len() < MAX_LISTED && !listed.contains(&path) {
        listed.push(path);
    }
}

fn join(path: &str, name: &str) -> String {
    match path {
        "" => QuotedName(name).to_string().trim_matches('\'').to_owned(),
        path => format!("{path}.{}", QuotedName(name).to_string().trim_matches('\'')),
    }
}

/// Converts a name such as `maxBatchSize` to `max_batch_size`.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// Parses a decimal, octal or hexadecimal integer.
fn integer(word: &str) -> Option<i128> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let octal = digits
        .strip_prefix('0')
        .filter(|digits| !digits.is_empty() && hexadecimal.is_none());
    let (digits, radix) = match (hexadecimal, octal) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (digits, 10),
    };
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    is_number
        .then(|| i128::from_str_radix(digits, radix).ok())
        .flatten()
        .map(|number| sign * number)
}

fn number_json(number: i128) -> Json {
    match i64::try_from(number) {
        Ok(number) => number.into(),
        Err(_) => u64::try_from(number).unwrap_or(u64::MAX).into(),
    }
}

fn bound(most: i128) -> String {
    match most {
        most if most == i128::from(i64::MAX) => "2^63 - 1".to_owned(),
        most if most == i128::from(u64::MAX) => "2^64 - 1".to_owned(),
        most => most.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fields::MODEL_CONFIG, pbtxt};

    fn text(text: &str) -> Result<NormalizedConfig, String> {
        let read = pbtxt::read(text).and_then(|node| normalize(&node, MODEL_CONFIG, Some(text)));
        read.map_err(|error| error.to_string())
    }

    fn json(text: &str) -> Result<NormalizedConfig, String> {
        let node = serde_json::from_str(text).map_err(|error| error.to_string())?;
        normalize(&node, MODEL_CONFIG, None).map_err(|error| error.to_string())
    }

    #[test]
    fn text_and_json_say_the_same() {
        let from_text = text(
            r#"
            name: "m"
            max_batch_size: 0x10
            input [ { name: "X" data_type: TYPE_FP32 dims: [ 64 ] }, { name: "Y" data_type: 9 dims: -1 dims: 2 } ]
            instance_group { count: 2 }
            parameters { key: "a" value { string_value: "1" } }
            parameters { key: "b" value: { string_value: "2" } }
            version_policy: { specific { versions: [ 1, 3 ] } }
            dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY } } }
            "#,
        );
        let from_json = json(
            r#"{
            "name": "m", "maxBatchSize": "16", "platform": null,
            "input": [{"name": "X", "dataType": "TYPE_FP32", "dims": ["64"]},
                      {"name": "Y", "data_type": 9, "dims": [-1, 2]}],
            "instance_group": {"count": 2},
            "parameters": {"a": {"string_value": "1"}, "b": {"stringValue": "2"}},
            "versionPolicy": {"specific": {"versions": [1, 3]}},
            "dynamic_batching": {"priority_queue_policy": {"1": {"timeout_action": "DELAY"}}}
            }"#,
        );
        assert_eq!(from_text.unwrap().json, from_json.unwrap().json);
    }

    #[test]
    fn unknown_fields_and_those_without_effect_are_named() {
        let read = text("max_batch: 4 input { nam: \"x\" } optimization { cuda { graphs: true } } 'x'");
        assert!(read.is_err());
        let read = text("max_batch: 4 input { nam: \"x\" } optimization { cuda { graphs: true } }").unwrap();
        assert_eq!(read.unknown, ["max_batch", "input[0].nam (did you mean name?)"]);
        assert_eq!(read.without_effect, ["optimization.cuda (CUDA graphs)"]);
        let many: String = (0..1000).map(|index| format!("x{index}: 1\n")).collect();
        assert_eq!(text(&many).unwrap().unknown.len(), MAX_LISTED);
        assert_eq!(
            text("max_batchsize: 4").unwrap().unknown,
            ["max_batchsize (did you mean max_batch_size?)"]
        );
    }

    #[test]
    fn ragged_batches_are_refused_with_what_to_write_instead() {
        let error = text("input { name: \"x\" allow_ragged_batch: true }").unwrap_err();
        assert_eq!(
            error,
            "line 1, column 39: input[0].allow_ragged_batch is not supported (rows of a batch have one shape; without batching each \
             request has its own: max_batch_size: 0)"
        );
        text("input { name: \"x\" allow_ragged_batch: false }").unwrap();
    }

    /// Errors about invalid values contain the position and the value.
    #[test]
    fn wrong_values_say_where_and_what() {
        for (written, expected) in [
            (
                "max_batch_size: -1",
                "line 1, column 17: max_batch_size: expected an integer from 0 to 2147483647, found '-1'",
            ),
            (
                "input {\n name: \"x\" dims: [1, 9223372036854775808]\n}",
                "line 2, column 22: input[0].dims[1]: expected an integer from -1 to 2^63 - 1, found \
                 '9223372036854775808'",
            ),
            (
                "input { data_type: TYPE_FP31 }",
                "line 1, column 20: input[0].data_type: expected one of TYPE_BOOL,",
            ),
            (
                "name: m",
                "line 1, column 7: name: expected a quoted string, found 'm'",
            ),
            (
                "name: \"a\" name: \"b\"",
                "line 1, column 17: name is given more than once",
            ),
            (
                "input: 3",
                "line 1, column 8: input[0]: expected a message, found '3'",
            ),
            (
                "parameters { string_value: \"x\" }",
                "line 1, column 12: parameters: expected an entry with 'key' and 'value', found a message",
            ),
            (
                "sequence_batching { }",
                "line 1, column 19: sequence_batching is not supported (requests that depend on earlier ones)",
            ),
            (
                "instance_group { count: 100000 }",
                "line 1, column 25: instance_group[0].count: expected",
            ),
            (
                "instance_group { gpus: [ 0, -1 ] }",
                "line 1, column 29: instance_group[0].gpus[1]: expected an integer from 0 to 2147483647, \
                 found '-1'",
            ),
            (
                "optimization { execution_accelerators { gpu_execution_accelerator { name: cuda } } }",
                "line 1, column 75: optimization.execution_accelerators.gpu_execution_accelerator[0].name: \
                 expected a quoted string, found 'cuda'",
            ),
        ] {
            let error = text(written).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        for fine in [
            "model_transaction_policy { decoupled: false }",
            "model_transaction_policy { decoupled: true }",
            "input { name: \"x\" data_type: TYPE_FP32 is_shape_tensor: false }",
        ] {
            text(fine).unwrap();
        }
        let error = json(r#"{"max_batch_size": 1.5}"#).unwrap_err();
        assert!(
            error.starts_with("max_batch_size: expected an integer"),
            "{error}"
        );
        assert!(
            json("[]").unwrap_err().starts_with("expected a message"),
            "no message"
        );
    }
}
