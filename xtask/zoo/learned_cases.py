"""Cases for learned.py: nodes of ai.onnx.ml with inputs, invented for every option."""

import collections
import itertools

import numpy as np
from onnx import TensorProto, helper, numpy_helper

POSTS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
NUMBERS = [np.float32, np.float64, np.int64, np.int32]
LABELS = [[0, 1, 2, 3], [7, -3, 0, 5], ["no", "yes", "", "maybe"]]


class Case:
    """A node with its inputs, whose first dimension is free. `choice` is the description of an intended difference in
    docs/onnx.md, and `refused` is a part of the message with which the server refuses these inputs."""

    def __init__(self, name, op, *inputs, outputs=(np.float32,), opset=3, choice=None, refused=None, **attributes):
        self.name, self.op, self.opset, self.choice, self.refused = name, op, opset, choice, refused
        self.inputs = {f"x{at}": np.asarray(value) for at, value in enumerate(inputs)}
        self.outputs = {f"y{at}": np.dtype(kind) for at, kind in enumerate(outputs)}
        self.attributes = {key: value for key, value in attributes.items() if value is not None}

    def model(self):
        node = helper.make_node(self.op, list(self.inputs), list(self.outputs), domain="ai.onnx.ml", **self.attributes)
        rows, count = "rows", len(self.inputs["x0"])
        inputs = [
            helper.make_tensor_value_info(name, element_type(value.dtype), [rows if len(value) == count else len(value), *value.shape[1:]])
            for name, value in self.inputs.items()
        ]
        outputs = [helper.make_tensor_value_info(name, element_type(kind), None) for name, kind in self.outputs.items()]
        graph = helper.make_graph([node], "case", inputs, outputs)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def element_type(kind):
    return TensorProto.STRING if kind == object else helper.np_dtype_to_tensor_dtype(np.dtype(kind))


def texts(values):
    return np.array(values, dtype=object)


def rows_of(random, kind, count, width, missing=False):
    """Returns features on a grid, so that some are equal to a threshold."""
    values = np.round(random.normal(size=(count, width)) * 3) / 2
    if np.dtype(kind).kind != "f":
        return (values * 2).astype(kind)
    values = values.astype(kind)
    if missing:
        values[random.random(values.shape) < 0.2] = np.nan
    return values


def labelled(labels, count, ints="classlabels_ints"):
    labels = labels[:count]
    is_text = isinstance(labels[0], str)
    return {"classlabels_strings" if is_text else ints: labels}, object if is_text else np.int64


def signed(random, sign, *shape):
    """Returns weights with a sign: positive, negative, mixed, or small enough that sums are between 0 and 1."""
    values = np.round(random.random(shape) * 8 + 1) / 16
    return {"+": values, "-": -values, "0": values * (random.random(shape) < 0.5), "+-": values * random.choice([-1, 1], shape)}[sign].astype(np.float32)


def trees(random, count, depth, scores, sign, modes, missing, prefix, width=3, weights="one"):
    """Returns the attributes of a forest. `scores` are the targets or classes that leaves add to."""
    nodes = collections.defaultdict(list)
    leaves = collections.defaultdict(list)
    for tree in range(count):
        inner = 2**depth - 1
        for node in range(2 * inner + 1):
            is_leaf = node >= inner
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(node)
            nodes["featureids"].append(0 if is_leaf else int(random.integers(width)))
            nodes["modes"].append("LEAF" if is_leaf else str(random.choice(modes)))
            nodes["values"].append(0.0 if is_leaf else float(np.round(random.normal() * 2) / 2))
            nodes["truenodeids"].append(0 if is_leaf else 2 * node + 1)
            nodes["falsenodeids"].append(0 if is_leaf else 2 * node + 2)
            nodes["hitrates"].append(1.0)
            nodes["missing_value_tracks_true"].append(0 if is_leaf else int(random.integers(2)) if missing == "some" else int(missing == "yes"))
            if not is_leaf:
                continue
            written = {"one": [random.choice(scores)], "all": scores, "some": [s for s in scores if random.random() < 0.5], "twice": [scores[0], *scores]}[weights]
            for score in written:
                leaves["treeids"].append(tree)
                leaves["nodeids"].append(node)
                leaves["ids"].append(int(score))
                leaves["weights"].append(float(signed(random, sign, 1)[0]))
    if missing == "none":
        del nodes["missing_value_tracks_true"]
    return {f"nodes_{key}": value for key, value in nodes.items()} | {f"{prefix}_{key}": value for key, value in leaves.items()}


