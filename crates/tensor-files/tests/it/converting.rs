//! Conversion: nothing is lost silently, and a target appears only when it is complete.

use std::{
    cell::Cell,
    fs,
    io::Write,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use fmt_core::{
    ByteSource, Error, ErrorKind::*, Format, Metadata, Plan, ReadOptions, Sniff, TensorReader, TensorWriter,
};
use tensor_core::DType;
use tensor_files::{Composite, ConvertOptions, Loss, Recast, convert, diff, format_of_path, losses, verify};

use crate::support::{names, open, tensor, writable, write, write_sparse};

fn allowing() -> ConvertOptions<'static> {
    ConvertOptions {
        allow_loss: tensor_files::AllowedLoss::ALL,
        ..ConvertOptions::default()
    }
}

/// Converts from every format to every other one, with content that all formats can store.
#[test]
fn from_everywhere_to_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    // The tensor is larger than the pieces in which tensors are copied.
    let large = tensor(DType::F32, &[300, 10_000]);
    for from in writable() {
        let name = format!("from.{}", from.extensions()[0]);
        let path = write(folder.path(), &name, &[("0", &large)], &Metadata::new());
        let reader = open(&path);
        for to in writable() {
            let target = folder.path().join(format!("to.{}", to.extensions()[0]));
            assert!(losses(&*reader, to, &ConvertOptions::default()).is_empty());
            let converted = convert(&*reader, to, &target, &ConvertOptions::default()).unwrap();
            assert_eq!(converted.len, fs::metadata(&target).unwrap().len());
            let copy = open(&target);
            assert_eq!(diff(&*reader, &*copy, Default::default()), []);
            assert!(verify(&*copy).unwrap().is_sound());
        }
    }
}

/// Plain tensors of GGUF convert to every format and back; quantized tensors convert only to formats with
/// blocks.
#[test]
fn from_gguf_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.gguf");
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    [2u64, 0, 1]
        .iter()
        .for_each(|word| file.extend(word.to_le_bytes()));
    // The tensors are I16[4] and 32 elements of Q8_0.
    file.extend(b"w\x01\0\0\0\x04\0\0\0\0\0\0\0\x19\0\0\0\0\0\0\0\0\0\0\0");
    file.extend(b"\x01\0\0\0\0\0\0\0q\x01\0\0\0\x20\0\0\0\0\0\0\0\x08\0\0\0\x20\0\0\0\0\0\0\0");
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend((0..32 + 34).collect::<Vec<u8>>());
    fs::write(&source, file).unwrap();
    let reader = open(&source);
    assert_eq!(reader.format(), "gguf");

    let target = folder.path().join("b.safetensors");
    let format = format_of_path(&target).unwrap();
    let refused = convert(&*reader, format, &target, &ConvertOptions::default()).unwrap_err();
    assert!(
        refused.to_string().contains("cannot store the dtype: found Q8_0"),
        "{refused}"
    );
    let converted = convert(&*reader, format, &target, &allowing()).unwrap();
    assert_eq!(converted.losses.len(), 1);
    assert_eq!(open(&target).tensor(0).unwrap(), reader.tensor(0).unwrap());

    let back = folder.path().join("c.gguf");
    let format = format_of_path(&back).unwrap();
    convert(&*open(&target), format, &back, &ConvertOptions::default()).unwrap();
    assert_eq!(open(&back).tensor(0).unwrap(), reader.tensor(0).unwrap());
    // Blocks are copied unchanged.
    let copy = folder.path().join("d.gguf");
    convert(&*reader, format, &copy, &ConvertOptions::default()).unwrap();
    let difference = tensor_files::diff(&*reader, &*open(&copy), Default::default());
    assert!(difference.is_empty(), "{difference:?}");
}

/// Converts a file in place.
#[test]
fn onto_itself() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::I64, &[100]);
    let path = write(
        folder.path(),
        "a.safetensors",
        &[("a", &values)],
        &Metadata::new(),
    );
    let reader = open(&path);
    let target = tensor_files::format("btf").unwrap();
    convert(&*reader, target, &path, &ConvertOptions::default()).unwrap();
    assert_eq!(reader.tensor(0).unwrap(), values);
}

