//! Differences are named; what is stored differently but is the same is none.

use fmt_core::Metadata;
use tensor_core::{DType, Shape, Tensor};
use tensor_files::{DifferenceKind, Tolerance, diff};

use crate::support::{open, tensor, write, write_sparse};

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
}

#[test]
fn every_kind_of_difference() {
    let folder = tempfile::tempdir().unwrap();
    let (same, other) = (tensor(DType::I16, &[4]), tensor(DType::I16, &[2, 2]));
    let (a, b) = (floats(&[1.0, 2.0, f32::NAN]), floats(&[1.0, 2.5, f32::NAN]));
    let metadata =
        |value: &str| -> Metadata { [("same".into(), "1".into()), ("other".into(), value.into())].into() };
    let first = write(
        folder.path(),
        "first.safetensors",
        &[("same", &same), ("form", &same), ("values", &a), ("gone", &same)],
        &metadata("x"),
    );
    let second = write(
        folder.path(),
        "second.safetensors",
        &[("new", &same), ("values", &b), ("form", &other), ("same", &same)],
        &metadata("y"),
    );
    let (first, second) = (open(&first), open(&second));
    let found = diff(&*first, &*second, Tolerance::default());
    let kinds: Vec<(&str, &DifferenceKind)> = found
        .iter()
        .map(|difference| (difference.name.as_str(), &difference.kind))
        .collect();
    let form = DifferenceKind::Form {
        first: "i16[4]".into(),
        second: "i16[2, 2]".into(),
    };
    let values = DifferenceKind::Values {
        elements: 1,
        farthest: 0.5,
    };
    assert_eq!(
        kinds,
        [
            ("form", &form),
            ("gone", &DifferenceKind::OnlyInFirst),
            ("values", &values),
            ("new", &DifferenceKind::OnlyInSecond),
            ("other", &DifferenceKind::Metadata),
        ]
    );
    assert_eq!(
        found[2].to_string(),
        "tensor 'values' differs in 1 elements, at most by 0.5"
    );
    assert_eq!(diff(&*first, &*first, Tolerance::default()), []);
}

#[test]
fn tolerance() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, values: &[f32]| {
        open(&write(
            folder.path(),
            name,
            &[("0", &floats(values))],
            &Metadata::new(),
        ))
    };
    let (a, b) = (
        write("a.npy", &[100.0, 0.0, 1.0]),
        write("b.btf", &[101.0, -0.0, f32::NAN]),
    );
    let count = |absolute: f64, relative: f64| {
        let found = diff(&*a, &*b, Tolerance { absolute, relative });
        match found.first().map(|difference| difference.kind.clone()) {
            Some(DifferenceKind::Values { elements, .. }) => elements,
            _ => 0,
        }
    };
    // Bytes differ: the sign of a zero is a difference unless something is tolerated.
    assert_eq!(count(0.0, 0.0), 3);
    assert_eq!(count(0.5, 0.0), 2);
    assert_eq!(count(1.0, 0.0), 1);
    assert_eq!(count(0.0, 0.01), 1);
}

#[test]
fn sparse_tensors_are_compared_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = write_sparse(folder.path());
    let reader = open(&path);
    assert_eq!(diff(&*reader, &*reader, Tolerance::default()), []);
    let mut bytes = std::fs::read(&path).unwrap();
    let end = reader.entries()[0].range.end as usize;
    bytes[end - 4] ^= 1;
    let other = folder.path().join("other.btf");
    std::fs::write(&other, bytes).unwrap();
    let found = diff(&*reader, &*open(&other), Tolerance::default());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, DifferenceKind::Entries);
}