def doubled(attributes):
    """Returns the attributes with FP64 tensors instead of lists of floats, as in operator set 3 for FP64 inputs."""
    changed = dict(attributes)
    for name in ("nodes_values", "nodes_hitrates", "base_values", "class_weights", "target_weights"):
        if changed.get(name) is not None:
            changed[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(changed.pop(name), np.float64), name)
    return changed


MODES = [["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GTE"], ["BRANCH_GT"], ["BRANCH_EQ"], ["BRANCH_NEQ"], ["BRANCH_LEQ", "BRANCH_GT", "BRANCH_EQ"]]
MISSING = ["none", "no", "yes", "some"]


def tree_classifiers(random):
    shapes = [(2, [0], "one"), (2, [1], "one"), (2, [0, 1], "one"), (2, [0, 1], "all"), (2, [0, 1], "some"), (2, [1], "some"), (3, [0, 1, 2], "all"),
              (3, [0, 1, 2], "some"), (3, [1], "one"), (4, [0, 1, 2], "one")]
    for (classes, scores, weights), sign, post, base in itertools.product(shapes, ["+", "+-", "-", "0"], POSTS, [0, 1, 2, "n", "small"]):
        if base == "n" and classes == 2 or base in (1, 2) and classes > 2 or base == "small" and classes == 2:
            continue
        bases = {0: None, "n": signed(random, "+-", classes).tolist(), "small": signed(random, "-", classes).tolist()}.get(base, signed(random, "+-", base if isinstance(base, int) else 0).tolist() or None)
        for rows, count in ((1, 3), (7, 1), (30, 12), (60, 90)) if post in ("NONE", "LOGISTIC") else ((9, int(random.choice([1, 4, 90]))),):
            kind, labels = NUMBERS[random.integers(4)], LABELS[random.integers(3)]
            names, label_kind = labelled(labels, classes, "classlabels_int64s")
            missing, modes = str(random.choice(MISSING)), MODES[0] if random.random() < 0.5 else MODES[random.integers(len(MODES))]
            attributes = trees(random, count, 2, scores, sign, modes, missing, "class", weights=weights) | {"base_values": bases}
            if kind is np.float64 and random.random() < 0.5:
                attributes = doubled(attributes)
            name = f"{classes} classes, leaves {weights} of {scores}, {sign}, {post}, {base} base, {rows} rows, {count} trees, {missing}"
            values = rows_of(random, kind, rows, 3, missing=True)
            choice = None
            if classes == 2 and (len(scores) == 2 or base == 2 or scores == [1] and base):
                choice = "two classes with a score for each"
            elif classes == 2 and post == "LOGISTIC" and sign in "+0":
                choice = "labels of margins that are never negative"
            yield Case(name, "TreeEnsembleClassifier", values, outputs=(label_kind, np.float32), choice=choice, post_transform=post, **attributes, **names)


def tree_regressors(random):
    shapes = [(1, [0], "one"), (1, [0], "twice"), (1, [0], "some"), (2, [0, 1], "all"), (2, [0, 1], "some"), (2, [0, 1], "twice"), (3, [0, 2], "one")]
    for (targets, scores, weights), function, post, base in itertools.product(shapes, ["SUM", "AVERAGE", "MIN", "MAX"], POSTS, [0, 1, "n"]):
        bases = {0: None, 1: signed(random, "+-", 1).tolist(), "n": signed(random, "+-", targets).tolist()}[base]
        if base == 1 and targets == 1:
            continue
        for rows, count in ((1, 3), (30, 12), (60, 90)) if post == "NONE" else ((9, int(random.choice([1, 4, 90]))),):
            kind, sign = NUMBERS[random.integers(4)], str(random.choice(["+", "+-", "-", "0"]))
            missing, modes = str(random.choice(MISSING)), MODES[random.integers(len(MODES))]
            attributes = trees(random, count, 2, scores, sign, modes, missing, "target", weights=weights) | {"base_values": bases}
            if kind is np.float64 and random.random() < 0.5:
                attributes = doubled(attributes)
            name = f"{targets} targets, leaves {weights} of {scores}, {sign}, {function}, {post}, {base} base, {rows} rows, {count} trees, {missing}"
            values = rows_of(random, kind, rows, 3, missing=True)
            choice = None
            if targets == 1 and weights == "twice":
                choice = "several weights of a leaf for a single target"
            elif weights != "all" and (base == "n" or targets == 1 and function in ("MIN", "MAX")):
                choice = "a target that no leaf scores"
            yield Case(name, "TreeEnsembleRegressor", values, choice=choice, post_transform=post, aggregate_function=function, n_targets=targets, **attributes)