#[test]
fn what_has_no_place_is_refused_or_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (float, brain) = (tensor(DType::F32, &[3]), tensor(DType::BF16, &[3]));
    let metadata: Metadata = [("format".into(), "pt".into())].into();
    let path = write(
        folder.path(),
        "a.safetensors",
        &[("float", &float), ("brain", &brain)],
        &metadata,
    );
    let reader = open(&path);
    let tbuf = folder.path().join("a.tbuf");
    let target = format_of_path(&tbuf).unwrap();
    let error = convert(&*reader, target, &tbuf, &ConvertOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Unsupported);
    let message = error.to_string();
    assert!(message.contains("tbuf cannot hold tensor 'brain'"), "{message}");
    assert!(message.contains("the metadata 'format'"), "{message}");
    assert_eq!(names(folder.path()), ["a.safetensors"]);

    let converted = convert(&*reader, target, &tbuf, &allowing()).unwrap();
    assert!(matches!(&converted.losses[..], [Loss::Tensor(name, _), Loss::Metadata(_)] if name == "brain"));
    assert_eq!(open(&tbuf).find("float"), Some(0));
    assert_eq!(open(&tbuf).entries().len(), 1);

    // A NumPy array file holds one tensor.
    let npy = folder.path().join("a.npy");
    let error = convert(
        &*reader,
        format_of_path(&npy).unwrap(),
        &npy,
        &ConvertOptions::default(),
    );
    assert_eq!(error.unwrap_err().kind(), Unsupported);
}

#[test]
fn b14_names_go_beside_a_file_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (tensor(DType::F32, &[3]), tensor(DType::U8, &[2]));
    let metadata: Metadata = [("model".into(), "tiny".into())].into();
    let path = write(
        folder.path(),
        "a.safetensors",
        &[("weight", &a), ("bias", &b)],
        &metadata,
    );
    let reader = open(&path);
    let btf = folder.path().join("a.btf");
    let target = format_of_path(&btf).unwrap();
    let converted = convert(&*reader, target, &btf, &ConvertOptions::default()).unwrap();
    assert!(converted.losses.is_empty());
    let copy = open(&btf);
    assert_eq!(copy.find("bias"), Some(1));
    assert_eq!(copy.metadata(), &metadata);
    assert_eq!(diff(&*reader, &*copy, Default::default()), []);

    // Converts the BTF file back to safetensors.
    let back = folder.path().join("back.safetensors");
    convert(
        &*copy,
        format_of_path(&back).unwrap(),
        &back,
        &ConvertOptions::default(),
    )
    .unwrap();
    assert_eq!(diff(&*reader, &*open(&back), Default::default()), []);

    // Without the names file, the names are lost.
    let alone = ConvertOptions {
        names_beside: false,
        ..ConvertOptions::default()
    };
    let lost = losses(&*reader, target, &alone);
    assert_eq!(lost, [Loss::Names, Loss::Metadata("model".into())]);
    assert_eq!(
        convert(&*reader, target, &btf, &alone).unwrap_err().kind(),
        Unsupported
    );
    assert_eq!(open(&btf).find("bias"), Some(1));

    // A names file that does not match is not used, and this is reported.
    fs::write(
        folder.path().join("a.btf.names.json"),
        r#"{"names":["only one"]}"#,
    )
    .unwrap();
    let copy = open(&btf);
    assert_eq!(copy.find("1"), Some(1));
    let lints = copy.lints().unwrap();
    assert!(lints.iter().any(|lint| lint.message.contains("is not used")));
}

/// If a file is replaced by one with two other tensors, the new tensors do not get the old tensors' names.
#[test]
fn b14_names_go_with_the_file_that_had_them() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (tensor(DType::F32, &[3]), tensor(DType::U8, &[2]));
    let named = write(
        folder.path(),
        "named.safetensors",
        &[("weight", &a), ("bias", &b)],
        &Metadata::new(),
    );
    let numbered = write(
        folder.path(),
        "numbered.safetensors",
        &[("0", &b), ("1", &a)],
        &Metadata::new(),
    );
    let btf = folder.path().join("a.btf");
    let target = format_of_path(&btf).unwrap();
    for path in [named, numbered] {
        convert(&*open(&path), target, &btf, &ConvertOptions::default()).unwrap();
    }
    assert_eq!(open(&btf).entries()[0].name, "0");
    assert!(!folder.path().join("a.btf.names.json").exists());
}

