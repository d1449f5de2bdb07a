//! Tests that differences in content are reported, and that differences in storage are not.

use fmt_core::{Metadata, Plan, PlannedEntry, ReadOptions};
use tensor_core::{DType, Shape, Tensor, TensorSpec};
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
        // The distance is unknown, because one element is NaN.
        distance: None,
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
        "tensor 'values' differs in 1 element, at most by 0.5"
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
    // The sign of a zero is a difference in bytes, which counts unless a tolerance is set.
    assert_eq!(count(0.0, 0.0), 3);
    assert_eq!(count(0.5, 0.0), 2);
    assert_eq!(count(1.0, 0.0), 1);
    assert_eq!(count(0.0, 0.01), 1);
}

/// An infinity is not close to anything else, large integers are subtracted before rounding, and zeros of
/// different signs are reported as a difference in bits only.
#[test]
fn extremes_are_compared_as_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let differ = |a: &Tensor, b: &Tensor, tolerance: Tolerance| {
        let write =
            |name: &str, tensor: &Tensor| write(folder.path(), name, &[("0", tensor)], &Metadata::new());
        let (a, b) = (open(&write("a.npy", a)), open(&write("b.npy", b)));
        let found = diff(&*a, &*b, tolerance);
        found.first().map(ToString::to_string).unwrap_or_default()
    };
    let loose = Tolerance {
        absolute: 1.0,
        relative: 0.5,
    };
    let infinite = floats(&[f32::INFINITY, 1.0]);
    for other in [1.0, f32::NEG_INFINITY, f32::NAN] {
        assert_ne!(differ(&infinite, &floats(&[other, 1.0]), loose), "", "{other}");
        assert_ne!(differ(&floats(&[other, 1.0]), &infinite, loose), "", "{other}");
    }
    assert_eq!(differ(&infinite, &infinite, loose), "");

    let integers = |value: i64| Tensor::from_vec(Shape::vector(1), vec![value]).unwrap();
    let far = Tolerance {
        absolute: 0.5,
        relative: 0.0,
    };
    assert_eq!(
        differ(&integers(1 << 60), &integers((1 << 60) + 1), far),
        "tensor '0' differs in 1 element, at most by 1.0, L2 1, relative 8.67362e-19, cosine 1"
    );
    assert_eq!(
        differ(&integers(i64::MIN), &integers(i64::MAX), far),
        "tensor '0' differs in 1 element, at most by 1.8446744073709552e19, L2 1.84467e19, relative 2, cosine -1"
    );
    assert_eq!(
        differ(&floats(&[0.0]), &floats(&[-0.0]), Tolerance::default()),
        "tensor '0' differs in 1 element, in bits only: signs of zeros, kinds of NaN"
    );
    assert_eq!(differ(&floats(&[0.0]), &floats(&[-0.0]), far), "");
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

/// The distance covers all elements, even if the first difference comes after megabytes of equal elements.
#[test]
fn the_distance_is_over_all_elements() {
    let folder = tempfile::tempdir().unwrap();
    let mut values = vec![0.5f32; 200_000];
    let write = |name: &str, values: &[f32]| {
        open(&write(
            folder.path(),
            name,
            &[("0", &floats(values))],
            &Metadata::new(),
        ))
    };
    let first = write("a.npy", &values);
    values[150_000] = 3.5;
    let second = write("b.npy", &values);
    let found = diff(&*first, &*second, Tolerance::default());
    let DifferenceKind::Values {
        distance: Some(distance),
        ..
    } = &found[0].kind
    else {
        panic!("{found:?}");
    };
    let (a, b, product) = (50_000.0f64, 50_012.0f64, 50_001.5f64);
    let is_near = |x: f64, y: f64| (x - y).abs() < 1e-12;
    assert!(
        is_near(distance.l2, 3.0) && is_near(distance.relative_l2, 3.0 / b.sqrt()),
        "{distance:?}"
    );
    assert!(is_near(distance.cosine, product / (a * b).sqrt()), "{distance:?}");
}

#[test]
fn attributes_are_compared_and_so_is_every_tensor_of_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, unit: &str, values: [u8; 2]| {
        let spec = TensorSpec::new(DType::U8, Shape::vector(1)).unwrap();
        let path = folder.path().join(name);
        let entries = ["w", "v"].map(|name| {
            let mut entry = PlannedEntry::dense(name, spec.clone());
            entry.attributes = [("unit".into(), unit.into()), ("same".into(), "1".into())].into();
            entry
        });
        let plan = Plan {
            entries: entries.into(),
            ..Plan::default()
        };
        let mut file = Vec::new();
        let mut writer = tensor_files::format("ztensor")
            .unwrap()
            .create(Box::new(&mut file), plan)
            .unwrap();
        writer.write(&values).unwrap();
        writer.finish().unwrap();
        // Renames the tensor `v` to `w`, so that both tensors have the same name.
        let index = file.windows(2).rposition(|bytes| bytes == b"av").unwrap();
        file[index + 1] = b'w';
        std::fs::write(&path, file).unwrap();
        let lenient = ReadOptions {
            lenient: true,
            ..ReadOptions::default()
        };
        tensor_files::open(&path, &lenient).unwrap()
    };
    let (first, second) = (write("a.zt", "m", [1, 2]), write("b.zt", "km", [7, 2]));
    assert_eq!(first.entries()[1].name, "w");
    let found: Vec<String> = diff(&*first, &*second, Tolerance::default())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "tensor 'w' differs in 1 element, at most by 6.0, L2 6, relative 0.857143, cosine 1",
            "the attribute 'unit' of tensor 'w' differs",
            "the attribute 'unit' of tensor 'w' differs",
        ]
    );
}
