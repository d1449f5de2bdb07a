//! Test helpers: a small tokenizer, a network whose output reveals its input, and model directories in
//! memory.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use oip_model::{
    Backend, Call, CancelToken, Capabilities, IndependentRows, LoadContext, Model, ModelFiles, ModelSource,
    Outcome, RowIndependence,
};
use oip_text::{TextBackend, TextOptions};
use oip_types::{
    BytesTensor, DataType, InferOutput, InferRequest, ModelConfig, ModelMetadata, ModelRef, ServiceError,
    TensorMetadata,
};
use serde_json::{Value as Json, json};
use tensor_core::{Shape, Tensor};

/// Returns a `tokenizer.json` that splits words at white space, with `[CLS]` first and `[SEP]` last.
pub(crate) fn tokenizer() -> Json {
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "##s"];
    let vocab: BTreeMap<&str, usize> = words
        .into_iter()
        .enumerate()
        .map(|(id, word)| (word, id))
        .collect();
    let special = |id: usize| {
        json!({"id": id, "content": words[id], "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// The output of a test network.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// For each token, its id and whether it is masked out.
    Tokens,
    /// For each sequence, that many of the logits `second id - 4.5`, `0` and `-length`.
    Logits(usize),
    /// For each token, the logits of two classes: `0` and `id - 4.5`.
    TokenLogits,
}

/// A backend that loads every file as a network of the kind `kind`.
pub(crate) struct Network {
    pub(crate) kind: Kind,
    pub(crate) is_independent: bool,
    /// The input shape of each run of the network.
    pub(crate) seen: Arc<std::sync::Mutex<Vec<Vec<u64>>>>,
}

struct Running {
    metadata: ModelMetadata,
    kind: Kind,
    is_independent: bool,
    seen: Arc<std::sync::Mutex<Vec<Vec<u64>>>>,
}

impl Backend for Network {
    fn name(&self) -> &'static str {
        "network"
    }

    fn file_names(&self) -> &[&str] {
        &["model.onnx"]
    }

    fn load(&self, source: &ModelSource, _: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let input = |name: &str| TensorMetadata::new(name, DataType::INT64, &[-1, -1]);
        let inputs = ["input_ids", "attention_mask", "token_type_ids"]
            .map(input)
            .to_vec();
        let output = match self.kind {
            Kind::Tokens => TensorMetadata::new("last_hidden_state", DataType::FP32, &[-1, -1, 2]),
            Kind::Logits(width) => TensorMetadata::new("logits", DataType::FP32, &[-1, width as i64]),
            Kind::TokenLogits => TensorMetadata::new("logits", DataType::FP32, &[-1, -1, 2]),
        };
        Ok(Box::new(Running {
            metadata: ModelMetadata::new(&source.name, "network", inputs, vec![output]),
            kind: self.kind,
            is_independent: self.is_independent,
            seen: self.seen.clone(),
        }))
    }
}

impl Model for Running {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let ids = call.request.take::<i64>("input_ids")?;
        let mask = call.request.take::<i64>("attention_mask")?;
        let dims = ids.shape().dims().to_vec();
        self.seen.lock().unwrap().push(dims.clone());
        let (rows, length) = (dims[0], dims[1]);
        let sequences = ids.chunks(length as usize).zip(mask.chunks(length as usize));
        let (shape, values): (Vec<u64>, Vec<f32>) = match self.kind {
            Kind::Tokens => {
                let pairs = ids.iter().zip(&mask);
                (
                    vec![rows, length, 2],
                    pairs
                        .flat_map(|(id, mask)| [*id as f32, 1.0 - *mask as f32])
                        .collect(),
                )
            }
            Kind::Logits(width) => {
                let logits = sequences.flat_map(|(ids, mask)| {
                    let all = [ids[1] as f32 - 4.5, 0.0, -(mask.iter().sum::<i64>() as f32)];
                    all.into_iter().take(width)
                });
                (vec![rows, width as u64], logits.collect())
            }
            Kind::TokenLogits => (
                vec![rows, length, 2],
                ids.iter().flat_map(|id| [0.0, *id as f32 - 4.5]).collect(),
            ),
        };
        let name = &self.metadata.outputs[0].name;
        Ok(Outcome::output(
            name,
            Tensor::from_vec(Shape::new(&shape)?, values)?,
        ))
    }

    fn capabilities(&self) -> Capabilities {
        let rows = match self.is_independent {
            true => RowIndependence::Proven(IndependentRows::default()),
            false => RowIndependence::Unproven("scales are of all rows".to_owned()),
        };
        Capabilities::default().with(|capabilities| capabilities.row_independence = rows)
    }
}