/// For a link to a BTF file, the names file is next to the link's target.
#[cfg(unix)]
#[test]
fn b14_names_stand_beside_the_file_behind_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (tensor(DType::F32, &[3]), tensor(DType::U8, &[2]));
    let of = |name: &str, names: [&str; 2]| {
        let tensors = [(names[0], &a), (names[1], &b)];
        write(folder.path(), name, &tensors, &Metadata::new())
    };
    let files = [
        of("old.safetensors", ["x", "y"]),
        of("new.safetensors", ["v", "w"]),
    ];
    fs::create_dir(folder.path().join("real")).unwrap();
    let (real, link) = (folder.path().join("real/a.btf"), folder.path().join("link.btf"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let target = format_of_path(&real).unwrap();
    for (file, path) in files.iter().zip([&real, &link]) {
        convert(&*open(file), target, path, &ConvertOptions::default()).unwrap();
    }
    for path in [&real, &link] {
        assert_eq!(open(path).entries()[1].name, "w", "{}", path.display());
    }
    // The names file may also be next to the link, as in a cache whose files are all links.
    fs::rename(
        folder.path().join("real/a.btf.names.json"),
        folder.path().join("link.btf.names.json"),
    )
    .unwrap();
    assert_eq!(open(&link).entries()[1].name, "w");
}

#[test]
fn sparse_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let (path, sparse) = write_sparse(folder.path());
    let reader = open(&path);
    // Sparse tensors stay sparse if the target format supports it.
    let copy = folder.path().join("copy.btf");
    convert(
        &*reader,
        format_of_path(&copy).unwrap(),
        &copy,
        &ConvertOptions::default(),
    )
    .unwrap();
    assert_eq!(open(&copy).sparse(0).unwrap(), sparse);
    assert_eq!(diff(&*reader, &*open(&copy), Default::default()), []);

    let dense = folder.path().join("dense.safetensors");
    let target = format_of_path(&dense).unwrap();
    assert_eq!(
        losses(&*reader, target, &ConvertOptions::default()),
        [Loss::Sparsity("0".into())]
    );
    assert!(convert(&*reader, target, &dense, &ConvertOptions::default()).is_err());
    convert(&*reader, target, &dense, &allowing()).unwrap();
    let converted = open(&dense);
    assert_eq!(converted.tensor(0).unwrap(), converted.tensor(1).unwrap());

    // A sparse tensor is made dense only within the budget; otherwise it is left out.
    let small = ConvertOptions {
        dense_budget: 23,
        ..allowing()
    };
    let converted = convert(&*reader, target, &dense, &small).unwrap();
    assert!(matches!(&converted.losses[..], [Loss::Tensor(name, _)] if name == "0"));
    assert_eq!(open(&dense).entries().len(), 1);
}

#[test]
fn a_conversion_that_is_stopped_leaves_the_target_alone() {
    let folder = tempfile::tempdir().unwrap();
    let large = tensor(DType::U8, &[40, 1 << 20]);
    let path = write(folder.path(), "a.safetensors", &[("0", &large)], &Metadata::new());
    let target = folder.path().join("a.btf");
    fs::write(&target, "old").unwrap();
    let told = Cell::new(0);
    let stop = |progress: tensor_files::Progress| {
        assert!(progress.done > told.get() && progress.total == 40 << 20);
        told.set(progress.done);
        if progress.done > 20 << 20 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = ConvertOptions {
        on_progress: Some(&stop),
        ..ConvertOptions::default()
    };
    let error = convert(&*open(&path), format_of_path(&target).unwrap(), &target, &options).unwrap_err();
    assert_eq!(error.kind(), Io);
    assert!(told.get() > 20 << 20 && told.get() < 40 << 20);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["a.btf", "a.safetensors"]);
}

/// A tensor that does not match its checksum is not copied.
#[test]
fn damaged_tensors_are_not_converted() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[100]);
    let path = write(folder.path(), "a.npz", &[("w", &values)], &Metadata::new());
    let mut bytes = fs::read(&path).unwrap();
    let end = open(&path).entries()[0].range.end as usize;
    bytes[end - 1] ^= 1;
    fs::write(&path, bytes).unwrap();
    let reader = open(&path);
    assert!(!verify(&*reader).unwrap().is_sound());
    let target = folder.path().join("a.safetensors");
    let error = convert(&*reader, format_of_path(&target).unwrap(), &target, &allowing()).unwrap_err();
    assert_eq!((error.kind(), error.tensor()), (Corrupt, Some("w")));
    assert_eq!(names(folder.path()), ["a.npz"]);
}

