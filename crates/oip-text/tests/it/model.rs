//! Tests of text models for each task, and of the batching of their sequences.

use oip_model::{CancelToken, RowIndependence};
use oip_text::TextOptions;
use oip_types::{ErrorCode, ParameterValue};
use serde_json::json;

use crate::support::{Kind, floats, infer, load, load_with, request, strings, texts, tokenizer};

fn config(architecture: &str, labels: &[&str]) -> serde_json::Value {
    let labels: serde_json::Map<_, _> = labels
        .iter()
        .enumerate()
        .map(|(class, label)| (class.to_string(), json!(label)))
        .collect();
    json!({"model_type": "bert", "architectures": [architecture], "max_position_embeddings": 8, "id2label": labels})
}

fn sentence_model() -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("tokenizer.json", tokenizer()),
        (
            "config.json",
            json!({"model_type": "bert", "max_position_embeddings": 8}),
        ),
        (
            "modules.json",
            json!([{"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]),
        ),
        (
            "1_Pooling/config.json",
            json!({"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": false}),
        ),
    ]
}

#[test]
fn a_sentence_model_pools_as_its_modules_say_and_padding_does_not_count() {
    let loaded = load(Kind::Tokens, true, TextOptions::default(), &sentence_model()).unwrap();
    let outputs = infer(&*loaded.model, request(&["one", "two three one", ""])).unwrap();
    // The ids are 2 4 3, 2 5 6 4 3 and 2 3; the second value of a padding token would be 1.
    assert_eq!(floats(&outputs, "embedding"), [4.0, 0.0, 6.0, 0.0, 3.0, 0.0]);
    let counts = outputs[1].value.as_fixed().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(
        (outputs[1].name.as_str(), &counts[..]),
        ("token_count", &[3, 5, 2][..])
    );
    assert_eq!(*loaded.seen.lock().unwrap(), [vec![3, 5]]);
}

#[test]
fn the_last_module_normalizes() {
    let mut files = sentence_model();
    files[2]
        .1
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "sentence_transformers.models.Normalize", "path": "2"}));
    let loaded = load(Kind::Tokens, true, TextOptions::default(), &files).unwrap();
    let outputs = infer(&*loaded.model, request(&["one"])).unwrap();
    assert_eq!(floats(&outputs, "embedding"), [1.0, 0.0]);
}

#[test]
fn a_step_that_is_not_known_is_named() {
    let mut files = sentence_model();
    files[2]
        .1
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "sentence_transformers.models.Dense", "path": "2"}));
    let error = load(Kind::Tokens, true, TextOptions::default(), &files)
        .err()
        .unwrap();
    assert!(
        error
            .message()
            .contains("modules.json: it has the unknown step Dense"),
        "{error}"
    );
}

#[test]
fn sequences_run_by_length_under_the_budget_of_tokens() {
    let options = TextOptions::default().with(|options| options.max_batch_tokens = 10);
    let loaded = load(Kind::Tokens, true, options, &sentence_model()).unwrap();
    let given = ["one", "one two three", "two", "three two one"];
    let outputs = infer(&*loaded.model, request(&given)).unwrap();
    assert_eq!(
        floats(&outputs, "embedding"),
        [4.0, 0.0, 6.0, 0.0, 5.0, 0.0, 6.0, 0.0]
    );
    assert_eq!(*loaded.seen.lock().unwrap(), [vec![2, 5], vec![2, 3]]);
    assert!(matches!(
        loaded.model.capabilities().row_independence,
        RowIndependence::Proven(_)
    ));
}

#[test]
fn a_network_whose_rows_change_each_other_takes_one_text_at_a_time() {
    let loaded = load(Kind::Tokens, false, TextOptions::default(), &sentence_model()).unwrap();
    infer(&*loaded.model, request(&["one", "two three"])).unwrap();
    assert_eq!(*loaded.seen.lock().unwrap(), [vec![1, 4], vec![1, 3]]);
    assert!(matches!(
        loaded.model.capabilities().row_independence,
        RowIndependence::Unproven(_)
    ));
    assert_eq!(loaded.model.capabilities().max_batch_size, None);
}

