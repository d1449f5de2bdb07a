//! Dequantised blocks compared with the Python package `gguf` 0.19.

use fmt_core::{BytesStream, ErrorKind, OpaqueDType, TensorStream};
use fmt_gguf::Dequantizer;
use tensor_core::{DType, bf16, f16};

/// Each type with the digest of its decoded blocks; `tests/python/dequantised.py` prints this table.
const EXPECTED: [(&str, u64); 24] = [
    ("Q4_0", 0xe2a4cff3c5628a74),
    ("Q4_1", 0x73aa2dd8bcdadebe),
    ("Q5_0", 0xc702841a07197351),
    ("Q5_1", 0x057fc03a35e7fd32),
    ("Q8_0", 0xacef784e38c7f1c3),
    ("Q2_K", 0x2e6b4fc51284127e),
    ("Q3_K", 0xda9c1cffc58dacd3),
    ("Q4_K", 0x6b89bab208691faf),
    ("Q5_K", 0xb9968cf86af2f8a8),
    ("Q6_K", 0x07b82f240bad6003),
    ("Q8_K", 0xb8e4b9efe25c6f24),
    ("IQ2_XXS", 0x86c2d6f55ca048ef),
    ("IQ2_XS", 0x2619e843eb776ebf),
    ("IQ3_XXS", 0x20ce248d7be0ae61),
    ("IQ1_S", 0x9144366a11f921a2),
    ("IQ4_NL", 0xd5b5d52842cddd5f),
    ("IQ3_S", 0x79cfcfbcba32830a),
    ("IQ2_S", 0x48782ff20742993b),
    ("IQ4_XS", 0xef50a9d6790fa227),
    ("IQ1_M", 0x72274260b364a818),
    ("TQ1_0", 0x5156d51f64527895),
    ("TQ2_0", 0xb2cd2541689a23f7),
    ("MXFP4", 0xe530fe44a0ce86ce),
    ("NVFP4", 0xac97d974b511de2b),
];

/// Returns bytes of a linear congruential generator, the same as the script's.
fn generated(count: usize) -> Vec<u8> {
    let mut state = 42u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

fn digest(floats: &[f32]) -> u64 {
    let bits = floats.iter().map(|float| {
        if float.is_nan() {
            0x7fc0_0000
        } else {
            float.to_bits()
        }
    });
    bits.flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

fn dequantizer(name: &str) -> (Dequantizer, OpaqueDType) {
    let dtype = Dequantizer::dtypes().find(|dtype| dtype.name() == name).unwrap();
    (Dequantizer::of(&dtype).unwrap(), dtype)
}

fn floats_of(name: &str, blocks: usize) -> (Vec<u8>, Vec<f32>) {
    let (dequantizer, dtype) = dequantizer(name);
    let bytes = generated(blocks * dtype.block_bytes() as usize);
    let mut floats = vec![0.0; blocks * dtype.block_elements() as usize];
    dequantizer.blocks(&bytes, &mut floats).unwrap();
    (bytes, floats)
}

#[test]
fn every_type_comes_to_what_the_reference_makes_of_it() {
    assert_eq!(Dequantizer::dtypes().count(), EXPECTED.len());
    let wrong: Vec<_> = EXPECTED
        .iter()
        .filter(|(name, expected)| digest(&floats_of(name, 64).1) != *expected)
        .collect();
    assert!(wrong.is_empty(), "{wrong:x?}");
}

/// Reads a stream to its end in pieces of `piece` bytes.
fn drained(mut stream: Box<dyn TensorStream + '_>, piece: usize) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; piece]);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return all,
            len => all.extend(&buffer[..len]),
        }
    }
}

#[test]
fn streams_are_the_same_in_pieces_of_any_size() {
    // The stream is larger than one read.
    for name in ["Q8_0", "Q4_K", "Q6_K", "MXFP4"] {
        let (bytes, floats) = floats_of(name, 4000);
        let stream = |dtype| {
            let blocks = Box::new(BytesStream::new(bytes.clone().into()));
            dequantizer(name).0.stream(blocks, dtype).unwrap()
        };
        let as_f32: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        for piece in [16, 48, 4096, 1 << 20, 1 << 24] {
            assert!(drained(stream(DType::F32), piece) == as_f32, "{name} by {piece}");
        }
        let as_f16: Vec<u8> = floats
            .iter()
            .flat_map(|float| f16::from_f32(*float).to_le_bytes())
            .collect();
        assert!(drained(stream(DType::F16), 4096) == as_f16, "{name}");
        let as_bf16: Vec<u8> = floats
            .iter()
            .flat_map(|float| bf16::from_f32(*float).to_le_bytes())
            .collect();
        assert!(drained(stream(DType::BF16), 4096) == as_bf16, "{name}");
        let as_f64: Vec<u8> = floats
            .iter()
            .flat_map(|float| f64::from(*float).to_le_bytes())
            .collect();
        assert!(drained(stream(DType::F64), 4096) == as_f64, "{name}");
    }
}

#[test]
fn what_cannot_be_undone_is_refused() {
    assert!(Dequantizer::of(&OpaqueDType::new("Q8_1", 32, 36)).is_none());
    // The block size must match too.
    assert!(Dequantizer::of(&OpaqueDType::new("Q8_0", 32, 33)).is_none());
    assert!(Dequantizer::of(&OpaqueDType::new("F8_E4M3", 1, 1)).is_none());
    let (dequantizer, _) = dequantizer("Q8_0");
    let mut floats = [0.0; 32];
    for len in [0, 33, 35, 68] {
        let error = dequantizer.blocks(&vec![0; len], &mut floats).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SizeMismatch);
    }
    let stream = |len, dtype| {
        let bytes = BytesStream::new(vec![0; len].into());
        dequantizer.stream(Box::new(bytes), dtype)
    };
    assert_eq!(
        stream(34, DType::I8).err().map(|error| error.kind()),
        Some(ErrorKind::Unsupported)
    );
    let cut = stream(33, DType::F32).unwrap().read(&mut [0; 256]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Truncated);
}