/// If the target rejects a tensor's name, the error contains the name and the reason.
#[test]
fn a_refused_name_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[2]);
    let tensors = [("good", &values), ("../up", &values)];
    let path = write(folder.path(), "a.safetensors", &tensors, &Metadata::new());
    let target = folder.path().join("a.npz");
    let format = format_of_path(&target).unwrap();
    let error = convert(&*open(&path), format, &target, &ConvertOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("the names of the tensors") && text.contains("../up"),
        "{text}"
    );
    assert!(!text.contains("good"), "{text}");

    // The error is the same for a sharded checkpoint.
    let shards = tensor_files::ShardOptions::at_most(8);
    let sharded = tensor_files::convert_sharded(
        &*open(&path),
        format,
        &target,
        &shards,
        &ConvertOptions::default(),
    );
    let text = sharded.unwrap_err().to_string();
    assert!(text.contains("../up"), "{text}");
}

/// Tensors whose elements become unsigned integers are reported, with the dtype that the target cannot store.
#[test]
fn dtypes_that_become_bits_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (half, single) = (tensor(DType::F16, &[2]), tensor(DType::F32, &[2]));
    let tensors = [("half", &half), ("single", &single)];
    let path = write(folder.path(), "a.safetensors", &tensors, &Metadata::new());
    let format = tensor_files::format("tbuf").unwrap();
    let reader = open(&path);
    let bits = tensor_files::Recast::as_bits(&*reader, format);
    assert_eq!(bits.losses(), [Loss::DType("half".into(), "f16".into())]);
}

/// If a trainer replaces its checkpoint while it is being converted in place, the new checkpoint and its
/// names file are kept.
#[test]
fn a_file_that_took_the_sources_name_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let weights = tensor(DType::F32, &[2, 3]);
    let named = write(
        folder.path(),
        "a.safetensors",
        &[("w", &weights)],
        &Metadata::new(),
    );
    let [path, newer] = ["a.btf", "newer.btf"].map(|name| folder.path().join(name));
    let target = format_of_path(&path).unwrap();
    for path in [&path, &newer] {
        convert(&*open(&named), target, path, &ConvertOptions::default()).unwrap();
    }
    let beside = folder.path().join("a.btf.names.json");
    let names_json = std::fs::read_to_string(&beside).unwrap();
    let reader = open(&path);
    let train = |_: tensor_files::Progress| {
        if newer.exists() {
            std::fs::rename(&newer, &path).unwrap();
        }
        std::ops::ControlFlow::Continue(())
    };
    let options = ConvertOptions {
        sources: tensor_files::SourceFiles::of([&*path]),
        on_progress: Some(&train),
        ..ConvertOptions::default()
    };
    let refused = convert(&*reader, target, &path, &options).unwrap_err();
    assert_eq!(refused.kind(), fmt_core::ErrorKind::Changed, "{refused}");
    assert!(!newer.exists());
    assert_eq!(std::fs::read_to_string(&beside).unwrap(), names_json);
}

/// Writes a file with tied weights: `a`, `b` and `c` share their bytes, and `c` has another shape.
fn tied(folder: &std::path::Path) -> std::path::PathBuf {
    let weights = tensor(DType::F32, &[64, 16]);
    let flat = tensor(DType::F32, &[1024]);
    let mut writer = fmt_tbuf::TbufWriter::new(Vec::new(), Default::default()).unwrap();
    writer.tensor("a", &weights).unwrap();
    writer.alias("b", weights.spec(), "a").unwrap();
    writer.alias("c", flat.spec(), "a").unwrap();
    writer.tensor("d", &flat).unwrap();
    let path = folder.join("tied.tbuf");
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    path
}

