//! XGBoost and LightGBM models, for servers of the Open Inference Protocol: reads the files that the packages
//! save, without Python.
//!
//! The backend serves `model.ubj`, `model.json` and `model.bst` of XGBoost, `model.txt` and `model.bst` of
//! LightGBM (the content determines the format), and Triton's names `xgboost.ubj`, `xgboost.json` and
//! `xgboost.model`. The outputs are those of the package's own `predict`, or classes and probabilities with
//! the parameters of Triton's FIL backend that docs/forests.md lists.
//!
//! A file is validated when it is loaded: every count against the remaining bytes, every child of a node,
//! every feature. Unsupported features are refused by name.
//!
//! ```
//! use backend_boosters::BoostersBackend;
//! use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
//! use oip_types::{InferRequest, ModelRef};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The output of `booster.save_model("model.json")`, without the members that inference does not need.
//! let file = r#"{"learner": {
//!     "learner_model_param": {"base_score": "[5E-1]", "num_class": "0", "num_feature": "2", "num_target": "1"},
//!     "objective": {"name": "binary:logistic"},
//!     "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0], "trees": [{
//!         "left_children": [1, -1, -1], "right_children": [2, -1, -1], "default_left": [1, 0, 0],
//!         "split_indices": [1, 0, 0], "split_conditions": [0.5, -2.0, 2.0]}]}}}}"#;
//! let source = ModelSource::new("clicks", "1", "models/clicks/1/model.json", file.into());
//! let model = BoostersBackend::new().load(&source, &LoadContext::default())?;
//!
//! let rows = Tensor::from_vec(Shape::new(&[2, 2])?, vec![0.0f32, 0.2, 0.0, 0.7])?;
//! let request = InferRequest::new(ModelRef::new("clicks", None)?).with_input("input-0", rows);
//! let outputs = model.infer(request, &CancelToken::new(None))?;
//! assert_eq!(outputs[0].name, "output-0");
//! assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<f32>()?, [0.11920292, 0.880797]);
//! # Ok(())
//! # }
//! ```

mod backend;
mod booster;
mod error;
mod lightgbm;
mod meaning;
mod model;
mod other_formats;
mod prediction;
mod xgboost;

pub use backend::BoostersBackend;
