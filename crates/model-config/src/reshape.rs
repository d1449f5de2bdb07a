//! The field `reshape`: the tensor that clients see differs from the model's by axes of length one.

/// The conversion of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    /// An axis of length one is removed.
    Drop,
    /// An axis of length one is inserted.
    Insert,
}

/// Converts shapes between clients and the model. Only axes of length one are inserted or removed, so no
/// element moves.
///
/// ```
/// use model_config::Axes;
///
/// let axes = Axes::between(&[-1, 1, 5], &[-1, 5, 1]).unwrap();
/// assert_eq!(axes.to_model(&[8, 1, 5]), Some(vec![8, 5, 1]));
/// assert_eq!(axes.to_client(&[8, 5, 1]), Some(vec![8, 1, 5]));
/// assert_eq!(axes.to_model(&[8, 2, 5]), None);
/// assert!(Axes::between(&[-1, 5], &[5, -1]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(Vec<Step>);

impl Axes {
    /// Computes the conversion from the client's dimensions to the model's; -1 stands for a free dimension.
    /// Returns `None` if the dimensions differ by more than axes of length one.
    #[must_use]
    pub fn between(client: &[i64], model: &[i64]) -> Option<Self> {
        let (mut client, mut model) = (client.iter().peekable(), model.iter().peekable());
        let mut steps = Vec::new();
        loop {
            let step = match (client.peek(), model.peek()) {
                (None, None) => return Some(Self(steps)),
                (Some(one), Some(other)) if one == other => Step::Keep,
                (Some(1), _) => Step::Drop,
                (_, Some(1)) => Step::Insert,
                _ => return None,
            };
            if step != Step::Insert {
                client.next();
            }
            if step != Step::Drop {
                model.next();
            }
            steps.push(step);
        }
    }

    /// Converts a client's shape to the model's. Returns `None` if `dims` does not match the client's
    /// dimensions.
    #[must_use]
    pub fn to_model(&self, dims: &[u64]) -> Option<Vec<u64>> {
        Self::apply(self.0.iter().copied(), dims)
    }

    /// Converts a model's shape to the client's. Returns `None` if `dims` does not match the model's
    /// dimensions.
    #[must_use]
    pub fn to_client(&self, dims: &[u64]) -> Option<Vec<u64>> {
        let back = self.0.iter().map(|step| match step {
            Step::Keep => Step::Keep,
            Step::Drop => Step::Insert,
            Step::Insert => Step::Drop,
        });
        Self::apply(back, dims)
    }

    fn apply(steps: impl Iterator<Item = Step>, dims: &[u64]) -> Option<Vec<u64>> {
        let mut left = dims.iter().copied();
        let mut shape = Vec::new();
        for step in steps {
            match step {
                Step::Keep => shape.push(left.next()?),
                Step::Drop => left.next().filter(|dim| *dim == 1).map(drop)?,
                Step::Insert => shape.push(1),
            }
        }
        left.next().is_none().then_some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_one_come_and_go_anywhere() {
        for (client, model, sent, seen) in [
            (&[-1, 1][..], &[-1][..], &[4u64, 1][..], &[4u64][..]),
            (&[-1], &[-1, 1, 1], &[4], &[4, 1, 1]),
            (&[1, 5], &[5, 1], &[1, 5], &[5, 1]),
            (&[-1, 1, -1], &[-1, -1], &[2, 1, 1], &[2, 1]),
            (&[], &[1], &[], &[1]),
        ] {
            let axes = Axes::between(client, model).unwrap();
            assert_eq!(axes.to_model(sent).as_deref(), Some(seen), "{client:?}");
            assert_eq!(axes.to_client(seen).as_deref(), Some(sent), "{client:?}");
            assert_eq!(axes.to_model(&[&[9, 9, 9, 9][..], sent].concat()), None);
        }
        for (client, model) in [(&[2, 3][..], &[6][..]), (&[2, 3], &[3, 2]), (&[-1], &[4])] {
            assert_eq!(Axes::between(client, model), None, "{client:?}");
        }
    }
}
