//! Tests with mutations of valid files.

use fmt_core::{
    Metadata, ReadOptions,
    testing::{BASE_ALLOWANCE, mutants, open_hostile, open_many_hostile},
};
use fmt_safetensors::Safetensors;
use tensor_core::DType;

use crate::support::{counting, file, written};

fn bases() -> Vec<Vec<u8>> {
    let (a, b) = (counting(DType::F32, &[2, 3]), counting(DType::U8, &[5]));
    let metadata: Metadata = [("format".into(), "pt".into())].into();
    vec![
        written(&[("first", &a), ("second", &b)], &metadata),
        file(
            r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I16","shape":[0,9],"data_offsets":[2,2]}}"#,
            2,
        ),
        file("{}", 0),
    ]
}

#[test]
fn thousands_of_mutants() {
    let derived = bases().into_iter().flat_map(|base| {
        let count = base.len() * 9 + 2000;
        mutants(&base, count).collect::<Vec<_>>()
    });
    let opened = open_many_hostile(&Safetensors, derived, &ReadOptions::default(), BASE_ALLOWANCE);
    assert!(opened > 100, "{opened} opened");
}

#[test]
fn files_and_memory_are_judged_alike() {
    for base in bases() {
        open_hostile(&Safetensors, &base, &ReadOptions::default()).unwrap();
        for mutant in mutants(&base, 200) {
            let _ = open_hostile(&Safetensors, &mutant, &ReadOptions::default());
        }
    }
}

/// Ignored values may be nested without limit; skipping them uses no stack.
#[test]
fn nesting() {
    for depth in [100, 100_000] {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let header = format!(r#"{{"a":{{"more":{nested},"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
        open_hostile(&Safetensors, &file(&header, 0), &ReadOptions::default()).unwrap();
    }
}
