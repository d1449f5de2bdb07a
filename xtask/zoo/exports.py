"""Compares a server with ONNX Runtime on models of scikit-learn, XGBoost, LightGBM and CatBoost that are exported to ONNX
in the usual ways.

    python exports.py --server PROGRAM --folder FOLDER [--only REGEX] [--page FILE | --both]

Needs numpy, onnxruntime, tritonclient[http], catboost, lightgbm, onnx 1.18, onnxmltools, scikit-learn, skl2onnx and
xgboost-cpu. Every model is trained anew; the files stay in FOLDER. The last section of the page is rewritten. The exit
code is 1 unless all responses agree with ONNX Runtime's, within its own numerical error. With --both, each model has
two servers of its own, with the built-in runtime and with ONNX Runtime (both.py).
"""

import argparse
import collections
import copy
import functools
import importlib.metadata
import pathlib
import re
import shutil
import sys
import tempfile
import warnings

import numpy as np
import onnxruntime
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRanker, LGBMRegressor
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
from skl2onnx import to_onnx, update_registered_converter
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from skl2onnx.common.shape_calculator import (
    calculate_linear_classifier_output_shapes, calculate_linear_regressor_output_shapes,
)
from sklearn import (
    calibration, cluster, compose, covariance, cross_decomposition, decomposition, discriminant_analysis, ensemble, feature_extraction,
    feature_selection, gaussian_process, impute, linear_model, mixture, multiclass, multioutput, naive_bayes, neighbors, neural_network,
    pipeline, preprocessing, random_projection, svm, tree,
)
from xgboost import XGBClassifier, XGBRegressor, XGBRFClassifier, XGBRFRegressor

import both
import ort
import zoo
from served import Server, place

TOLERANCE = 1e-4
OPSET = {"": 18, "ai.onnx.ml": 3}
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(240, 8)).astype(np.float32)
SIGNAL = X[:, 0] + X[:, 1] * X[:, 2] + 0.2 * RANDOM.normal(size=len(X))
VALUES = SIGNAL.astype(np.float32)
TWO = (SIGNAL > 0).astype(np.int64)
THREE = np.digitize(SIGNAL, [-0.6, 0.6])
NAMES = np.array(["low", "middle", "high"])[THREE]
POSITIVE = np.abs(X)
COUNTS = np.round(POSITIVE * 3).astype(np.float32)
MISSING = np.where(RANDOM.random(X.shape) < 0.1, np.nan, X).astype(np.float32)
WORDS = np.array(["red green", "Blue red red", "a yellow one", "green, blue; yellow!", "black"])[RANDOM.integers(0, 5, len(X))]
KINDS = np.array([["cat", "dog", "bird"][a] + "," + ["x", "y"][b] for a, b in zip(RANDOM.integers(0, 3, len(X)), RANDOM.integers(0, 2, len(X)))])
KINDS = np.stack([kind.split(",") for kind in KINDS]).astype(object)
SMALL = {"n_estimators": 12, "random_state": 0}


def register():
    both = {"nocl": [True, False], "zipmap": [True, False, "columns"], "raw_scores": [True, False]}
    for kind in (XGBClassifier, XGBRFClassifier, LGBMClassifier):
        convert = convert_lightgbm if kind is LGBMClassifier else convert_xgboost
        update_registered_converter(kind, kind.__name__, calculate_linear_classifier_output_shapes, convert, options=both)
    for kind in (XGBRegressor, XGBRFRegressor, LGBMRegressor, LGBMRanker):
        convert = convert_lightgbm if kind.__name__.startswith("LGBM") else convert_xgboost
        options = {"split": None} if convert is convert_lightgbm else None
        update_registered_converter(kind, kind.__name__, calculate_linear_regressor_output_shapes, convert, options=options)


class Export:
    """A fitted model, and rows for checking it."""

    def __init__(self, name, model, rows=X, types=None, options=None, catboost=False):
        self.name, self.model, self.rows, self.types, self.options, self.catboost = name, model, rows, types, options, catboost

    def save(self, path):
        if self.catboost:
            self.model.save_model(str(path), format="onnx")
            return
        options = {id(self.model): self.options} if self.options else None
        if self.types:
            content = to_onnx(self.model, initial_types=self.types, options=options, target_opset=OPSET)
        else:
            content = to_onnx(self.model, self.rows[:1], options=options, target_opset=OPSET)
        path.write_bytes(content.SerializeToString())


