//! Malicious tokenizers and texts.

use std::time::{Duration, Instant};

use oip_text::{TextOptions, TextTokenizer, TokenizerLimits};
use oip_types::ErrorCode;
use serde_json::{Value as Json, json};

use crate::support::{Kind, infer, load, request, tokenizer};

fn read(file: &Json) -> Result<TextTokenizer, String> {
    let read = TextTokenizer::read(file.to_string().as_bytes(), 512, &TokenizerLimits::default());
    read.map_err(|error| error.to_string())
}

/// Returns the error for the test tokenizer's file after the value at the JSON pointer `place` is replaced
/// with `value`.
fn refusal(place: &str, value: Json) -> String {
    let mut file = tokenizer();
    *file.pointer_mut(place).unwrap() = value;
    read(&file).unwrap_err()
}

fn model() -> crate::support::LoadedModel {
    let files = [
        ("tokenizer.json", tokenizer()),
        ("config.json", json!({"model_type": "bert"})),
    ];
    load(Kind::Tokens, true, TextOptions::default(), &files).unwrap()
}

#[test]
fn a_pattern_that_backtracks_is_refused() {
    for pattern in [r"(?=(a+)+$)b", r"(a*)\1*$", r"(?<!a)b"] {
        let split =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let error = refusal("/pre_tokenizer", split.clone());
        assert!(error.contains("may need backtracking"), "{error}");
        let nested =
            json!({"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [split]}]});
        assert!(refusal("/pre_tokenizer", nested).contains("may need backtracking"));
        let replace = json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""});
        assert!(refusal("/normalizer", replace).contains("may need backtracking"));
    }
}

#[test]
fn the_patterns_of_known_tokenizers_are_admitted() {
    for pattern in [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\d|\p{Han}+",
    ] {
        let mut file = tokenizer();
        file["pre_tokenizer"] =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        read(&file).unwrap();
    }
}

#[test]
fn a_pattern_that_compiles_to_much_is_refused() {
    let pattern = json!({"type": "Split", "pattern": {"Regex": r"((\w{500}){500}){500}"}, "behavior": "Isolated",
        "invert": false});
    assert!(refusal("/pre_tokenizer", pattern).contains("the pattern"));
}

#[test]
fn a_vocabulary_of_millions_is_refused_before_it_is_built() {
    let vocab: String = (0..2_000_001).map(|id| format!("\"{id:x}\":{id},")).collect();
    let file = tokenizer()
        .to_string()
        .replace("\"vocab\":{", &format!("\"vocab\":{{{vocab}"));
    let started = Instant::now();
    let error = TextTokenizer::read(file.as_bytes(), 512, &TokenizerLimits::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tokens in model.vocab, expected at most 2000000"),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn added_tokens_without_end_are_refused() {
    let token = json!({"id": 4, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": true, "special": false});
    let error = refusal("/added_tokens", Json::Array(vec![token; 100_001]));
    assert_eq!(
        error,
        "tokenizer.json: it has 100001 added tokens, expected at most 100000"
    );
}

#[test]
fn normalizers_that_grow_are_refused() {
    let doubling = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let error = refusal(
        "/normalizer",
        json!({"type": "Sequence", "normalizers": vec![doubling; 40]}),
    );
    assert!(
        error.contains("times as long, expected at most 128 times"),
        "{error}"
    );
    let long = json!({"type": "Replace", "pattern": {"Regex": "."}, "content": "x".repeat(1 << 20)});
    assert!(refusal("/normalizer", long).contains("times as long"));
    let between = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x".repeat(128)});
    assert!(refusal("/normalizer", between).contains("times as long"));
    let before = json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)});
    assert!(refusal("/normalizer", before).contains("bytes in a prefix or suffix"));
}

#[test]
fn a_character_map_with_long_replacements_is_refused() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let map = [&4_u32.to_le_bytes()[..], &[0; 4], &[b'x'; 4096], &[0]].concat();
    let error = refusal(
        "/normalizer",
        json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map)}),
    );
    assert!(error.contains("4096 times as long"), "{error}");
}

