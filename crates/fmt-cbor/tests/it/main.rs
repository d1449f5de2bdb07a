//! Parses arbitrary bytes as CBOR: no panics, error positions inside the input, and values that survive a
//! round trip.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ciborium::Value;
use fmt_cbor::{CborValue, Fields, Header, Items, push_head};
use proptest::prelude::*;

/// The caller's limit on depth applies. Deep nesting must not exhaust the stack.
#[test]
fn deep_nesting_takes_no_stack() {
    let deep = [vec![0x81; 1 << 20], vec![0]].concat();
    let skipped = |depth| Items::new(&deep, 0).skip(depth, "the value").map(<[u8]>::len);
    let error = skipped(32).unwrap_err();
    assert_eq!(
        (error.byte(), error.broken_rule()),
        (Some(32), Some(fmt_cbor::LIMITS))
    );
    assert_eq!(skipped(u64::MAX).unwrap(), deep.len());
}

#[test]
fn counts_are_checked_before_anything_is_made_room_for() {
    for head in [
        Header::Array(Some(1 << 62)),
        Header::Map(Some(1 << 62)),
        Header::Text(Some(1 << 40)),
    ] {
        let mut bytes = Vec::new();
        push_head(&mut bytes, head);
        let error = Items::new(&bytes, 7).skip(32, "the value").unwrap_err();
        assert_eq!(error.broken_rule(), Some(fmt_cbor::WELL_FORMED), "{error}");
    }
}

#[test]
fn fields_keep_their_order() {
    let fields: Fields = [("b", CborValue::from(1)), ("a", CborValue::from("x"))]
        .into_iter()
        .collect();
    let keys: Vec<_> = fields.iter().map(|(key, _)| key.into_owned()).collect();
    assert_eq!(keys, ["b", "a"]);
    let (without, old) = fields.with("b", None);
    assert_eq!((without.len(), old), (1, Some(CborValue::from(1))));
    assert!(!without.is_empty() && without.with("a", None).0.is_empty());
}

proptest! {
    /// A skipped item is well-formed: it can become a value, be printed, and be encoded again if `ciborium`
    /// can represent it.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut items = Items::new(&bytes, 100);
        match items.skip(32, "the value") {
            Ok(item) => {
                prop_assert_eq!(items.position(), 100 + item.len() as u64);
                let value = CborValue::from_cbor(item).unwrap();
                prop_assert_eq!(value.as_bytes(), item);
                let _ = value.to_string();
                if let Ok(decoded) = Value::try_from(&value) {
                    prop_assert!(CborValue::try_from(&decoded).is_ok());
                }
            }
            Err(error) => {
                let at = error.byte().unwrap();
                prop_assert!((100..=100 + bytes.len() as u64).contains(&at), "{}", error);
                prop_assert!(error.broken_rule().is_some());
            }
        }
    }
}