def classifiers():
    yield "logistic", linear_model.LogisticRegression(), TWO
    yield "logistic_three", linear_model.LogisticRegression(), THREE
    yield "logistic_names", linear_model.LogisticRegression(), NAMES
    yield "logistic_cv", linear_model.LogisticRegressionCV(cv=3), TWO
    yield "sgd_log", linear_model.SGDClassifier(loss="log_loss", random_state=0), THREE
    yield "sgd_hinge", linear_model.SGDClassifier(random_state=0), TWO
    yield "sgd_huber", linear_model.SGDClassifier(loss="modified_huber", random_state=0), THREE
    yield "ridge_classifier", linear_model.RidgeClassifier(), THREE
    yield "ridge_classifier_cv", linear_model.RidgeClassifierCV(), TWO
    yield "perceptron", linear_model.Perceptron(random_state=0), THREE
    yield "linear_svc", svm.LinearSVC(random_state=0), THREE
    for kernel in ("linear", "poly", "rbf", "sigmoid"):
        yield f"svc_{kernel}", svm.SVC(kernel=kernel), THREE
    yield "svc_two", svm.SVC(), TWO
    yield "nu_svc", svm.NuSVC(nu=0.3), NAMES
    yield "tree", tree.DecisionTreeClassifier(max_depth=6), THREE
    yield "extra_tree", tree.ExtraTreeClassifier(max_depth=6), TWO
    yield "random_forest", ensemble.RandomForestClassifier(**SMALL), THREE
    yield "random_forest_names", ensemble.RandomForestClassifier(**SMALL), NAMES
    yield "extra_trees", ensemble.ExtraTreesClassifier(**SMALL), TWO
    yield "gradient_boosting", ensemble.GradientBoostingClassifier(**SMALL), THREE
    yield "gradient_boosting_two", ensemble.GradientBoostingClassifier(**SMALL), TWO
    yield "hist_gradient_boosting", ensemble.HistGradientBoostingClassifier(max_iter=12), THREE
    yield "hist_gradient_boosting_two", ensemble.HistGradientBoostingClassifier(max_iter=12), TWO
    yield "ada_boost", ensemble.AdaBoostClassifier(**SMALL), THREE
    yield "bagging", ensemble.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=4), n_estimators=6), THREE
    yield "bagging_linear", ensemble.BaggingClassifier(linear_model.LogisticRegression(), n_estimators=4), TWO
    yield "neighbors", neighbors.KNeighborsClassifier(), THREE
    yield "neighbors_distance", neighbors.KNeighborsClassifier(weights="distance", metric="manhattan"), TWO
    yield "gaussian_nb", naive_bayes.GaussianNB(), THREE
    yield "bernoulli_nb", naive_bayes.BernoulliNB(), TWO
    yield "mlp_classifier", neural_network.MLPClassifier(hidden_layer_sizes=(16, 8), max_iter=40, random_state=0), THREE
    yield "mlp_tanh", neural_network.MLPClassifier(hidden_layer_sizes=(8,), activation="tanh", max_iter=40, random_state=0), TWO
    yield "lda", discriminant_analysis.LinearDiscriminantAnalysis(), THREE
    yield "qda", discriminant_analysis.QuadraticDiscriminantAnalysis(), TWO
    yield "one_vs_rest", multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), THREE
    yield "one_vs_one", multiclass.OneVsOneClassifier(linear_model.LogisticRegression()), THREE
    two = [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))]
    yield "voting_soft", ensemble.VotingClassifier(two, voting="soft", flatten_transform=False), THREE
    yield "voting_hard", ensemble.VotingClassifier(two, voting="hard", flatten_transform=False), THREE
    yield "stacking", ensemble.StackingClassifier(two), TWO
    yield "calibrated_sigmoid", calibration.CalibratedClassifierCV(linear_model.LogisticRegression(), cv=2), TWO
    yield "calibrated_isotonic", calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2, method="isotonic"), THREE
    scaled = pipeline.make_pipeline(preprocessing.StandardScaler(), decomposition.PCA(4), linear_model.LogisticRegression())
    yield "pipeline", scaled, THREE
    yield "xgb_two", XGBClassifier(n_estimators=12, max_depth=4), TWO
    yield "xgb_three", XGBClassifier(n_estimators=12, max_depth=4), THREE
    yield "xgb_forest", XGBRFClassifier(n_estimators=12, max_depth=4), TWO
    yield "lgbm_two", LGBMClassifier(n_estimators=12, verbose=-1), TWO
    yield "lgbm_three", LGBMClassifier(n_estimators=12, verbose=-1), THREE
    yield "lgbm_names", LGBMClassifier(n_estimators=12, verbose=-1), NAMES
    yield "lgbm_forest", LGBMClassifier(n_estimators=12, boosting_type="rf", subsample=0.6, subsample_freq=1, verbose=-1), TWO