#[test]
fn sequences_in_sequences_are_refused() {
    for (place, field) in [
        ("/normalizer", "normalizers"),
        ("/pre_tokenizer", "pretokenizers"),
        ("/post_processor", "processors"),
    ] {
        let nested = (0..20).fold(
            json!({"type": "Bad"}),
            |inner, _| json!({"type": "Sequence", field: [inner]}),
        );
        let error = refusal(place, nested);
        assert!(error.contains("levels of Sequence in each other"), "{error}");
    }
}

#[test]
fn what_takes_time_or_memory_by_word_or_template_is_refused() {
    assert!(
        refusal("/model/max_input_chars_per_word", json!(1_000_000_000)).contains("expected at most 200")
    );
    assert!(
        refusal("/model/continuing_subword_prefix", json!("#".repeat(1 << 20))).contains("prefix or suffix")
    );
    let piece = json!({"Sequence": {"id": "A", "type_id": 0}});
    assert!(
        refusal("/post_processor/single", Json::Array(vec![piece; 1000])).contains("pieces in the template")
    );
    let ids = vec![2; 1 << 20];
    assert!(
        refusal("/post_processor/special_tokens/[CLS]/ids", json!(ids)).contains("ids in a special token")
    );
}

#[test]
fn dropout_would_make_tokens_random() {
    let mut file = tokenizer();
    file["model"] = json!({"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []});
    assert!(read(&file).unwrap_err().contains("dropout makes tokens random"));
}

#[test]
fn a_damaged_tokenizer_is_an_error_of_its_file() {
    let whole = tokenizer().to_string();
    for length in (0..whole.len()).step_by(41) {
        let error =
            TextTokenizer::read(&whole.as_bytes()[..length], 512, &TokenizerLimits::default()).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json: "), "{error}");
    }
    // The library may panic for these maps; the panic must also become an error.
    for map in ["", "AA==", "/////w==", "////////////"] {
        let mut file = tokenizer();
        file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": map});
        let _ = read(&file);
    }
}

#[test]
fn special_tokens_must_leave_room() {
    let file = tokenizer().to_string();
    let error = TextTokenizer::read(file.as_bytes(), 3, &TokenizerLimits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.json: it adds 3 special tokens, and the longest sequence has 3 tokens"
    );
}

#[test]
fn padding_and_truncation_of_the_file_do_not_count() {
    let mut file = tokenizer();
    file["padding"] = json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 7, "pad_type_id": 0, "pad_token": "[PAD]"});
    file["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    let tokenizer = read(&file).unwrap();
    assert_eq!(tokenizer.encode(0, b"one two", None).unwrap().ids, [2, 4, 5, 3]);
    assert_eq!(tokenizer.pad(), 7);
}

#[test]
fn a_word_of_a_mebibyte_is_refused_before_any_work() {
    let error = infer(&*model().model, request(&["one", &"a".repeat(1 << 20)])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(
        error.message(),
        "text 1: it has 1048576 bytes, expected at most 131072"
    );
}

#[test]
fn the_longest_word_that_is_admitted_takes_little_time_in_bpe() {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut vocab: Vec<String> = letters.iter().map(char::to_string).collect();
    let merges: Vec<[String; 2]> = (1..12)
        .map(|doublings| ["a".repeat(1 << (doublings - 1)), "a".repeat(1 << (doublings - 1))])
        .collect();
    vocab.extend(merges.iter().map(|[left, right]| format!("{left}{right}")));
    let vocab: serde_json::Map<String, Json> = vocab
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    let tokenizer = read(&file).unwrap();
    let started = Instant::now();
    let tokens = tokenizer
        .encode(0, "a".repeat(128 << 10).as_bytes(), None)
        .unwrap();
    assert_eq!(tokens.ids.len(), 64);
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn a_hundred_thousand_texts_are_refused_before_any_work() {
    let loaded = model();
    let error = infer(&*loaded.model, request(&vec!["one"; 100_000])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(
        error.message(),
        "the request has 100000 texts, expected at most 16384: send several requests"
    );
    let error = infer(&*loaded.model, request(&vec!["a".repeat(64 << 10); 1000])).unwrap_err();
    assert_eq!(
        error.message(),
        "the request has 65536000 bytes of text, expected at most 16777216: send several requests"
    );
    assert!(loaded.seen.lock().unwrap().is_empty());
}

#[test]
fn invalid_utf_8_and_lone_surrogates_are_refused_with_the_index() {
    let loaded = model();
    for (text, offset) in [(&b"one \xff"[..], 4), (b"\xed\xa0\x80", 0), (b"ab\xc3", 2)] {
        let error = infer(&*loaded.model, request(&[b"one", text])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(
            error.message(),
            format!("text 1: not UTF-8: the first invalid byte is at offset {offset}")
        );
    }
    assert!(loaded.seen.lock().unwrap().is_empty());
}

#[test]
fn nul_and_other_control_characters_are_text() {
    let outputs = infer(
        &*model().model,
        request(&["\0", "one\0two", "\u{202e}\u{feff}", "\r\n\t"]),
    )
    .unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [4, 2]);
}

/// Returns the slowest texts of the maximum size, each with a tokenizer that makes it slow.
fn worst() -> Vec<(&'static str, Json, String)> {
    let most = 128 << 10;
    let filled = |part: &str| part.repeat(most / part.len());
    let mut lookups = tokenizer();
    lookups["model"]["vocab"]["a"] = json!(100);
    lookups["model"]["vocab"]["##a"] = json!(101);
    lookups["model"]["max_input_chars_per_word"] = json!(200);
    let mut stripped = tokenizer();
    stripped["added_tokens"][0]["lstrip"] = json!(true);
    stripped["added_tokens"][0]["rstrip"] = json!(true);
    let split = |pattern: &str| {
        let mut file = tokenizer();
        file["pre_tokenizer"] =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        file
    };
    let normalized = |kind: &str| {
        let mut file = tokenizer();
        file["normalizer"] = json!({"type": kind});
        file
    };
    let mut unigram = tokenizer();
    let pieces: Vec<Json> = (0..200)
        .map(|length| json!(["a".repeat(length + 1), -1.0]))
        .collect();
    unigram["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": false});
    unigram["pre_tokenizer"] = Json::Null;
    let gpt = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    vec![
        (
            "words of 200 characters that are looked up in all parts",
            lookups,
            filled(&format!("{}b ", "a".repeat(198))),
        ),
        ("special tokens", tokenizer(), filled("[PAD]")),
        (
            "special tokens that strip white space",
            stripped.clone(),
            filled("[PAD] "),
        ),
        (
            "white space behind special tokens",
            stripped,
            filled("[PAD]          "),
        ),
        ("punctuation", tokenizer(), filled("!")),
        (
            "marks on one letter",
            tokenizer(),
            format!("a{}", "\u{300}\u{316}".repeat(most / 4 - 1)),
        ),
        (
            "the same, composed",
            normalized("NFKC"),
            format!("a{}", "\u{300}\u{316}".repeat(most / 4 - 1)),
        ),
        (
            "characters that decompose in 18",
            normalized("NFKD"),
            filled("\u{fdfa}"),
        ),
        (
            "a pattern that looks to the end for each match",
            split(r".*[^A-Z]|[A-Z]"),
            filled("A"),
        ),
        ("a large pattern", split(r"\w{1,60}\d?x"), filled("abc1")),
        ("white space in GPT-2's pattern", split(gpt), filled(" ")),
        ("line breaks in GPT-2's pattern", split(gpt), filled(" \n\t")),
        ("one word in Unigram", unigram, filled("a")),
    ]
}

/// Normalizing and splitting a text cannot be interrupted, so they must be fast for any text; later steps can
/// be interrupted.
#[test]
fn no_text_of_the_permitted_size_is_tokenized_for_long_after_its_deadline() {
    for (name, file, text) in worst() {
        let tokenizer = read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let started = Instant::now();
        // Both texts of a pair are tokenized in full, whatever their length.
        let _ = tokenizer.encode_until(0, text.as_bytes(), Some(b""), &|| true);
        let taken = started.elapsed();
        println!("{name}: {taken:.2?}");
        assert!(taken < Duration::from_secs(60), "{name}: {taken:?}");
    }
}

#[test]
fn a_text_is_given_up_in_its_midst() {
    let (_, file, text) = worst().remove(0);
    let tokenizer = read(&file).unwrap();
    let asked = std::cell::Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        asked.get() == 3
    };
    let error = tokenizer
        .encode_until(0, text.as_bytes(), Some(b""), &is_over)
        .unwrap_err();
    assert!(matches!(error, oip_text::TextError::Interrupted), "{error}");
    assert_eq!(asked.get(), 3);
}