/// A model directory in memory: paths and contents of its files.
pub(crate) struct Files(pub(crate) Vec<(String, Bytes)>);

impl Files {
    pub(crate) fn new(files: &[(&str, Json)]) -> Self {
        let files = files
            .iter()
            .map(|(path, json)| ((*path).to_owned(), Bytes::from(json.to_string())));
        Self(files.collect())
    }
}

impl ModelFiles for Files {
    fn has(&self, path: &str) -> bool {
        self.0.iter().any(|(name, _)| name == path)
    }

    fn read(&self, path: &str) -> Result<Bytes, ServiceError> {
        let file = self.0.iter().find(|(name, _)| name == path);
        file.map(|(_, content)| content.clone())
            .ok_or_else(|| ServiceError::invalid(format!("no file {path}")))
    }
}

/// A loaded model, and the input shapes of its network's runs.
pub(crate) struct LoadedModel {
    pub(crate) model: Box<dyn Model>,
    pub(crate) seen: Arc<std::sync::Mutex<Vec<Vec<u64>>>>,
}

/// Loads a model directory whose network is of the kind `kind`.
pub(crate) fn load(
    kind: Kind,
    is_independent: bool,
    options: TextOptions,
    files: &[(&str, Json)],
) -> Result<LoadedModel, ServiceError> {
    load_with(kind, is_independent, options, files, 0)
}

/// Loads a model directory like [`load`], with the `max_batch_size` of a configuration.
pub(crate) fn load_with(
    kind: Kind,
    is_independent: bool,
    options: TextOptions,
    files: &[(&str, Json)],
    max_batch_size: u32,
) -> Result<LoadedModel, ServiceError> {
    let seen = Arc::default();
    let network = Network {
        kind,
        is_independent,
        seen: Arc::clone(&seen),
    };
    let backend = TextBackend::new(Arc::new(network), options);
    let files = Files::new(files);
    assert!(backend.accepts(&files));
    let content = Bytes::from_static(b"network");
    let beside = backend.gather(&content, &files)?;
    let source = ModelSource::new("words", "", "words/model.onnx", content).with_beside(beside);
    let config = ModelConfig {
        max_batch_size,
        ..ModelConfig::default()
    };
    let cx = LoadContext::default().with_config(Arc::new(config));
    let model = backend.load(&source, &cx)?;
    Ok(LoadedModel { model, seen })
}

/// Creates a request with texts.
pub(crate) fn request<T: AsRef<[u8]>>(texts: &[T]) -> InferRequest {
    InferRequest::new(ModelRef::new("words", None).unwrap()).with_input("text", strings(texts))
}

pub(crate) fn strings<T: AsRef<[u8]>>(texts: &[T]) -> BytesTensor {
    BytesTensor::from_elements(Shape::vector(texts.len() as u64), texts).unwrap()
}

/// Runs a request with the engine's checks.
pub(crate) fn infer(model: &dyn Model, request: InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    model.infer(request, &CancelToken::new(None))
}

/// Returns the values of an output.
pub(crate) fn floats(outputs: &[InferOutput], name: &str) -> Vec<f32> {
    let output = outputs.iter().find(|output| output.name == name).unwrap();
    output.value.as_fixed().unwrap().to_vec().unwrap()
}

/// Returns the strings of an output.
pub(crate) fn texts(outputs: &[InferOutput], name: &str) -> Vec<String> {
    let output = outputs.iter().find(|output| output.name == name).unwrap();
    let strings = output.value.as_bytes().unwrap();
    strings
        .iter()
        .map(|text| String::from_utf8(text.to_vec()).unwrap())
        .collect()
}