def regressors():
    yield "linear", linear_model.LinearRegression()
    yield "ridge", linear_model.Ridge()
    yield "ridge_cv", linear_model.RidgeCV()
    yield "lasso", linear_model.Lasso(0.01)
    yield "lasso_lars", linear_model.LassoLars(0.01)
    yield "elastic_net", linear_model.ElasticNet(0.01)
    yield "bayesian_ridge", linear_model.BayesianRidge()
    yield "huber", linear_model.HuberRegressor()
    yield "sgd_regressor", linear_model.SGDRegressor(random_state=0)
    yield "omp", linear_model.OrthogonalMatchingPursuit()
    yield "quantile", linear_model.QuantileRegressor(solver="highs")
    yield "theil_sen", linear_model.TheilSenRegressor(random_state=0)
    yield "ransac", linear_model.RANSACRegressor(random_state=0)
    yield "svr", svm.SVR()
    yield "svr_poly", svm.SVR(kernel="poly")
    yield "nu_svr", svm.NuSVR()
    yield "linear_svr", svm.LinearSVR(random_state=0)
    yield "tree_regressor", tree.DecisionTreeRegressor(max_depth=7)
    yield "random_forest_regressor", ensemble.RandomForestRegressor(**SMALL)
    yield "extra_trees_regressor", ensemble.ExtraTreesRegressor(**SMALL)
    yield "gradient_boosting_regressor", ensemble.GradientBoostingRegressor(**SMALL)
    yield "hist_gradient_boosting_regressor", ensemble.HistGradientBoostingRegressor(max_iter=12)
    yield "ada_boost_regressor", ensemble.AdaBoostRegressor(**SMALL)
    yield "bagging_regressor", ensemble.BaggingRegressor(n_estimators=5, random_state=0)
    yield "neighbors_regressor", neighbors.KNeighborsRegressor()
    yield "mlp_regressor", neural_network.MLPRegressor(hidden_layer_sizes=(16,), max_iter=40, random_state=0)
    yield "gaussian_process", gaussian_process.GaussianProcessRegressor(alpha=0.1)
    yield "pls", cross_decomposition.PLSRegression(3)
    yield "voting_regressor", ensemble.VotingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=3))])
    yield "stacking_regressor", ensemble.StackingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=3))])
    yield "xgb_regressor", XGBRegressor(n_estimators=12, max_depth=4)
    yield "xgb_forest_regressor", XGBRFRegressor(n_estimators=12, max_depth=4)
    yield "lgbm_regressor", LGBMRegressor(n_estimators=12, verbose=-1)