def tree_ensembles(random):
    for function, post, targets, kind, missing in itertools.product(range(4), range(5), [1, 2], [np.float32, np.float64], MISSING):
        sign = str(random.choice(["+", "+-", "-"]))
        count, inner = int(random.choice([1, 3, 90])), 3
        nodes, members, leaves = collections.defaultdict(list), [], []
        for tree in range(count):
            for node in range(inner):
                mode = int(random.integers(7))
                nodes["modes"].append(mode)
                if mode == 6:
                    members += [*random.integers(-2, 3, int(random.integers(1, 4))).astype(float), np.nan]
                nodes["splits"].append(float(np.round(random.normal() * 2) / 2))
                nodes["featureids"].append(int(random.integers(3)))
                is_last = node > 0
                nodes["trueleafs"].append(int(is_last))
                nodes["falseleafs"].append(int(is_last))
                nodes["truenodeids"].append(4 * tree + 2 * (node - 1) if is_last else inner * tree + 1)
                nodes["falsenodeids"].append(4 * tree + 2 * (node - 1) + 1 if is_last else inner * tree + 2)
                nodes["missing_value_tracks_true"].append(int(random.integers(2)) if missing == "some" else int(missing == "yes"))
            leaves += [int(random.integers(targets)) for _ in range(4)]
        if missing == "none":
            del nodes["missing_value_tracks_true"]
        tensor = lambda name, values, kind=kind: numpy_helper.from_array(np.array(values, kind), name)
        attributes = {f"nodes_{key}": value for key, value in nodes.items()}
        attributes["nodes_modes"] = tensor("modes", nodes["modes"], np.uint8)
        attributes["nodes_splits"] = tensor("splits", nodes["splits"])
        attributes["membership_values"] = tensor("members", members) if members else None
        attributes["leaf_weights"] = tensor("weights", signed(random, sign, len(leaves)))
        roots = [inner * tree for tree in range(count)]
        name = f"{targets} targets, {sign}, function {function}, post {post}, {count} trees, {missing}"
        values = rows_of(random, kind, int(random.choice([1, 20, 60])), 3, missing=True)
        # When it tests for membership in a set of at least three numbers, ONNX Runtime treats 1.5 as 1.
        values = np.floor(values) if members else values
        yield Case(name, "TreeEnsemble", values, outputs=(kind,), opset=5, aggregate_function=function, post_transform=post, n_targets=targets,
                   tree_roots=roots, leaf_targetids=leaves, **attributes)


def linear(random):
    for classes, post, sign, kind, multi in itertools.product([1, 2, 3], POSTS, ["+", "+-", "-"], NUMBERS, [None, 0, 1]):
        for labels in LABELS:
            names, label_kind = labelled(labels, max(classes, 2))
            coefficients, intercepts = signed(random, sign, classes * 3).tolist(), signed(random, sign, classes).tolist()
            name = f"{classes} scores, {post}, {sign}, multi_class {multi}"
            values = rows_of(random, kind, int(random.choice([1, 15])), 3)
            yield Case(name, "LinearClassifier", values, outputs=(label_kind, np.float32), post_transform=post, multi_class=multi,
                       coefficients=coefficients, intercepts=intercepts, **names)
    for classes, post in itertools.product([2, 3], POSTS):
        names, label_kind = labelled(LABELS[1], classes)
        yield Case(f"{classes} scores, {post}, no intercepts", "LinearClassifier", rows_of(random, np.float32, 9, 3), outputs=(label_kind, np.float32),
                   post_transform=post, coefficients=signed(random, "+-", classes * 3).tolist(), **names)
    # A vector counts as one row.
    names, label_kind = labelled(LABELS[0], 3)
    yield Case("a vector", "LinearClassifier", rows_of(random, np.float32, 1, 3)[0], outputs=(label_kind, np.float32), coefficients=signed(random, "+-", 9).tolist(),
               intercepts=signed(random, "+-", 3).tolist(), **names)
    for targets, post, kind, has_intercepts in itertools.product([1, 2, 3], POSTS, NUMBERS, [True, False]):
        intercepts = signed(random, "+-", targets).tolist() if has_intercepts else None
        yield Case(f"{targets} targets, {post}", "LinearRegressor", rows_of(random, kind, 9, 3), post_transform=post, targets=targets,
                   coefficients=signed(random, "+-", targets * 3).tolist(), intercepts=intercepts)


