//! Tests of dimensions and their arithmetic.

use onnx_tensor::prelude::*;

#[test]
fn numbers_are_computed_exactly() {
    let dim = 7.to_dim();
    assert_eq!(
        [dim + 1, dim - 8, dim * 2usize, dim / 2u64],
        [8, -1, 14, 3].map(Dim::Known)
    );
    let borrowed = &dim;
    assert_eq!([borrowed + dim, dim - borrowed], [14, 0].map(Dim::Known));
    assert_eq!(
        [dim.div_ceil(2), dim.div_ceil(7usize), (-4).to_dim().div_ceil(3)],
        [4, 1, -1].map(Dim::Known)
    );
    assert_eq!([dim.min(3), dim.max(3), dim.min(dim)], [3, 7, 7].map(Dim::Known));
    assert_eq!(
        (dim.to_i64(), dim.to_usize(), (-1).to_dim().to_usize()),
        (Some(7), Some(7), None)
    );
}

#[test]
fn results_that_do_not_fit_are_unknown() {
    let (most, least) = (Dim::Known(i64::MAX), Dim::Known(i64::MIN));
    let unknown = [
        most + 1,
        least - 1,
        most * 2,
        least / -1,
        most / 0,
        most.div_ceil(2),
        most.div_ceil(0),
        most.div_ceil(-2),
        u64::MAX.to_dim(),
        usize::MAX.to_dim(),
    ];
    for dim in unknown {
        assert!(
            !dim.is_known() && dim.to_i64().is_none() && dim.to_usize().is_none(),
            "{dim:?}"
        );
    }
}

#[test]
fn unknown_dimensions_are_equal_only_to_themselves() {
    let (n, m) = (Dim::unknown(), Dim::unknown());
    assert!(n == n && n != m && n != Dim::Known(1));
    assert!(!n.is_zero() && !n.is_one() && Dim::Known(0).is_zero() && Dim::Known(1).is_one());
    for same in [
        n + 0,
        0.to_dim() + n,
        n - 0,
        n * 1,
        1.to_dim() * n,
        n / 1,
        n.div_ceil(1),
        n.min(n),
        n.max(n),
    ] {
        assert_eq!(same, n);
    }
    for zero in [n * Dim::Known(0), 0.to_dim() * n, n - n] {
        assert_eq!(zero, Dim::Known(0));
    }
    for other in [
        n + 1,
        n - m,
        n * m,
        n / n,
        n / 2,
        0.to_dim() / n,
        n.div_ceil(2),
        n.min(1),
        n.max(m),
    ] {
        assert!(!other.is_known() && other != n && other != m, "{other:?}");
    }
    assert_ne!(n + 1, n + 1);
    assert_eq!(
        (n.to_string(), 5.to_dim().to_string()),
        ("?".to_owned(), "5".to_owned())
    );
    assert_ne!(format!("{n:?}"), format!("{m:?}"));
}

#[test]
fn sums_and_products_are_of_dimensions_and_numbers() {
    let dims = [Dim::Known(2), Dim::Known(3)];
    assert_eq!(dims.iter().product::<Dim>(), Dim::Known(6));
    assert_eq!(dims.into_iter().sum::<Dim>(), Dim::Known(5));
    assert_eq!([2usize, 5].iter().product::<Dim>(), Dim::Known(10));
    assert_eq!(std::iter::empty::<Dim>().product::<Dim>(), Dim::Known(1));
    let n = Dim::unknown();
    assert_eq!([n, Dim::Known(1)].iter().product::<Dim>(), n);
    assert_eq!(
        [n, Dim::Known(i64::MAX), Dim::Known(2), Dim::Known(0)]
            .iter()
            .product::<Dim>(),
        Dim::Known(0)
    );
    let shape: ShortVec<Dim> = [2usize, 3].iter().map(ToDim::to_dim).collect();
    assert_eq!(shape[..], dims);
}

#[test]
fn shapes_are_broadcast_from_the_last_axis() {
    let (n, m, one) = (Dim::unknown(), Dim::unknown(), Dim::Known(1));
    let (three, seven) = (Dim::Known(3), Dim::Known(7));
    for (a, b, expected) in [
        (n, n, n),
        (n, one, n),
        (n, seven, seven),
        (three, one, three),
        (three, three, three),
        (one, one, one),
        (Dim::Known(0), one, Dim::Known(0)),
        (n, Dim::Known(0), Dim::Known(0)),
    ] {
        assert_eq!(broadcast(&[&[a], &[b]]).unwrap()[..], [expected], "{a:?} {b:?}");
        assert_eq!(broadcast(&[&[b], &[a]]).unwrap()[..], [expected], "{b:?} {a:?}");
    }
    let joined = broadcast(&[&[n], &[m]]).unwrap()[0];
    assert!(!joined.is_known() && joined != n && joined != m);
    assert_eq!(broadcast(&[&[n], &[m], &[seven]]).unwrap()[..], [seven]);
    assert_eq!(
        broadcast(&[&[seven, n], &[three], &[]]).unwrap()[..],
        [seven, three]
    );
    assert_eq!(broadcast::<Dim>(&[]).unwrap().len(), 0);
    let error = broadcast(&[&[n, three], &[seven]]).unwrap_err().to_string();
    assert!(error.contains("3 and 7 elements along one axis"), "{error}");
}
