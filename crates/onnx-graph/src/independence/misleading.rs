//! Tests of graphs whose rows look independent but are not, grouped by the misleading operator or arithmetic.

use super::tests::Text;
use crate::proto::{FunctionProto, OperatorSetIdProto};

/// Reads the row count of `x`: `n` as a scalar, `n1` as a vector; `sx` is the shape.
const SHAPE: &str = "x: [n, 4]
    zero = 0
    one = 1
    m1 = {-1}
    zero1 = {0}
    one1 = {1}
    sx = Shape(x)
    n = Gather(sx, zero)
    n1 = Slice(sx, zero1, one1)
    ";

/// Reshapes `x` to `hi` rows, which mixes rows unless `hi` is the row count.
const TAIL: &str = "
    t = Concat(hi, m1) axis=0
    r = Reshape(x, t)
    s = Softmax(r) axis=1
    y = Reshape(s, sx)
    -> y";

/// Computes the index of each row: `r` is `arange(n)`, and `rr` is `r` as a column.
const NUMBERED: &str = "
    r = Range(zero, n, one)
    rf = Cast(r) to=1
    rr = Unsqueeze(rf, one1)
    ";

fn refused(text: &str) {
    let found = Text::parse(text).shared();
    assert!(found.is_err(), "{text}");
}

/// Checks that rows stay independent if the graph reshapes to the real row count.
#[test]
fn the_right_number_of_rows_is_proven() {
    for way in [
        "hi = Identity(n1)",
        "hi = Cast(n1) to=7",
        "i = Cast(n1) to=6
         hi = Cast(i) to=7",
    ] {
        let text = format!("{SHAPE}{way}{TAIL}");
        assert_eq!(Text::parse(&text).shared(), Ok(vec![]), "{text}");
    }
}

#[test]
fn numbers_with_a_fraction_are_no_sizes() {
    for way in [
        // Multiplies the row count by an FP32 constant, and by an FP32 input.
        "half = Constant() value_float=0.5
         f = Cast(n1) to=1
         hf = Mul(f, half)
         hi = Cast(hf) to=7",
        "half: []
         f = Cast(n1) to=1
         hf = Mul(f, half)
         hi = Cast(hf) to=7",
        // Multiplies and divides in FP32, which rounds in between.
        "c = <1>
         f = Cast(n1) to=1
         p = Mul(f, c)
         q = Div(p, c)
         hi = Cast(q) to=7",
    ] {
        refused(&format!("{SHAPE}{way}{TAIL}"));
    }
}

#[test]
fn types_that_do_not_hold_the_number_change_it() {
    // ONNX's type codes of BOOL, UINT8, INT8 and FP16.
    for to in [9, 2, 3, 10] {
        refused(&format!("{SHAPE}b = Cast(n1) to={to}\nhi = Cast(b) to=7{TAIL}"));
    }
    // The product does not fit into 64 bits.
    refused(&format!(
        "{SHAPE}far = {{4611686018427387904}}\np = Mul(n1, far)\nhi = Div(p, far){TAIL}"
    ));
    // Casts row indices to BOOL and back. All indices but the first become 1, so rows mix.
    refused(&format!(
        "{SHAPE}{NUMBERED}b = Cast(r) to=9\ni = Cast(b) to=7\nu = Unsqueeze(i, one1)\ny = GatherND(x, u)\n-> y"
    ));
}

#[test]
fn bounds_are_not_broadcast() {
    refused(
        "x: [n, 4]
        m: [n, 1]
        y = Clip(x, m)
        -> y",
    );
    refused(
        "x: [n, 4]
        s: [1, 4]
        g = <4>
        q = ms.SkipLayerNormalization(s, x, g, g)
        y = Add(q, x)
        -> y",
    );
    refused(
        "x: [n, 4]
        w = <1, 4>
        y = PRelu(w, x)
        -> y",
    );
}

#[test]
fn sizes_and_scales_of_images_may_depend_on_the_rows() {
    let image = SHAPE.replace("[n, 4]", "[n, 1, 4]");
    refused(&format!(
        "{image}two = {{2}}
        nothing = <0>
        sz = Concat(n1, one1, n1) axis=0
        big = Resize(x, nothing, nothing, sz) mode=nearest
        y = ReduceSum(big, two) keepdims=0
        -> y"
    ));
    refused(&format!(
        "{image}two = {{2}}
        f = Cast(n1) to=1
        one_f = Constant() value_float=1.0
        o = Reshape(one_f, one1)
        sc = Concat(o, o, f) axis=0
        nothing = <0>
        big = Resize(x, nothing, sc) mode=nearest
        y = ReduceSum(big, two) keepdims=0
        -> y"
    ));
    refused(&format!(
        "{SHAPE}z2 = {{0, 0, 0}}
        p = Concat(z2, n1) axis=0
        long = Pad(x, p)
        y = ReduceSum(long, one1) keepdims=1
        -> y"
    ));
}

