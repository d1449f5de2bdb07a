//! Whether a model's rows are independent. The engine batches requests from different callers together only
//! if the rows are independent.

/// Whether the rows of a model, the slices along axis 0 of its inputs and outputs, are independent of each
/// other.
///
/// ```
/// use oip_model::{IndependentRows, RowIndependence};
///
/// let pooled = RowIndependence::Unproven("GlobalAveragePool 'pool' runs along axis 0".to_owned());
/// let detector = IndependentRows::default()
///     .with_shared_input("threshold")
///     .with_equal_dims([("image", 2), ("mask", 1)]);
/// assert_ne!(RowIndependence::Proven(detector), pooled);
/// assert!(matches!(RowIndependence::default(), RowIndependence::Unproven(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowIndependence {
    /// Row i of every output depends only on row i of the inputs, and on inputs that have no rows. Running
    /// concatenated requests therefore gives the concatenation of their outputs. Results may differ by
    /// rounding, because kernels for many rows add in a different order than kernels for one row.
    Proven(IndependentRows),
    /// The rows depend on each other, or their independence could not be proven. Contains the reason, such as
    /// "`CumSum` 'y' runs along axis 0".
    Unproven(String),
}

impl Default for RowIndependence {
    /// Returns `Unproven`.
    fn default() -> Self {
        Self::Unproven("its rows are not known to be independent".to_owned())
    }
}

/// The conditions under which rows are independent. By default there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndependentRows {
    /// Inputs without rows, such as a threshold or a table. Requests are batched together only if their
    /// values for these inputs are equal byte for byte, and the model gets these inputs once.
    pub shared_inputs: Vec<String>,
    /// Groups of (input name, axis) pairs that share one symbolic dimension. A request whose dimensions
    /// differ within a group runs alone.
    pub equal_dims: Vec<Vec<(String, usize)>>,
    /// The maximum number of rows of a batch.
    pub max_rows: u64,
    /// The largest allowed dimension of an input. A request with a larger dimension runs alone.
    pub max_dim: u64,
}

impl Default for IndependentRows {
    fn default() -> Self {
        Self {
            shared_inputs: Vec::new(),
            equal_dims: Vec::new(),
            max_rows: u64::MAX,
            max_dim: u64::MAX,
        }
    }
}

impl IndependentRows {
    /// Returns the conditions with another input without rows.
    #[must_use]
    pub fn with_shared_input(mut self, name: impl Into<String>) -> Self {
        self.shared_inputs.push(name.into());
        self
    }

    /// Returns the conditions with a group of dimensions that share one symbolic dimension.
    #[must_use]
    pub fn with_equal_dims<N: Into<String>>(mut self, group: impl IntoIterator<Item = (N, usize)>) -> Self {
        let group = group.into_iter().map(|(input, axis)| (input.into(), axis));
        self.equal_dims.push(group.collect());
        self
    }
}
