//! The files of the corpus that readers accept.

use fmt_btf::{BtfWriter, CooCode, WriteOptions};
use fmt_core::testing::CorpusCases;
use tensor_core::{DType, Shape, Tensor};

use crate::support::{
    F32, F64, ForgedRecord, I8, at_offsets, counting, cut, file, sparse, words, written, written_sparse,
};

pub(super) fn accepted_dense(cases: &mut CorpusCases) {
    let dtypes = [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F32,
        DType::F64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];
    for (code, dtype) in dtypes.into_iter().enumerate() {
        let name = dtype.name();
        cases.accept(&format!("bt-11-scalar-{name}"), written(&[&counting(dtype, &[])]));
        let vector = written(&[&counting(dtype, &[3])]);
        assert_eq!(usize::from(vector[24]), code);
        cases.accept(&format!("bt-12-dtype-{name}"), vector);
    }
    for dtype in [10, 127, 255] {
        let record = ForgedRecord::dense(dtype, &[2], 4);
        cases.accept(&format!("bt-12-dtype-{dtype}-is-listed"), record.file());
    }
    for layout in [3, 255] {
        let record = ForgedRecord::new(I8, layout, &[2], &[1, 2]);
        cases.accept(&format!("bt-13-layout-{layout}-is-listed"), record.file());
    }
    let mixed = [
        ForgedRecord::new(200, 0, &[2, 2], &[9; 64]),
        ForgedRecord::plain(),
        ForgedRecord::new(F32, 9, &[], &[9; 8]),
    ];
    cases.accept("bt-12-one-that-can-be-read-amid-others", file(&mixed));
    cases.accept("b8-no-tensors", words(&[0]));
    cases.accept("b9-no-elements", written(&[&counting(DType::F32, &[0])]));
    for (name, dims) in [
        ("0-and-2-to-the-63-twice", [0, 1 << 63, 1 << 63]),
        ("2-to-the-63-twice-and-0", [1 << 63, 1 << 63, 0]),
        ("all-ones-around-0", [u64::MAX, 0, u64::MAX]),
    ] {
        cases.accept(
            &format!("bt-16-dims-{name}"),
            ForgedRecord::new(F64, 0, &dims, &[]).file(),
        );
    }
    cases.accept("bt-10-rank-32", ForgedRecord::dense(I8, &[1; 32], 1).file());
    let three = [
        counting(DType::I32, &[2, 2]),
        counting(DType::U8, &[5]),
        counting(DType::F64, &[0, 7]),
    ];
    cases.accept(
        "b4-written-by-this-crate",
        written(&[&three[0], &three[1], &three[2]]),
    );
}

pub(super) fn accepted_places(cases: &mut CorpusCases) {
    for missing in 1..8 {
        let record = ForgedRecord::dense(I8, &[8 - missing], (8 - missing) as u8);
        let name = format!("bt-18-{missing}-bytes-of-padding-omitted");
        cases.accept(&name, cut(record.file(), missing as usize));
    }
    let dense = |len: u8| ForgedRecord::dense(I8, &[u64::from(len)], len);
    let odd = |padding: &[u8]| {
        let mut first = dense(5);
        first.padding = Some(padding.to_vec());
        file(&[first, dense(8)])
    };
    cases.accept("bt-19-padding-of-ff", odd(&[0xff; 3]));
    cases.accept("bt-19-one-bit-of-padding", odd(&[0, 0, 1]));
    cases.accept("bt-19-eleven-bytes-of-padding", odd(&[0; 11]));
    cases.accept(
        "bt-19-a-hole-with-something-in-it",
        odd(b"\0\0\0PK\x03\x04 \0\0\0"),
    );
    let behind = |bytes: &[u8]| [ForgedRecord::plain().file(), bytes.to_vec()].concat();
    cases.accept("bt-20-a-byte-behind", behind(&[0]));
    cases.accept("bt-20-a-line-break-behind", behind(b"\n"));
    cases.accept("bt-20-1-kib-behind", behind(&[0xaa; 1024]));
    cases.accept(
        "bt-20-a-table-entry-of-nothing",
        [words(&[0]), words(&[16])].concat(),
    );

    let two = [dense(8).bytes(), ForgedRecord::plain().bytes()].concat();
    cases.accept("bt-09-offsets-descending", at_offsets(&[56, 24], &two));
    let three = [two.clone(), dense(3).bytes()].concat();
    cases.accept("bt-09-offsets-in-no-order", at_offsets(&[64, 112, 32], &three));
    cases.accept("bt-08-one-record-twice", at_offsets(&[24, 24], &dense(8).bytes()));
    cases.accept("bt-08-one-record-of-many", at_offsets(&[64, 32, 64], &two));
    let hole = [words(&[7, 7, 7]), dense(8).bytes()].concat();
    cases.accept("b4-a-hole-before-the-first", at_offsets(&[40], &hole));
    let empty = ForgedRecord::new(F32, 0, &[0], &[]);
    cases.accept("b9-many-without-elements", file(&vec![empty; 5]));
}