def transformers():
    yield "standard_scaler", preprocessing.StandardScaler(), X
    yield "min_max_scaler", preprocessing.MinMaxScaler(clip=True), X
    yield "max_abs_scaler", preprocessing.MaxAbsScaler(), X
    yield "robust_scaler", preprocessing.RobustScaler(), X
    for norm in ("l1", "l2", "max"):
        yield f"normalizer_{norm}", preprocessing.Normalizer(norm), X
    yield "binarizer", preprocessing.Binarizer(threshold=0.3), X
    yield "bins", preprocessing.KBinsDiscretizer(4, encode="ordinal"), X
    yield "bins_onehot", preprocessing.KBinsDiscretizer(4, encode="onehot-dense"), X
    yield "polynomial", preprocessing.PolynomialFeatures(2), X[:, :4]
    yield "power", preprocessing.PowerTransformer(), X
    yield "pca", decomposition.PCA(3), X
    yield "incremental_pca", decomposition.IncrementalPCA(3), X
    yield "kernel_pca", decomposition.KernelPCA(3, kernel="rbf"), X
    yield "svd", decomposition.TruncatedSVD(3), X
    yield "imputer", impute.SimpleImputer(), MISSING
    yield "imputer_median", impute.SimpleImputer(strategy="median"), MISSING
    yield "knn_imputer", impute.KNNImputer(), MISSING
    yield "variance", feature_selection.VarianceThreshold(0.9), X
    yield "select", feature_selection.SelectKBest(k=3), X
    yield "random_projection", random_projection.GaussianRandomProjection(3, random_state=0), X
    yield "kmeans", cluster.KMeans(4, n_init=1, random_state=0), X
    yield "mini_kmeans", cluster.MiniBatchKMeans(4, n_init=1, random_state=0), X
    yield "mixture", mixture.GaussianMixture(3, random_state=0), X
    yield "bayesian_mixture", mixture.BayesianGaussianMixture(n_components=3, random_state=0, max_iter=20), X
    yield "isolation_forest", ensemble.IsolationForest(**SMALL), X
    yield "local_outlier_factor", neighbors.LocalOutlierFactor(novelty=True), X
    yield "one_class_svm", svm.OneClassSVM(), X
    union = pipeline.make_union(preprocessing.StandardScaler(), decomposition.PCA(2))
    yield "union", union, X
    yield "label_binarizer", preprocessing.LabelBinarizer(), THREE.reshape(-1, 1)


def exports():
    register()
    for name, model, labels in classifiers():
        yield Export(name, model.fit(X, labels))
    for name, kind in [("multinomial_nb", naive_bayes.MultinomialNB), ("complement_nb", naive_bayes.ComplementNB)]:
        yield Export(name, kind().fit(COUNTS, THREE), COUNTS)
    for name in ("random_forest", "logistic"):
        model = {"random_forest": ensemble.RandomForestClassifier(**SMALL), "logistic": linear_model.LogisticRegression()}[name]
        yield Export(f"{name}_no_zipmap", model.fit(X, THREE), options={"zipmap": False})
    yield Export("raw_scores", linear_model.LogisticRegression().fit(X, THREE), options={"raw_scores": True})
    yield Export("double", linear_model.Ridge().fit(X, VALUES), X.astype(np.float64))
    both = np.stack([VALUES, X[:, 3]], 1)
    yield Export("two_targets", ensemble.RandomForestRegressor(**SMALL).fit(X, both))
    yield Export("multi_output", multioutput.MultiOutputRegressor(linear_model.Ridge()).fit(X, both))
    yield Export("xgb_missing", XGBRegressor(n_estimators=12, max_depth=4).fit(MISSING, VALUES), MISSING)
    yield Export("lgbm_missing", LGBMRegressor(n_estimators=12, verbose=-1).fit(MISSING, VALUES), MISSING)
    codes = np.concatenate([X[:, :2], RANDOM.integers(0, 30, (len(X), 1))], 1).astype(np.float32)
    wanted = codes[:, 2] % 3 + codes[:, 0]
    model = LGBMRegressor(n_estimators=12, verbose=-1, min_data_per_group=2, cat_smooth=1).fit(codes, wanted, categorical_feature=[2])
    yield Export("lgbm_categories", model, codes)
    for objective in ("count:poisson", "reg:tweedie", "reg:gamma", "reg:squaredlogerror"):
        model = XGBRegressor(n_estimators=8, max_depth=3, objective=objective).fit(X, np.exp(VALUES / 4))
        yield Export("xgb_" + objective.replace(":", "_"), model)
    for name, model in regressors():
        yield Export(name, model.fit(X, VALUES))
    for name, kind in [("poisson", linear_model.PoissonRegressor), ("gamma", linear_model.GammaRegressor), ("tweedie", linear_model.TweedieRegressor)]:
        yield Export(name, kind().fit(X, np.exp(VALUES / 4)))
    for name, model, rows in transformers():
        yield Export(name, model.fit(rows, VALUES) if name == "select" else model.fit(rows), rows)
    strings = [("kinds", StringTensorType([None, 2]))]
    yield Export("one_hot", preprocessing.OneHotEncoder(handle_unknown="ignore").fit(KINDS), KINDS, strings)
    yield Export("ordinal", preprocessing.OrdinalEncoder().fit(KINDS), KINDS, strings)
    yield Export("label_encoder", preprocessing.LabelEncoder().fit(NAMES), NAMES.astype(object), [("labels", StringTensorType([None]))])
    texts = [("texts", StringTensorType([None, 1]))]
    words = WORDS.astype(object).reshape(-1, 1)
    yield Export("count_words", feature_extraction.text.CountVectorizer().fit(WORDS), words, texts)
    yield Export("tfidf", feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2)).fit(WORDS), words, texts)
    model = pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression()).fit(WORDS, TWO)
    yield Export("tfidf_pipeline", model, words, texts)
    table = compose.make_column_transformer(
        (preprocessing.StandardScaler(), [0, 1, 2]), (pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.MinMaxScaler()), [3, 4]), (preprocessing.OneHotEncoder(), [5])
    )
    rows = np.concatenate([X[:, :5], RANDOM.integers(0, 4, (len(X), 1))], 1).astype(np.float32)
    yield Export("columns", pipeline.make_pipeline(table, ensemble.RandomForestClassifier(**SMALL)).fit(rows, TWO), rows)
    silent = {"iterations": 12, "verbose": 0, "allow_writing_files": False, "random_seed": 0}
    yield Export("catboost_two", CatBoostClassifier(**silent).fit(X, TWO), catboost=True)
    yield Export("catboost_three", CatBoostClassifier(**silent).fit(X, THREE), catboost=True)
    yield Export("catboost_regressor", CatBoostRegressor(**silent).fit(X, VALUES), catboost=True)
    yield Export("catboost_missing", CatBoostRegressor(**silent).fit(MISSING, VALUES), MISSING, catboost=True)
    yield Export("catboost_depthwise", CatBoostRegressor(grow_policy="Depthwise", **silent).fit(X, VALUES), catboost=True)


