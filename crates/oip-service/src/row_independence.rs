//! What a model knows of its rows. The engine joins requests of different callers only where rows are independent.

/// Whether the rows of a model, the slices along axis 0 of its inputs and outputs, are independent of each other.
///
/// ```
/// use oip_service::{IndependentRows, RowIndependence};
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
    /// Row i of every output is computed from row i of the inputs, and from inputs that have no rows: the outputs of requests that
    /// are concatenated along axis 0 are the outputs of each, concatenated along axis 0. They may differ by rounding, since kernels
    /// for many rows add in another order than those for one.
    Proven(IndependentRows),
    /// Not so, or not known; why, as in "`CumSum` 'y' runs along axis 0".
    Unproven(String),
}

impl Default for RowIndependence {
    /// Not known.
    fn default() -> Self {
        Self::Unproven("nothing says that its rows are independent".to_owned())
    }
}

/// The conditions under which rows are independent; by default there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndependentRows {
    /// Inputs without rows, such as a threshold or a table: only requests in which they are equal byte for byte are joined, and the
    /// model gets them once.
    pub shared_inputs: Vec<String>,
    /// Groups of dimensions, each by the input's name and the axis, to which the model gives one name. A request in which the
    /// dimensions of a group differ runs alone.
    pub equal_dims: Vec<Vec<(String, usize)>>,
    /// The most rows of a batch.
    pub max_rows: u64,
    /// The largest dimension of an input. A request with a larger one runs alone.
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
    /// The same with an input without rows.
    #[must_use]
    pub fn with_shared_input(mut self, name: impl Into<String>) -> Self {
        self.shared_inputs.push(name.into());
        self
    }

    /// The same with a group of dimensions that have one name.
    #[must_use]
    pub fn with_equal_dims<N: Into<String>>(mut self, group: impl IntoIterator<Item = (N, usize)>) -> Self {
        let group = group.into_iter().map(|(input, axis)| (input.into(), axis));
        self.equal_dims.push(group.collect());
        self
    }
}