#[test]
fn tied_weights_stay_tied() {
    let folder = tempfile::tempdir().unwrap();
    let source = tied(folder.path());
    let options = ConvertOptions {
        allow_loss: tensor_files::AllowedLoss::ALL,
        ..ConvertOptions::default()
    };
    for target in ["b.tbuf", "b.zt"] {
        let target = folder.path().join(target);
        let reader = open(&source);
        let converted = convert(&*reader, format_of_path(&target).unwrap(), &target, &options).unwrap();
        assert_eq!(converted.losses, []);
        assert!(converted.len < 2 * 4096 + 1024, "{} bytes", converted.len);
        let copy = open(&target);
        let ranges: Vec<_> = ["a", "b", "c", "d"]
            .map(|name| copy.entries()[copy.find(name).unwrap()].range.clone())
            .to_vec();
        assert!(ranges[0] == ranges[1] && ranges[0] == ranges[2] && ranges[0] != ranges[3]);
        assert!(diff(&*reader, &*copy, Default::default()).is_empty());
        assert!(verify(&*copy).unwrap().is_sound());
        // Tied weights are also found if the selection is in a different order than the file, and lacks the
        // first of the tied tensors.
        let mut chosen = tensor_files::Composite::new("", reader);
        chosen.retain(|entry| entry.name != "a");
        let cast = tensor_files::Recast::to_float(&chosen, DType::F64, |_| false).unwrap();
        let converted = convert(&cast, format_of_path(&target).unwrap(), &target, &options).unwrap();
        assert!(converted.len < 2 * 8192 + 1024, "{} bytes", converted.len);
        assert!(diff(&cast, &*open(&target), Default::default()).is_empty());
    }
    // A format that cannot share bytes writes them once for each name, which is reported as a loss.
    let target = folder.path().join("b.safetensors");
    let reader = open(&source);
    let converted = convert(
        &*reader,
        format_of_path(&target).unwrap(),
        &target,
        &ConvertOptions::default(),
    )
    .unwrap();
    let sharing = |name: &str| Loss::Sharing(name.to_owned(), "a".to_owned(), 4096);
    // Losses are in the order of the source's index, which is sorted by hashes of names.
    assert_eq!(converted.losses, [sharing("c"), sharing("b")]);
    assert!(diff(&*reader, &*open(&target), Default::default()).is_empty());
}

/// Tensors at the same offset of two files are not tied.
#[test]
fn tensors_of_two_files_are_not_tied() {
    let folder = tempfile::tempdir().unwrap();
    let first = tied(folder.path());
    let zeros =
        tensor_core::Tensor::from_vec(tensor_core::Shape::new(&[64, 16]).unwrap(), vec![0f32; 1024]).unwrap();
    let second = write(folder.path(), "zeros.tbuf", &[("z", &zeros)], &Metadata::new());
    let range = |path, name| {
        let reader = open(path);
        reader.entries()[reader.find(name).unwrap()].range.clone()
    };
    assert_eq!(range(&first, "a"), range(&second, "z"));
    let mut both = tensor_files::Composite::new("first", open(&first));
    both.add("second", open(&second)).unwrap();
    let target = folder.path().join("both.zt");
    let converted = convert(
        &both,
        format_of_path(&target).unwrap(),
        &target,
        &ConvertOptions::default(),
    )
    .unwrap();
    assert!(converted.len > 3 * 4096 && converted.len < 4 * 4096);
    let copy = open(&target);
    assert_eq!(copy.tensor(copy.find("z").unwrap()).unwrap(), zeros);
    assert!(diff(&both, &*copy, Default::default()).is_empty());
}

/// Counts the tensors in all plans passed to a format.
struct CountingFormat(&'static dyn Format, AtomicUsize);

impl Format for CountingFormat {
    fn id(&self) -> &'static str {
        self.0.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        self.0.extensions()
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        self.0.sniff(head, len)
    }

    fn open(
        &self,
        source: Arc<dyn ByteSource>,
        options: &ReadOptions,
    ) -> Result<Box<dyn TensorReader>, Error> {
        self.0.open(source, options)
    }

    fn create<'w>(
        &self,
        out: Box<dyn Write + Send + 'w>,
        plan: Plan,
    ) -> Result<Box<dyn TensorWriter + 'w>, Error> {
        self.1.fetch_add(plan.entries.len(), Ordering::Relaxed);
        self.0.create(out, plan)
    }
}

/// Planning takes time proportional to the number of tensors plus the number of keys, not to their product.
#[test]
fn planning_takes_the_sum_of_tensors_and_keys() {
    const COUNT: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let one = tensor(DType::U8, &[1]);
    let names: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
    let tensors: Vec<_> = names.iter().map(|name| (&**name, &one)).collect();
    let metadata: Metadata = names.iter().map(|name| (name.clone(), String::new())).collect();
    let path = write(folder.path(), "a.safetensors", &tensors, &metadata);
    let reader = open(&path);
    for target in writable() {
        let counted = CountingFormat(target, AtomicUsize::new(0));
        let lost = losses(&*reader, &counted, &ConvertOptions::default());
        let offered = counted.1.into_inner();
        assert!(offered <= 5 * (COUNT + COUNT), "{}: {offered}", target.id());
        let kept = match target.id() {
            // The plan is rejected for its tensors before the metadata is checked.
            "safetensors" | "npy" => COUNT,
            _ => 0,
        };
        let keys = lost
            .iter()
            .filter(|loss| matches!(loss, Loss::Metadata(_)))
            .count();
        assert_eq!(COUNT - keys, kept, "{}", target.id());
    }
}