def vectors(random):
    for classes, kernel, post, proba, sign in itertools.product([2, 3, 4], ["LINEAR", "POLY", "RBF", "SIGMOID"], POSTS, [False, True], ["+", "+-", "-"]):
        for rho_sign in ("+", "-"):
            names, label_kind = labelled(LABELS[random.integers(3)], classes)
            counts = random.integers(1, 4, classes)
            total, pairs = int(counts.sum()), classes * (classes - 1) // 2
            slopes = {"prob_a": (-2 * np.abs(signed(random, "+", pairs))).tolist(), "prob_b": signed(random, "+-", pairs).tolist()} if proba else {}
            name = f"{classes} classes, {kernel}, {post}, {'probabilities' if proba else 'votes'}, {sign}, rho {rho_sign}"
            values = rows_of(random, NUMBERS[random.integers(4)], int(random.choice([1, 25])), 3)
            yield Case(name, "SVMClassifier", values, outputs=(label_kind, np.float32), kernel_type=kernel, kernel_params=[0.5, 0.25, 2.0], post_transform=post,
                       coefficients=signed(random, sign, (classes - 1) * total).tolist(), vectors_per_class=counts.tolist(), rho=(signed(random, rho_sign, pairs) / 2).tolist(),
                       support_vectors=rows_of(random, np.float32, total, 3).ravel().tolist(), **slopes, **names)
    for classes, post, sign, kind, rho in itertools.product([2, 3], POSTS, ["+", "+-", "-"], NUMBERS, [1, 2]):
        names, label_kind = labelled(LABELS[random.integers(3)], classes)
        yield Case(f"{classes} classes, no vectors, {post}, {sign}, {rho} rho", "SVMClassifier", rows_of(random, kind, 25, 3), outputs=(label_kind, np.float32), post_transform=post,
                   kernel_type="LINEAR", kernel_params=[0.0] * 3, coefficients=signed(random, sign, classes * 3).tolist(), rho=signed(random, "+-", rho).tolist(), **names)
    for kernel, post, one_class, supports in itertools.product(["LINEAR", "POLY", "RBF", "SIGMOID"], POSTS, [None, 0, 1], [4, 0]):
        coefficients = signed(random, "+-", supports or 3).tolist()
        support_vectors = rows_of(random, np.float32, supports, 3).ravel().tolist() if supports else None
        yield Case(f"{kernel}, {post}, one_class {one_class}, {supports} vectors", "SVMRegressor", rows_of(random, np.float32, 25, 3), kernel_type=kernel, post_transform=post,
                   kernel_params=[0.5, 0.25, 2.0], one_class=one_class, n_supports=supports, coefficients=coefficients, rho=[0.25], support_vectors=support_vectors)


def features(random):
    for kind, shape in itertools.product(NUMBERS, [(6,), (5, 3), (2, 4, 3), (4, 1)]):
        width, values = shape[-1], rows_of(random, kind, int(np.prod(shape[:-1], dtype=int)), shape[-1], missing=True).reshape(shape)
        for count in {1, width}:
            refused = "takes a matrix" if count > 1 and len(shape) > 2 else None
            yield Case(f"{count} scales of {shape}", "Scaler", values, refused=refused, offset=signed(random, "+-", count).tolist(), scale=signed(random, "+-", count).tolist())
            for replaced in (np.nan, 0.5, None, 0.0):
                yield Case(f"{count} values for {replaced} of {shape}", "Imputer", values, refused=refused, outputs=(kind,), imputed_value_floats=signed(random, "+", count).tolist(),
                           replaced_value_float=replaced)
            for replaced in (1, None):
                yield Case(f"{count} integers for {replaced} of {shape}", "Imputer", values, refused=refused, outputs=(kind,), imputed_value_int64s=random.integers(5, 9, count).tolist(),
                           replaced_value_int64=replaced)
        for norm in ("MAX", "L1", "L2", None):
            for sign in ("both", "negative", "zero"):
                changed = {"both": values, "negative": -np.abs(values), "zero": values * 0}[sign]
                yield Case(f"{norm} of {shape}, {sign}", "Normalizer", np.nan_to_num(changed).astype(kind), norm=norm)
                yield Case(f"{norm} of {shape}, {sign}, NaN", "Normalizer", changed.astype(kind), norm=norm)
        for threshold in (None, 0.5, -1.0):
            yield Case(f"{threshold} of {shape}", "Binarizer", values, outputs=(kind,), threshold=threshold)
        for zeros in (None, 0, 1):
            for categories in ([-2, 0, 1, 2, 3], list(range(-30, 30)), [1, 1, 0]):
                yield Case(f"of {shape}, zeros {zeros}, {len(categories)} categories", "OneHotEncoder", np.nan_to_num(values).astype(kind), cats_int64s=categories, zeros=zeros)
    for shape, zeros in itertools.product([(6,), (5, 3)], (None, 0, 1)):
        values = texts(random.choice(["a", "b", "c"], shape))
        for categories in (["a", "b"], ["c", "b", "a", "b"]):
            yield Case(f"strings of {shape}, zeros {zeros}, {len(categories)} categories", "OneHotEncoder", values, cats_strings=categories, zeros=zeros)
    for kind, shape, positions in itertools.product([*NUMBERS, object], [(6,), (5, 3), (2, 4, 3)], [[0], [2, 0, 2], [[1, 2]]]):
        values = texts(random.choice(["a", "b", "c"], shape)) if kind is object else rows_of(random, kind, int(np.prod(shape)), 1).reshape(shape)
        yield Case(f"{positions} of {shape}", "ArrayFeatureExtractor", values, np.array(positions), outputs=(kind,))
    for kind, widths, given in itertools.product(NUMBERS, [[3], [2, 3], [1, 4, 2]], ["equal", "more", "fewer"]):
        inputs = [rows_of(random, kind, 4, width + {"equal": 0, "more": 1, "fewer": -1}[given]) for width in widths]
        yield Case(f"{widths}, {given}", "FeatureVectorizer", *inputs, inputdimensions=widths)