#[test]
fn long_texts_are_cut_or_refused_as_asked() {
    let loaded = load(Kind::Tokens, true, TextOptions::default(), &sentence_model()).unwrap();
    let long = ["one", "one one one one one one one one"];
    infer(&*loaded.model, request(&long)).unwrap();
    assert_eq!(*loaded.seen.lock().unwrap(), [vec![2, 8]]);
    let mut strict = request(&long);
    strict
        .parameters
        .insert("truncate".to_owned(), ParameterValue::Bool(false));
    let error = infer(&*loaded.model, strict).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(
        error.message(),
        "text 1: it has more than 8 tokens, and 'truncate' is false"
    );
}

#[test]
fn token_ids_are_taken_for_texts() {
    let loaded = load(Kind::Tokens, true, TextOptions::default(), &sentence_model()).unwrap();
    let with_ids = |ids: &str| {
        let mut request = request(&[ids]);
        request
            .parameters
            .insert("token_ids".to_owned(), ParameterValue::Bool(true));
        infer(&*loaded.model, request)
    };
    assert_eq!(floats(&with_ids("[5, 6]").unwrap(), "embedding"), [6.0, 0.0]);
    assert_eq!(
        with_ids("[5, 600]").unwrap_err().message(),
        "text 0: 600 is not a token id of this model"
    );
    assert_eq!(
        with_ids("five").unwrap_err().message(),
        "text 0: expected a JSON array of token ids"
    );
}

#[test]
fn a_classifier_gives_scores_and_the_label_of_the_best() {
    let files = [
        ("tokenizer.json", tokenizer()),
        (
            "config.json",
            config("BertForSequenceClassification", &["bad", "good", "none"]),
        ),
    ];
    let loaded = load(Kind::Logits(3), true, TextOptions::default(), &files).unwrap();
    let outputs = infer(&*loaded.model, request(&["one", "two"])).unwrap();
    assert_eq!(texts(&outputs, "label"), ["good", "bad"]);
    let scores = floats(&outputs, "scores");
    assert!(
        scores
            .chunks(3)
            .all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6),
        "{scores:?}"
    );
}

/// The second texts are an input only if the tokenizer has a template for pairs.
#[test]
fn pairs_are_an_input_where_the_tokenizer_has_a_template_for_them() {
    let template = tokenizer()["post_processor"].clone();
    let mut single = template.clone();
    single["pair"] = single["single"].clone();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]});
    let roberta = json!({"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": true,
        "add_prefix_space": false});
    let sequence = |members: &[&serde_json::Value]| json!({"type": "Sequence", "processors": members});
    for (post_processor, has_pairs) in [
        (sequence(&[&bytes, &template]), true),
        (sequence(&[&bytes]), false),
        (template, true),
        (single, false),
        (bert, true),
        (roberta, true),
        (bytes, false),
        (serde_json::Value::Null, false),
    ] {
        let mut file = tokenizer();
        file["post_processor"] = post_processor.clone();
        let files = [
            ("tokenizer.json", file),
            (
                "config.json",
                config("BertForSequenceClassification", &["LABEL_0"]),
            ),
        ];
        let loaded = load(Kind::Logits(1), true, TextOptions::default(), &files).unwrap();
        let inputs = loaded.model.metadata().inputs.len();
        assert_eq!(inputs, 1 + usize::from(has_pairs), "{post_processor}");
    }
}