/// A composite of a whole file does not store its tensors a second time.
#[test]
fn a_file_as_a_composite_takes_little_more_memory() {
    const COUNT: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let one = tensor(DType::U8, &[1]);
    let names: Vec<String> = (0..COUNT)
        .map(|number| format!("model.layers.{number}.weight"))
        .collect();
    let tensors: Vec<_> = names.iter().map(|name| (&**name, &one)).collect();
    let path = write(folder.path(), "a.safetensors", &tensors, &Metadata::new());
    let reader = open(&path);
    let mut composite = None;
    let allocated = allocation_counter::measure(|| composite = Some(Composite::new("a", reader)));
    assert!(allocated.bytes_max < 24 * COUNT as u64, "{}", allocated.bytes_max);
    let mut composite = composite.unwrap();
    assert_eq!(composite.find(&names[COUNT - 1]), Some(COUNT - 1));
    composite.retain(|entry| entry.name == names[7]);
    assert_eq!(
        (composite.find(&names[7]), composite.find(&names[8])),
        (Some(0), None)
    );
}

/// For DeepSeek's blocks and compressed-tensors' rows, each element is multiplied by its scale, and the
/// scales are left out, so that they cannot be applied twice.
#[test]
fn floats_of_eight_bits_are_multiplied_by_their_scales() {
    let folder = tempfile::tempdir().unwrap();
    // The matrices repeat five values of the dtype, and have two rows and three columns of blocks.
    let (rows, columns) = (130usize, 300usize);
    let bits: Vec<u8> = (0..rows * columns)
        .map(|at| [0x38, 0x40, 0xb8, 0x01, 0x7e][at % 5])
        .collect();
    let values = [1.0f32, 2.0, -1.0, 2f32.powi(-9), 448.0];
    let blocks: Vec<f32> = (0..6).map(|block| 0.3 + block as f32).collect();
    let per_row: Vec<f32> = (0..rows).map(|row| 1.0 / (row + 1) as f32).collect();
    let parts: [(&str, &str, String, Vec<u8>); 5] = [
        ("a.weight", "F8_E4M3", format!("[{rows},{columns}]"), bits.clone()),
        (
            "a.weight_scale_inv",
            "F32",
            "[2,3]".into(),
            blocks.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ),
        ("b.weight", "F8_E4M3", format!("[{rows},{columns}]"), bits.clone()),
        (
            "b.weight_scale",
            "F32",
            format!("[{rows},1]"),
            per_row.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ),
        ("c.weight", "F8_E4M3", "[2]".into(), vec![0x38; 2]),
    ];
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in &parts {
        let end = data.len() + bytes.len();
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{},{end}]}}"#,
            data.len()
        ));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    let path = folder.path().join("a.safetensors");
    fs::write(
        &path,
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat(),
    )
    .unwrap();
    let reader = open(&path);
    let is_c = |index: usize| reader.entries()[index].name == "c.weight";
    let recast = Recast::to_float(&*reader, DType::F32, is_c).unwrap();
    let names: Vec<&str> = recast.entries().iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["a.weight", "b.weight", "c.weight"]);
    assert_eq!(recast.find("b.weight"), Some(1));
    assert_eq!(recast.find("b.weight_scale"), None);
    let found = |index: usize| recast.tensor(index).unwrap().to_vec::<f32>().unwrap();
    let (a, b) = (found(0), found(1));
    for at in 0..rows * columns {
        let (row, column) = (at / columns, at % columns);
        assert_eq!(
            a[at],
            values[at % 5] * blocks[row / 128 * 3 + column / 128],
            "{at}"
        );
        assert_eq!(b[at], values[at % 5] * per_row[row], "{at}");
    }
    // Without the scales the numbers would be wrong, so the conversion is refused.
    let refused = Recast::to_float(&*reader, DType::F32, |_| false).err().unwrap();
    assert!(
        refused
            .to_string()
            .contains("'c.weight_scale_inv' or 'c.weight_scale'"),
        "{refused}"
    );
}
