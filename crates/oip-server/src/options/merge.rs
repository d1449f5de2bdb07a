//! Merges options of the command line and the environment with those of the configuration file.

/// Options that may be missing.
pub(crate) trait Merge {
    /// Merges these options with `other`. Options set in `self` take precedence.
    fn or(self, other: Self) -> Self;
}

impl<T> Merge for Option<T> {
    fn or(self, other: Self) -> Self {
        self.or(other)
    }
}

impl<T> Merge for Vec<T> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// Implements [`Merge`] for a struct, field by field.
macro_rules! merged {
    ($options:ident: $($(#[$cfg:meta])? $field:ident)*) => {
        impl $crate::options::merge::Merge for $options {
            fn or(self, other: Self) -> Self {
                Self {
                    $($(#[$cfg])? $field: $crate::options::merge::Merge::or(self.$field, other.$field),)*
                }
            }
        }
    };
}

pub(crate) use merged;