#[test]
fn the_index_of_a_row_stays_one() {
    refused(&format!(
        "{SHAPE}{NUMBERED}d = Add(x, rr)
        q = SplitToSequence(d, one) axis=1
        y = ConcatFromSequence(q) axis=1
        -> y"
    ));
    refused(&format!(
        "{SHAPE}{NUMBERED}i: [n, 1]
        d = Add(x, rr)
        y = GatherND(d, i) batch_dims=1
        -> y"
    ));
    // Gathers by tuples of one index, and by tuples that contain the same index twice.
    refused(&format!(
        "{SHAPE}r = Range(zero, n, one)
        u = Unsqueeze(r, one1)
        e: [n, 0]
        t = Concat(u, e) axis=1
        two = {{2}}
        w = Concat(n1, two) axis=0
        tt = Expand(t, w)
        y = GatherND(x, tt)
        -> y"
    ));
}

#[test]
fn settings_as_long_as_the_batch_are_settings_of_rows() {
    refused(
        "x: [n, 4]
        s = <2, 2>
        y = DequantizeLinear(x, s) axis=1 block_size=2
        -> y",
    );
    refused(
        "x: [n, 3, 4]
        b = <4, 4>
        s = <1>
        z = <2, 1>
        y = ms.MatMulIntegerToFloat(x, b, s, s, z)
        -> y",
    );
    refused(
        "x: [n, 2, 4, 8]
        c = <2, 4, 4>
        y = RotaryEmbedding(x, c, c)
        -> y",
    );
}

#[test]
fn parts_of_a_sequence_may_lack_their_axis() {
    refused(
        "x: [n, 4]
        one = 1
        q = SplitToSequence(x, one) axis=1 keepdims=0
        y = ConcatFromSequence(q) axis=1 new_axis=1
        -> y",
    );
}

#[test]
fn columns_are_as_many_as_the_operator_gives() {
    for node in [
        "v = ai.onnx.ml.FeatureVectorizer(x)",
        "l v = ai.onnx.ml.SVMClassifier(x) classlabels_ints=0,1,2,3",
    ] {
        let text = format!(
            "x: [n, 4]
            {node}
            pairs = {{-1, 4}}
            r = Reshape(v, pairs)
            s = Softmax(r) axis=1
            y = Reshape(s, pairs)
            -> y"
        );
        refused(&text);
    }
}

#[test]
fn functions_with_names_of_operators_are_not_followed() {
    let mut text = Text::parse(
        "x: [n, 4]
        y = Relu(x)
        -> y",
    );
    assert!(text.shared().is_ok());
    text.model.functions.push(FunctionProto {
        name: "CumSum".to_owned(),
        opset_import: vec![OperatorSetIdProto::default()],
        ..FunctionProto::default()
    });
    assert_eq!(
        text.shared(),
        Err("the file's function 'CumSum' is in the domain of operators".to_owned())
    );
}

#[test]
fn nodes_of_another_operator_set_are_not_followed() {
    let softmax = "x: [a, n, 4]\ny = Softmax(x)\n-> y".replace("[a, n", "[n, a");
    let mut text = Text::parse(&softmax);
    assert!(text.shared().is_ok());
    let graph = text.model.graph.as_mut().unwrap();
    crate::operators::set_own_opset(&mut graph.node[0], 12);
    assert!(text.shared().is_err());
}

/// A value that claims more elements than it has does not cause a panic, and the time and memory spent do not
/// grow with the claimed number.
#[test]
fn dimensions_without_elements_are_no_lists() {
    for text in [
        "x: [n, 4]
        c = {1, 2, 3, 4, 5, 6}
        t = {1099511627776, 0}
        r = Reshape(c, t) allowzero=1
        a = {0}
        b = {1}
        s = Slice(r, a, b, b)
        y = Relu(x)
        -> y s",
        "x: [n, 4]
        c = {1}
        t = {68719476736}
        r = Reshape(c, t)
        s = Add(r, r)
        y = Relu(x)
        -> y s",
        "x: [n, 4]
        c = {1, 2, 3, 4, 5, 6}
        t = {4, 0}
        r = Reshape(c, t) allowzero=1
        s = Transpose(r)
        y = Relu(x)
        -> y s",
        "x: [n, 0]
        a = {-1}
        b = {-9}
        k = {1}
        y = Slice(x, a, b, k, a)
        -> y y",
        "x: [n, 4]
        w = 1
        y = Conv(x, w)
        -> y y",
    ] {
        let _ = Text::parse(text).shared();
    }
}