/// Returns the file that docs/formats/btf.md shows byte by byte.
pub(crate) fn described() -> Vec<u8> {
    let dense = Tensor::from_vec(Shape::vector(3), vec![1i16, -2, 300]).unwrap();
    let sparse = sparse(&[2, 3], &[1, 2], &[7]);
    let records = vec![(&dense).into(), (&sparse).into()];
    let mut writer = BtfWriter::new(Vec::new(), records, WriteOptions::default()).unwrap();
    writer.tensor(&dense).unwrap();
    writer.sparse(&sparse).unwrap();
    writer.finish().unwrap()
}

pub(super) fn accepted_sparse(cases: &mut CorpusCases) {
    let matrix = sparse(&[3, 4], &[0, 1, 2, 3], &[5, -6]);
    cases.accept("bt-13-layout-2", written_sparse(&matrix, WriteOptions::default()));
    let for_tfrt = WriteOptions {
        coo_code: CooCode::Tfrt,
        ..WriteOptions::default()
    };
    cases.accept("bt-13-layout-1", written_sparse(&matrix, for_tfrt));
    cases.accept(
        "bt-22-not-sorted",
        ForgedRecord::coo(&[3, 4], &[2, 3, 0, 1, 0, 0], &[1, 2, 3]).file(),
    );
    cases.accept(
        "bt-22-the-last-index-of-each-axis",
        ForgedRecord::coo(&[3, 4], &[2, 3], &[1]).file(),
    );
    let mut bomb = ForgedRecord::coo(&[1 << 20, 1 << 20], &[5, 6], &[]);
    bomb.dtype = F64;
    bomb.payload = [words(&[1, 2, 5, 6, 1]), words(&[1.5f64.to_bits()])].concat();
    cases.accept("bt-23-8-tib-when-dense", bomb.file());
    cases.accept("bt-24-no-entries", ForgedRecord::coo(&[3, 4], &[], &[]).file());
    cases.accept(
        "bt-24-no-entries-and-no-elements",
        ForgedRecord::coo(&[0, 4], &[], &[]).file(),
    );
    cases.accept(
        "bt-24-a-scalar-with-its-entry",
        ForgedRecord::coo(&[], &[], &[7]).file(),
    );
    cases.accept(
        "bt-24-a-scalar-without-entries",
        ForgedRecord::coo(&[], &[], &[]).file(),
    );
    cases.accept(
        "bt-24-as-many-entries-as-elements",
        ForgedRecord::coo(&[3], &[0, 1, 2], &[1, 2, 3]).file(),
    );
    cases.accept("b11-a-stored-zero", ForgedRecord::coo(&[3], &[1], &[0]).file());
    let odd = cut(ForgedRecord::coo(&[3], &[1], &[9]).file(), 4);
    cases.accept("bt-18-sparse-and-padding-omitted", odd);
    let mut unknown = ForgedRecord::coo(&[3], &[1], &[9]);
    unknown.dtype = 10;
    cases.accept("bt-12-sparse-with-dtype-10-is-listed", unknown.file());
    let both = [
        ForgedRecord::coo(&[3], &[1], &[9]),
        ForgedRecord::plain(),
        ForgedRecord::coo(&[2, 2], &[1, 1], &[4]),
    ];
    cases.accept("b1-dense-and-sparse", file(&both));
    cases.accept("the-described-one", described());
}