#[test]
fn a_reranker_gives_one_score_for_a_pair() {
    let files = [
        ("tokenizer.json", tokenizer()),
        (
            "config.json",
            config("BertForSequenceClassification", &["LABEL_0"]),
        ),
    ];
    let loaded = load(Kind::Logits(1), true, TextOptions::default(), &files).unwrap();
    let pairs = request(&["one", "two"]).with_input("text_pair", strings(&["three", "one"]));
    let scores = floats(&infer(&*loaded.model, pairs).unwrap(), "score");
    assert!(
        (scores[0] - 0.377_540_7).abs() < 1e-6 && (scores[1] - 0.622_459_3).abs() < 1e-6,
        "{scores:?}"
    );
    let inputs = |model: &dyn oip_model::Model| {
        let inputs = model.metadata().inputs.iter();
        inputs.map(|input| input.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(&*loaded.model), ["text", "text_pair"]);
    let uneven = request(&["one", "two"]).with_input("text_pair", strings(&["three"]));
    let error = infer(&*loaded.model, uneven).unwrap_err();
    assert_eq!(
        error.message(),
        "input 'text_pair' has 1 texts, expected 2, as many as 'text'"
    );
}

#[test]
fn a_token_classifier_gives_labels_with_offsets_in_characters() {
    let files = [
        ("tokenizer.json", tokenizer()),
        ("config.json", config("BertForTokenClassification", &["O", "N"])),
    ];
    let loaded = load(Kind::TokenLogits, true, TextOptions::default(), &files).unwrap();
    let outputs = infer(&*loaded.model, request(&["\u{e9} one two"])).unwrap();
    let entities: serde_json::Value = serde_json::from_str(&texts(&outputs, "entities")[0]).unwrap();
    let found: Vec<_> = entities
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (&e["label"], &e["start"], &e["end"]))
        .collect();
    assert_eq!(json!(found), json!([["O", 0, 1], ["O", 2, 5], ["N", 6, 9]]));
}

#[test]
fn a_request_that_is_over_is_given_up_between_texts() {
    let loaded = load(Kind::Tokens, true, TextOptions::default(), &sentence_model()).unwrap();
    let cancel = CancelToken::new(None);
    cancel.cancel();
    let error = loaded.model.infer(request(&["one"]), &cancel).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Cancelled);
    assert!(loaded.seen.lock().unwrap().is_empty());
}

#[test]
fn a_configured_batch_size_joins_what_is_not_proven_independent() {
    let joined = |max_batch_size: u32| {
        let loaded = load_with(
            Kind::Tokens,
            false,
            TextOptions::default(),
            &sentence_model(),
            max_batch_size,
        )
        .unwrap();
        infer(&*loaded.model, request(&["one", "two three"])).unwrap();
        loaded.seen.lock().unwrap().clone()
    };
    assert_eq!(joined(0), [vec![1, 4], vec![1, 3]]);
    assert_eq!(joined(1), [vec![1, 4], vec![1, 3]]);
    assert_eq!(joined(8), [vec![2, 4]]);
}

#[test]
fn special_tokens_that_the_tokenizer_does_not_mark_are_those_of_their_map() {
    let mut unmarked = tokenizer();
    unmarked["added_tokens"] = json!([]);
    let map = json!({"sep_token": "[SEP]", "pad_token": {"content": "three", "lstrip": false}, "cls_token": null,
        "additional_special_tokens": ["two", "nowhere"]});
    let ids = |files: &[(&str, serde_json::Value)]| {
        let loaded = load(Kind::Tokens, true, TextOptions::default(), files).unwrap();
        let outputs = infer(&*loaded.model, request(&["[SEP]", "onetwo nowhere"])).unwrap();
        outputs[1].value.as_fixed().unwrap().to_vec::<i64>().unwrap()
    };
    let mut files = sentence_model();
    files[0].1 = unmarked;
    // "[", "sep" and "]" are three unknown words, and "onetwo" is one.
    assert_eq!(ids(&files), [5, 4]);
    files.push(("special_tokens_map.json", map));
    assert_eq!(ids(&files), [3, 5]);
    let read = |map: &str| {
        let tokenizer = oip_text::TextTokenizer::read(
            files[0].1.to_string().as_bytes(),
            64,
            &oip_text::TokenizerLimits::default().with(|limits| limits.max_added_tokens = 4),
        );
        tokenizer.unwrap().with_special_tokens(map.as_bytes())
    };
    // `[PAD]` is the default name, unless the map names another token.
    assert_eq!(read("{}").unwrap().pad(), 0);
    assert_eq!(read(r#"{"pad_token": "three"}"#).unwrap().pad(), 6);
    for (map, error) in [
        ("[]", "special_tokens_map.json: expected a JSON object"),
        (
            r#"{"sep_token": 7}"#,
            "special_tokens_map.json: sep_token: expected a token",
        ),
        (
            r#"{"a": ["a", "b", "c", "d", "e"]}"#,
            "it has 5 tokens, expected at most 4",
        ),
    ] {
        let found = read(map).unwrap_err().to_string();
        assert!(found.contains(error), "{found}");
    }
}
