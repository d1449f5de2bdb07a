//! Damaged or malicious files: each is refused, and none takes memory or time in proportion to the counts
//! that it claims.

use oip_types::ErrorCode;
use proptest::prelude::*;

use crate::support::{cases, config, fixture, load, run};

fn refuse(file: &str, content: &[u8]) -> String {
    let error = load(file, content.to_vec(), config(&[]))
        .err()
        .expect("it is refused");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    error.message().to_owned()
}

/// Builds an XGBoost model with one tree.
fn xgboost(tree: &str) -> Vec<u8> {
    xgboost_with("[5E-1]", "1", "reg:squarederror", tree)
}

fn xgboost_with(base: &str, targets: &str, objective: &str, tree: &str) -> Vec<u8> {
    format!(
        r#"{{"learner": {{"learner_model_param": {{"base_score": "{base}", "num_class": "0", "num_feature": "2",
        "num_target": "{targets}"}}, "objective": {{"name": "{objective}"}}, "gradient_booster": {{"name": "gbtree",
        "model": {{"tree_info": [0], "trees": [{tree}]}}}}}}}}"#
    )
    .into_bytes()
}

/// Builds a tree from lists of left and right children, features and thresholds.
fn tree(left: &str, right: &str, features: &str, thresholds: &str) -> String {
    let count = left.split(',').count();
    let flags = vec!["0"; count].join(",");
    format!(
        r#"{{"left_children": [{left}], "right_children": [{right}], "split_indices": [{features}],
        "split_conditions": [{thresholds}], "default_left": [{flags}]}}"#
    )
}

#[test]
fn trees_that_are_none_are_refused() {
    let cases = [
        (tree("0", "0", "0", "1"), "tree 0: its nodes form a cycle"),
        (
            tree("1,2,1", "2,0,0", "0,0,0", "1,1,1"),
            "tree 0: its nodes form a cycle",
        ),
        (
            tree("1,-1,-1", "7,-1,-1", "0,0,0", "1,1,1"),
            "tree 0: node 7 does not exist, there are 3",
        ),
        (
            tree("1,-1,-1", "-2,-1,-1", "0,0,0", "1,1,1"),
            "tree 0: node 0 has the child -2",
        ),
        (
            tree("1,-1,-1", "2,-1,-1", "2,0,0", "1,1,1"),
            "tree 0: node 0 uses feature 2, but there are 2",
        ),
        (
            tree("1,-1,-1", "2,-1,-1", "0,0", "1,1,1"),
            "tree 0: split_indices has 2 entries for 3 nodes",
        ),
    ];
    for (tree, expected) in cases {
        assert_eq!(
            refuse("model.json", &xgboost(&tree)),
            format!("model.json: {expected}")
        );
    }
    let empty = r#"{"left_children": [], "right_children": [], "split_indices": [], "split_conditions": [],
        "default_left": []}"#;
    assert_eq!(
        refuse("model.json", &xgboost(empty)),
        "model.json: tree 0: node 0 does not exist, there are 0"
    );
}

#[test]
fn categories_are_bounded_by_their_list() {
    let own = |lists: &str| {
        let lists = format!(
            r#"{{"left_children": [1,-1,-1], "right_children": [2,-1,-1], "split_indices": [0,0,0],
            "split_conditions": [0,1,2], "default_left": [0,0,0], "split_type": [1,0,0], {lists}}}"#
        );
        xgboost(&lists)
    };
    // A set with the largest possible category takes no more memory than other sets.
    let lists = r#""categories_nodes": [0], "categories_segments": [0], "categories_sizes": [2], "categories": [2147483647, -1]"#;
    load("model.json", own(lists), config(&[])).expect("a model");
    let lists = r#""categories_nodes": [0, 0], "categories_segments": [0, 0], "categories_sizes": [2, 2], "categories": [1, 2]"#;
    assert!(refuse("model.json", &own(lists)).contains("its nodes use more categories than the list has"));
    let lists = r#""categories_nodes": [0], "categories_segments": [1], "categories_sizes": [2], "categories": [1, 2]"#;
    assert!(refuse("model.json", &own(lists)).contains("its categories are out of range"));
    let lists =
        r#""categories_nodes": [], "categories_segments": [], "categories_sizes": [], "categories": []"#;
    assert!(refuse("model.json", &own(lists)).contains("node 0 splits by category but has no categories"));
}