def exact(export, rows, path):
    """Returns ONNX Runtime's outputs for the rows if the model is exported in float64; `None` if it cannot be."""
    wide = copy.copy(export)
    wide.rows = export.rows.astype(np.float64)
    try:
        wide.save(path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return [zoo.table(answer) for answer in session.run(None, {session.get_inputs()[0].name: rows.astype(np.float64)})]
    except Exception:  # exceptions of the converters and of ONNX Runtime
        return None


def is_noise(wanted, answers, found):
    """Returns whether floats are at most twice as far from the float64 results as ONNX Runtime's own, and everything else
    is equal."""
    if wanted is None:
        return False
    for exact, answer, ours in zip(wanted, answers, found):
        if answer.dtype.kind != "f":
            if zoo.difference("", answer, ours):
                return False
            continue
        if ours is None or not exact.shape == answer.shape == ours.shape:
            return False
        if not np.array_equal(np.isfinite(answer), np.isfinite(ours)):
            return False
        if zoo.distance(exact, ours) > max(TOLERANCE, 2 * zoo.distance(exact, answer)):
            return False
    return True


def compared(export, rows, names, answers, found):
    """Returns the verdict on the server's outputs, and the reason."""
    differences = [zoo.difference(*triple) for triple in zip(names, answers, found)]
    differences = [text for text in differences if text]
    if not differences:
        return "equal", ""
    with tempfile.TemporaryDirectory() as folder:
        has_exact = export.types is None and not export.catboost
        if has_exact and is_noise(exact(export, rows, pathlib.Path(folder) / "exact"), answers, found):
            return "noise", differences[0]
    return "differs", differences[0]


def reference(path, export):
    """Returns the output names, and pairs of inputs and outputs of ONNX Runtime, for all rows and for half of them; or the
    error."""
    try:
        session = ort.session_of(path)
        port = session.get_inputs()[0]
        pairs = [{port.name: rows} for rows in (export.rows, export.rows[: len(export.rows) // 2])]
        pairs = [(inputs, [zoo.table(answer) for answer in session.run(None, inputs)]) for inputs in pairs]
    except Exception as error:  # ONNX Runtime's exceptions have no common type
        return str(error)
    return [output.name for output in session.get_outputs()], pairs


def case_of(export, path):
    """Returns the export as a case for both runtimes, or the reason why there is none."""
    expected = reference(path, export)
    if isinstance(expected, str):
        return expected
    names, pairs = expected

    def judge(inputs, answers, found):
        rows, = inputs.values()
        return compared(export, rows, names, list(answers.values()), [found.get(name) for name in names])

    return both.Case(export.name, path, [(inputs, dict(zip(names, answers))) for inputs, answers in pairs], judge)


def verdict(server, repository, path, export):
    expected = reference(path, export)
    if isinstance(expected, str):
        return "left out", expected
    names, [(inputs, answers), _] = expected
    place(repository, export.name, path)
    try:
        refusal = server.call(f"/v2/repository/models/{export.name}/load")
        if refusal is not None:
            return "refused", refusal
        response = server.infer(export.name, inputs)
        return compared(export, export.rows, names, answers, [response.as_numpy(name) for name in names])
    except Exception as error:
        return "fails", str(error)
    finally:
        if server.is_running():
            server.call(f"/v2/repository/models/{export.name}/unload")
        shutil.rmtree(repository / export.name)


def section(rows):
    """Returns the page's section: which models had which verdict."""
    packages = ("catboost", "lightgbm", "onnxmltools", "scikit-learn", "skl2onnx", "xgboost-cpu")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    lines = [
        zoo.EXPORTS, "",
        "Models trained and exported by `cargo xtask zoo --exports --page`, run by the built-in runtime and compared with ONNX",
        f"Runtime, within {TOLERANCE:.0e} of an output's largest value. *Noise* is a larger difference, but at most twice ONNX Runtime's",
        "own difference from the same model exported in float64. *Not exported*: the converter refuses the model. *Left out*: ONNX",
        "Runtime does not run it.", "",
        f"Versions: {versions}.", "",
        "| verdict | models | which |", "|---|---|---|",
    ]
    for verdict in sorted({verdict for _, verdict, _ in rows}, key=lambda verdict: (verdict != "equal", verdict)):
        found = [(name, why) for name, found, why in rows if found == verdict]
        names = ", ".join(name + (f" ({shortened(why)})" if why else "") for name, why in found)
        lines.append(f"| {verdict} | {len(found)} | {names} |")
    return "\n".join(lines) + "\n"


def shortened(why):
    return re.sub(r"\s+", " ", re.sub(r"; ONNX Runtime can run this: .*", "", why)).replace("|", "/")[:160]


def saved(options):
    """Returns the exports with their files, or the reason why there is none."""
    for export in exports():
        if not re.search(options.only, export.name):
            continue
        path = options.folder / f"{export.name}.onnx"
        try:
            export.save(path)
        except Exception as error:  # exceptions of the converters
            yield export, str(error)
        else:
            yield export, path


def cases(options, _known):
    for export, path in saved(options):
        case = path if isinstance(path, str) else case_of(export, path)
        if isinstance(case, str):
            print(f"{export.name}\n  left out: {case[:150]!r}", flush=True)
        else:
            yield case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--both", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    zoo.TOLERANCE = TOLERANCE
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.both:
        return both.run(options.server, functools.partial(cases, options), zoo.processor())
    counts, rows, server = collections.Counter(), [], None
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary)
        for export, path in saved(options):
            if isinstance(path, str):
                counts["not exported"] += 1
                rows.append((export.name, "not exported", ""))
                print(f"not exported {export.name} {path[:150]!r}", flush=True)
                continue
            if server is None or not server.is_running():
                server = Server(options.server, str(repository))
            result, why = verdict(server, repository, path, export)
            if not server.is_running():
                result, why = "server ended", f"exit code {server.process.returncode}"
            counts[result] += 1
            rows.append((export.name, result, why))
            print(f"{result:<12} {export.name} {why[:200]}", flush=True)
    if server is not None and server.is_running():
        server.process.terminate()
        server.process.wait(60)
    if options.page:
        page, _, _ = options.page.read_text().partition(zoo.EXPORTS)
        options.page.write_text(page.rstrip() + "\n\n" + section(rows))
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int(any(name not in ("equal", "noise", "not exported", "left out") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