#[test]
fn a_size_of_0_stands_for_another_dimension() {
    // `c1` is the number of nonzero elements of `zz`, which is 0: `Reshape` then copies a dimension of the
    // input.
    refused(&format!(
        "{SHAPE}zz = {{0, 0, 0}}
        two1 = {{2}}
        v = NonZero(zz)
        vs = Shape(v)
        c1 = Slice(vs, one1, two1)
        p = Mul(n1, c1)
        t = Concat(one1, p, m1) axis=0
        r = Reshape(x, t)
        s = Softmax(r) axis=2
        y = Reshape(s, sx)
        -> y"
    ));
    // The target contains a dimension of an input, which is never 0 in batched requests.
    let text = "x: [n, s, 4]
        k: [n, s]
        ks = Shape(k)
        four = {4}
        t = Concat(ks, four) axis=0
        y = Reshape(x, t)
        -> y";
    assert_eq!(Text::parse(text).shared(), Ok(vec![]));
}

#[test]
fn products_of_dimensions_may_wrap_around() {
    let text = SHAPE.replace("[n, 4]", "[n, s]");
    refused(&format!(
        "{text}two1 = {{2}}
        d = Slice(sx, one1, two1)
        ni = Cast(n1) to=6
        di = Cast(d) to=6
        a = Mul(ni, di)
        b = Mul(a, di)
        c = Mul(b, di)
        e = Mul(di, di)
        f = Mul(e, di)
        g = Div(c, f)
        hi = Cast(g) to=7{TAIL}"
    ));
}

#[test]
fn dimensions_of_one_are_broadcast_in_sums_of_products() {
    refused(&format!(
        "{SHAPE}k: [s]
        e = Einsum(k, x) equation=a,na->na
        es = Shape(e)
        two1 = {{2}}
        e1 = Slice(es, one1, two1)
        ks = Shape(k)
        p = Mul(n1, ks)
        hi = Div(p, e1){TAIL}"
    ));
}

#[test]
fn columns_of_a_bias_are_columns_of_the_result() {
    refused(
        "x: [n, 4]
        a = <3, 4>
        s = <1>
        z = <1>
        b = <2>
        t = Transpose(x)
        g = ms.MatMulIntegerToFloat(a, t, s, s, z, z, b)
        y = Transpose(g)
        -> y",
    );
    refused(
        "x: [n, 3, 4]
        s = <2, 1, 4>
        y = LayerNormalization(x, s)
        -> y",
    );
}

#[test]
fn classes_are_not_always_columns() {
    refused(&format!(
        "{SHAPE}four = {{4}}
        two1 = {{2}}
        l v = ai.onnx.ml.LinearClassifier(x) classlabels_ints=0,1,2,3
        vs = Shape(v)
        e1 = Slice(vs, one1, two1)
        p = Mul(n1, e1)
        hi = Div(p, four){TAIL}"
    ));
}

/// Returns a graph in which `hi` is the row count if the dimension `axis` of `v` is `length`, otherwise 1.
fn measured(values: &str, axis: i64, length: i64) -> String {
    format!(
        "{SHAPE}{values}
        sv = Shape(v)
        axis = {axis}
        length = {length}
        e = Gather(sv, axis)
        is_it = Equal(e, length)
        hi = Where(is_it, n1, one1){TAIL}"
    )
}