#[test]
fn what_the_head_says_is_checked() {
    let leaf = tree("-1", "-1", "0", "1");
    let cases = [
        (
            xgboost_with("[1.5]", "1", "binary:logistic", &leaf),
            "base_score is 1.5",
        ),
        (
            xgboost_with("[1,2]", "3", "reg:squarederror", &leaf),
            "base_score has 2 numbers for 3 scores",
        ),
        (
            xgboost_with("one", "1", "reg:squarederror", &leaf),
            "base_score is 'one', expected numbers",
        ),
        (
            xgboost_with("0", "-1", "reg:squarederror", &leaf),
            "num_target is '-1'",
        ),
        (
            xgboost_with("0", "1", "my:objective", &leaf),
            "the objective 'my:objective' is not supported",
        ),
        (
            xgboost_with("0", "1", "multi:softmax", &leaf),
            "needs 2 classes or more",
        ),
        // The file claims four billion targets; each row would have as many scores.
        (
            xgboost_with("0", "4294967295", "reg:squarederror", &leaf),
            "expected at most 65536",
        ),
    ];
    for (content, expected) in cases {
        let message = refuse("model.json", &content);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn what_is_no_model_is_explained() {
    let nested = |start: &[u8], level: &[u8]| [start.to_vec(), level.repeat(100_000)].concat();
    let cases = [
        (
            "model.json",
            b"{\"trees\": []}".to_vec(),
            "missing field `learner`",
        ),
        (
            "model.json",
            b"{\"learner\":{\"learner\":1}}".to_vec(),
            "save_model",
        ),
        ("model.json", nested(b"{\"x\":", b"["), "EOF"),
        ("model.json", nested(b"{\"x\":", b"{\"x\":"), "EOF"),
        ("model.json", nested(b"", b"{\"learner\":"), "EOF"),
        ("model.ubj", nested(b"{i\x01x", b"["), "more than 32 levels"),
        (
            "model.ubj",
            b"{L\x7f\xff\xff\xff\xff\xff\xff\xffx".to_vec(),
            "bytes are declared",
        ),
        ("model.bst", b"\x80\x04\x95".to_vec(), "pickle"),
        ("model.bst", b"".to_vec(), "empty"),
        ("model.txt", b"tree\n".to_vec(), "lacks num_tree_per_iteration"),
    ];
    for (file, content, expected) in cases {
        let message = refuse(file, &content);
        assert!(message.contains(expected), "{message}");
    }
}

/// Builds a LightGBM model with one tree, which `lines` describe.
fn lightgbm(lines: &str) -> Vec<u8> {
    format!("tree\nversion=v4\nnum_tree_per_iteration=1\nmax_feature_idx=1\nobjective=regression\n\nTree=0\n{lines}\n\nend of trees\n")
        .into_bytes()
}

#[test]
fn texts_of_lightgbm_are_checked() {
    let lines = |left: &str, right: &str, feature: &str, threshold: &str, decision: &str| {
        lightgbm(&format!(
            "num_leaves=2\nsplit_feature={feature}\nthreshold={threshold}\ndecision_type={decision}\nleft_child={left}\n\
             right_child={right}\nleaf_value=1 2"
        ))
    };
    load("model.txt", lines("-1", "-2", "0", "0.5", "2"), config(&[])).expect("a model");
    let cases = [
        (lines("0", "-2", "0", "1", "2"), "its nodes form a cycle"),
        (
            lines("1", "-2", "0", "1", "2"),
            "branch 0 has a child beyond 1 branches",
        ),
        (
            lines("-1", "-9", "0", "1", "2"),
            "node 9 does not exist, there are 3",
        ),
        (lines("-1", "-2147483648", "0", "1", "2"), "does not exist"),
        (
            lines("-1", "-2", "2", "1", "2"),
            "branch 0 uses feature 2, but there are 2",
        ),
        (lines("-1", "-2", "0", "nan", "2"), "branch 0 compares with NaN"),
        (
            lines("-1", "-2", "0", "1", "14"),
            "unknown type of missing values: 3",
        ),
        (lines("-1", "-2", "0", "0", "1"), "it uses category set 0 of 0"),
        (lines("-1", "-2", "0", "1e300", "1"), "of 0"),
        (
            lines("-1", "-2", "0 1", "1", "2"),
            "split_feature has 2 entries, expected 1",
        ),
        (
            lightgbm("num_leaves=18446744073709551615\nleaf_value=1"),
            "leaf_value has 1 entries",
        ),
        (lightgbm("num_leaves=0"), "num_leaves is 0"),
        (
            lightgbm(
                "num_leaves=1\nleaf_value=1\nis_linear=1\nleaf_const=1\nnum_features=18446744073709551615\nleaf_features=0\nleaf_coeff=1",
            ),
            "leaf 0 lacks one of its",
        ),
        (
            lightgbm(
                "num_leaves=1\nleaf_value=1\nis_linear=1\nleaf_const=1\nnum_features=1\nleaf_features=5\nleaf_coeff=1",
            ),
            "leaf 0 lacks one of its",
        ),
    ];
    for (content, expected) in cases {
        let message = refuse("model.txt", &content);
        assert!(message.starts_with("model.txt: tree 0, at line 7: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let mut cut = lines("-1", "-2", "0", "1", "2");
    cut.truncate(cut.len() - 10);
    let message = refuse("model.txt", &cut);
    assert!(message.contains("the file is truncated"), "{message}");
}

/// Truncated or altered model files either fail to load, or load and run without a panic.
#[test]
fn damaged_files_are_refused_or_run() {
    let files: Vec<(String, Vec<u8>)> = {
        let mut names: Vec<String> = cases().into_iter().map(|case| case.file).collect();
        names.dedup();
        names
            .into_iter()
            .map(|name| (name.clone(), fixture(&name)))
            .collect()
    };
    let strategy = (
        any::<prop::sample::Index>(),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        prop::option::weighted(0.2, any::<prop::sample::Index>()),
    );
    proptest!(ProptestConfig::with_cases(1500), |((file, changes, cut) in strategy)| {
        let (name, content) = file.get(&files);
        let mut content = content.clone();
        for (place, byte) in changes {
            let place = place.index(content.len());
            content[place] = byte;
        }
        if let Some(cut) = cut {
            content.truncate(cut.index(content.len()));
        }
        if let Ok(model) = load(name, content, config(&[])) {
            let width = model.metadata().inputs[0].shape.dims()[1].unwrap_or(0);
            prop_assume!(width < 10_000);
            let rows = tensor_core::Shape::new(&[9, width]).expect("a matrix");
            let values: Vec<f32> = (0..9 * width).map(|index| [0.0, f32::NAN, 1e30, -2.5][index as usize % 4]).collect();
            let rows = tensor_core::Tensor::from_vec(rows, values).expect("as many");
            run(&*model, rows).expect("a response");
        }
    });
}