def encoders(random):
    keys = {"int64s": [3, 1, 2, 1], "floats": [0.5, np.nan, -0.0, 0.5], "strings": ["b", "a", "", "a"]}
    asked = {"int64s": np.array([[1, 2, 3], [4, 0, 1]]), "floats": np.array([[0.5, np.nan, 0.0], [-0.5, 2, 0.5]], np.float32), "strings": texts([["a", "b", ""], ["A", "c", "a"]])}
    kinds = {"int64s": np.int64, "floats": np.float32, "strings": object}
    values = {"int64s": [10, -11, 12, 13], "floats": [1.5, -2.5, np.nan, 3.5], "strings": ["x", "y", "", "z"]}
    defaults = {"int64s": ("default_int64", -7), "floats": ("default_float", 0.25), "strings": ("default_string", "none")}
    for (key, value), has_default, opset in itertools.product(itertools.product(keys, values), [True, False], [2, 4]):
        default = dict([defaults[value]]) if has_default else {}
        choice = "NaN as a key" if key == "floats" and opset == 2 else None
        yield Case(f"{key} to {value}, {'a' if has_default else 'no'} default, operator set {opset}", "LabelEncoder", asked[key], outputs=(kinds[value],), opset=opset, choice=choice,
                   **{f"keys_{key}": keys[key], f"values_{value}": values[value]}, **default)
    for has_default, is_text in itertools.product([True, False], repeat=2):
        default = {"default_int64": -7, "default_string": "none"} if has_default else {}
        yield Case(f"classes, {has_default}, {is_text}", "LabelEncoder", asked["strings" if is_text else "int64s"], outputs=(np.int64 if is_text else object,), opset=1,
                   classes_strings=["b", "a", "", "x"], **default)
    typed = {np.int64: [3, 1, 2, 1], np.int32: [3, 1, 2, 1], np.int16: [3, 1, 2, 1], np.float32: [0.5, np.nan, 0, 2], np.float64: [0.5, np.nan, 0, 2], object: ["b", "a", "", "a"]}
    for key, value, has_default in itertools.product(typed, typed, [True, False]):
        tensor = lambda name, kind, values: helper.make_tensor(name, element_type(kind), [len(values)], [x.encode() for x in values] if kind is object else values)
        default = {"default_tensor": tensor("default", value, typed[value][:1])} if has_default else {}
        for flat in (True, False):
            given = texts(["a", "b", "q"]) if key is object else np.array([1, 2, 0.5] if np.dtype(key).kind == "f" else [1, 2, 9], key)
            yield Case(f"tensors of {np.dtype(key)} to {np.dtype(value)}, {has_default}", "LabelEncoder", given if flat else given.reshape(3, 1), outputs=(value,), opset=4,
                       keys_tensor=tensor("keys", key, typed[key]), values_tensor=tensor("values", value, typed[value]), **default)


def cases(seed=1):
    for family in (tree_classifiers, tree_regressors, tree_ensembles, linear, vectors, features, encoders):
        yield from family(np.random.default_rng(seed))