/// Refuses graphs with inputs or attributes for which runtimes compute other dimensions than the operator
/// suggests.
#[test]
fn dimensions_that_operators_seem_to_give() {
    for (values, axis, seeming) in [
        (
            "k = {0, 1, 2, 3}
            far = {9223372036854775807}
            v = Slice(k, m1, far, zero1, m1)",
            0,
            0,
        ),
        (
            "k = <1, 1, 4>
            w = <1, 1, 1>
            v = ConvTranspose(k, w) strides=2 auto_pad=SAME_UPPER",
            2,
            8,
        ),
        (
            "k = <1, 1, 8>
            v = MaxPool(k) kernel_shape=3 dilations=2 auto_pad=SAME_UPPER",
            2,
            8,
        ),
        (
            "k = 1
            v = NonZero(k)",
            0,
            0,
        ),
        (
            "k = <4>
            v = ai.onnx.ml.LinearRegressor(k)",
            0,
            4,
        ),
        (
            "k = <1, 2, 4>
            g = <4>
            y0 v = ms.SkipLayerNormalization(k, k, g)",
            2,
            4,
        ),
    ] {
        refused(&measured(values, axis, seeming));
    }
    // The proof succeeds for the same graph with the correct dimension.
    let conv = "k = <1, 1, 4>
        w = <1, 1, 3>
        v = ConvTranspose(k, w) strides=2 auto_pad=SAME_UPPER";
    assert_eq!(Text::parse(&measured(conv, 2, 8)).shared(), Ok(vec![]));
}

#[test]
fn a_pool_may_have_no_place() {
    let text = format!(
        "{SHAPE}u: [1, 1, s]
        v = MaxPool(u) kernel_shape=2
        sv = Shape(v)
        two = {{2}}
        three = {{3}}
        e = Slice(sv, two, three)
        p = Mul(n1, e)
        t = Concat(one1, p, m1) axis=0
        r = Reshape(x, t)
        s = Softmax(r) axis=2
        y = Reshape(s, sx)
        -> y"
    );
    refused(&text);
}

#[test]
fn values_without_rows_have_sizes_of_0_and_others_too() {
    refused(&format!(
        "{SHAPE}u: [1, s]
        w: [1, t]
        su = Shape(u) start=1
        sw = Shape(w) start=1
        d = Sub(su, sw)
        c = {{1, 2}}
        r2 = Reshape(c, d)
        rs = Shape(r2)
        dd = Mul(d, d)
        p = Mul(n1, dd)
        q = Mul(rs, rs)
        hi = Div(p, q){TAIL}"
    ));
}

#[test]
fn a_mask_holds_other_numbers_than_what_it_masks() {
    refused(&format!(
        "{SHAPE}two = {{2}}
        k = Cast(two) to=1
        d m = Dropout(k)
        e = Cast(m) to=7
        is_it = Equal(e, two)
        hi = Where(is_it, n1, one1){TAIL}"
    ));
}

/// Refuses graphs that compute row counts as products that overflow 32 or 64 bits, or as sums that hide the
/// magnitude of their terms.
#[test]
fn arithmetic_wraps_around_in_the_type_that_it_is_done_in() {
    let narrow = |product: &str| {
        format!(
            "{SHAPE}u: [s]
            su = Shape(u)
            b = Cast(su) to=6
            i = Cast(n1) to=6
            wide = {{32768}}
            k = Cast(wide) to=6
            {product}
            p = Mul(i, q)
            d = Div(p, q)
            hi = Cast(d) to=7{TAIL}"
        )
    };
    assert_eq!(
        Text::parse(&narrow("q = Identity(b)")).shared(),
        Ok(vec!["u".to_owned()])
    );
    refused(&narrow("q = Mul(b, k)"));
    refused(&narrow(
        "bb = Mul(b, b)
        q = Mul(bb, k)",
    ));
    let wide = |product: &str| {
        format!(
            "{SHAPE}u: [s]
            b = Shape(u)
            k = {{32768}}
            {product}
            p = Mul(n1, q)
            hi = Div(p, q){TAIL}"
        )
    };
    assert_eq!(
        Text::parse(&wide("q = Mul(b, k)")).shared(),
        Ok(vec!["u".to_owned()])
    );
    refused(&wide(
        "bb = Mul(b, b)
        bbb = Mul(bb, b)
        q = Mul(bbb, k)",
    ));
    refused(&wide(
        "c = Add(b, one1)
        cc = Mul(c, c)
        ccc = Mul(cc, c)
        more = Add(ccc, one1)
        m = Sub(more, one1)
        mm = Mul(m, m)
        q = Mul(mm, k)",
    ));
    // A number that is read from a request has no upper bound.
    refused(&wide(
        "f = Gather(b, zero)
        j: []
        q = Cast(j) to=7",
    ));
}

#[test]
fn a_name_stands_for_one_value() {
    let text = "x: [n, 4]
        y = Relu(x)
        y = CumSum(x, zero)
        zero = 0
        -> y";
    refused(text);
}
